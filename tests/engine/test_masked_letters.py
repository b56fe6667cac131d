"""Letters of masked sums as bytes: read back as they were written, and anything else is turned away."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest

pytest.importorskip("cryptography")

from hypothesis import given
from hypothesis import strategies as st

from masked_rounds import make_sites, signs, terms_for
from rondo.engine.wire import masked
from rondo.engine.wire.strict import Rejected
from rondo.privacy.masking.integers import Ring
from rondo.privacy.masking.opening import ServerSession

NAMES = ("a", "b", "st-anna")


def letters(ring: Ring = 32) -> dict[str, tuple[Any, bytes, Callable[[bytes], Any]]]:
    """An honest letter of each kind to or from b: the letter, its bytes, and how they are read."""
    draw, terms = random.Random(1).randbytes, terms_for(3, ring)
    sites, server = make_sites(NAMES, terms), ServerSession(terms, 5)
    for name in NAMES:
        sites[name], said = sites[name].ready(0, terms, lambda text, name=name: signs(name, text), draw)
        server = server.with_ready(said)
    server, named = server.name_set()
    for name in NAMES:
        sites[name], _ = sites[name].masked(named, numpy.arange(5), draw)
        server = server.with_sent(sites[name].sent)  # type: ignore[arg-type]
    said, sent = sites["b"].said, sites["b"].sent
    unmask = server.unmask()["b"]
    _, given = sites["b"].unmask(unmask)
    assert said is not None
    assert sent is not None
    ready = masked.AskReady("r", 3, 0, 2, 7.0, ("x", "y"))
    ask, shares = masked.AskMasked("r", 3, named), masked.AskShares("r", 3, unmask)
    return {
        "ask ready": (ready, ready.encode(), masked.AskReady.decode),
        "ask masked": (ask, ask.encode(), masked.AskMasked.decode),
        "ask shares": (shares, shares.encode("b"), lambda data: masked.AskShares.decode(data, "b")),
        "ready": (said, masked.encode_ready(said), lambda data: masked.decode_ready(data, "b")),
        "sent": (sent, masked.encode_sent(sent, NAMES), lambda data: masked.decode_sent(data, "b", NAMES, 5, ring)),
        "shares": (given, masked.encode_shares(given, NAMES), lambda data: masked.decode_shares(data, "b", NAMES)),
    }


LETTERS = letters()


@pytest.mark.parametrize("ring", [32, 64])
def test_letters_are_read_as_they_were_written(ring: Ring) -> None:
    for kind, (letter, data, read) in letters(ring).items():
        again = read(data)
        if kind == "sent":
            assert again.vector.tolist() == letter.vector.tolist()
            assert (again.site, again.session, again.sealed) == (letter.site, letter.session, letter.sealed)
        else:
            assert again == letter


@pytest.mark.parametrize("kind", LETTERS)
@given(data=st.data())
def test_spoiled_letters_are_turned_away(kind: str, data: st.DataObject) -> None:
    """Longer, shorter, or with another byte in the header: never another error, and never another length."""
    letter, content, read = LETTERS[kind]
    size = 8 + int.from_bytes(content[:8], "little")
    place, value = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 255))
    spoiled = data.draw(
        st.sampled_from(
            [content[:place], content + b"x", content[:-1], content[:place] + bytes([value]) + content[place + 1 :]]
        )
    )
    try:
        again = read(spoiled)
    except Rejected:
        return
    assert type(again) is type(letter)
    assert len(spoiled) == len(content) or kind == "ready", "a signature may have another length"


@pytest.mark.parametrize("kind", LETTERS)
def test_letters_beyond_the_limit_are_turned_away_unread(kind: str) -> None:
    _, _, read = LETTERS[kind]
    with pytest.raises(Rejected, match="too_large"):
        read(b"\0" * (masked.largest_sent(5, 32) + 1))


def test_refusal_is_told_with_its_reason() -> None:
    data = masked.Refusal("opened", "a sum of this attempt was opened already").encode()
    for kind in ("ready", "sent", "shares"):
        with pytest.raises(Rejected, match="refused: opened: 'a sum of this attempt was opened already'"):
            LETTERS[kind][2](data)


def test_letter_of_another_ring_is_turned_away() -> None:
    _, data, _ = letters(64)["sent"]
    with pytest.raises(Rejected, match="unreadable: 118 bytes, expected are 98"):
        masked.decode_sent(data, "b", NAMES, 5, 32)


@pytest.mark.parametrize(
    ("sites", "up", "down"), [(10, 1_100, 2_900), pytest.param(100, 8_600, 25_500, marks=pytest.mark.slow)]
)
def test_letters_add_little_to_a_vector(sites: int, up: int, down: int) -> None:
    """Bytes beside the vector, by site: so few that 100,000 numbers, sent up and down, have at most 1.05 times the
    bytes. Flower's own around each letter are not in them."""
    names = tuple(f"site-{k:03}" for k in range(sites))
    terms, draw = terms_for(sites, run="0" * 16, model="0" * 64, plan="0" * 64), random.Random(0).randbytes
    members, server = make_sites(names, terms), ServerSession(terms, 1)
    members = {name: replace(site, peers=dict.fromkeys(names, lambda *_: True)) for name, site in members.items()}
    asked, said = [], []
    for name in names:
        asked.append(masked.AskReady(terms.run, 0, 0, terms.threshold, 1.0, (name,)).encode())
        members[name], ready = members[name].ready(0, terms, lambda _: bytes(104), draw)  # of P-384, in DER
        said.append(masked.encode_ready(ready))
        server = server.with_ready(ready)
    server, named = server.name_set()
    asked += [masked.AskMasked(terms.run, 0, named).encode()] * sites
    for name in names:
        members[name], sent = members[name].masked(named, numpy.zeros(1, numpy.int64), draw)
        said.append(masked.encode_sent(sent, names)[4:])  # without the vector of one number
        server = server.with_sent(sent)
    for name, letter in server.unmask().items():
        asked.append(masked.AskShares(terms.run, 0, letter).encode(name))
        members[name], given = members[name].unmask(letter)
        said.append(masked.encode_shares(given, names))
    sizes = [sum(map(len, letters)) / sites for letters in (said, asked)]
    assert sizes[0] < up
    assert sizes[1] < down
    assert sum(sizes) < 0.05 * 2 * 4 * 100_000
