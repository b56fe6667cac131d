"""An attempt opens the plain sum of one set, or nothing; a site refuses every letter that could open more."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy
import pytest

pytest.importorskip("cryptography")

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from masked_rounds import Attempt, make_sites, play, signs, terms_for
from rondo.privacy import masks
from rondo.privacy.fixed_point import Ring
from rondo.privacy.opening import NoSum, ServerSession
from rondo.privacy.session import (
    SESSIONS,
    Named,
    Ready,
    Refused,
    Sent,
    Shares,
    SiteSession,
    Terms,
    Unmask,
    threshold_of,
)

RINGS: tuple[Ring, ...] = (32, 64)


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ring", RINGS)
def test_opened_sum_is_the_plain_one_as_integers(ring: Ring, count: int) -> None:
    opened = 0
    for trial in range(count):
        luck = random.Random(f"{ring} {trial}")
        names = [f"s{k:02}" for k in range(luck.randint(2, 20))]
        edge, size = 2 ** (ring - 2) // len(names), luck.randint(1, 200)
        draw = numpy.random.default_rng(trial)
        vectors = {n: draw.integers(-edge, edge, size, dtype=numpy.int64) for n in names}
        attempt = play(vectors, terms_for(len(names), ring), luck, luck.choice([0.0, 0.05, 0.2]))
        if attempt.opened is not None:
            sites, total = attempt.opened
            assert total.tolist() == sum(vectors[n] for n in sites).tolist()
            opened += 1
        else:
            assert "the threshold is" in attempt.reason or "lost a site each" in attempt.reason
    assert count // 3 < opened < count


def combinations_of_vectors(attempt: Attempt, threshold: int, *, own_masks: bool = True) -> int:
    """Number of independent combinations of the sites' vectors alone that the server can compute.

    A masked vector is a row: the site's vector, its own mask and the pairs' masks, each an unknown. An own mask is
    known from ``threshold`` shares on. The rows are reduced with the masks' columns first; a row that is left without
    any mask is a combination of vectors.
    """
    shares: dict[tuple[int, str], int] = {}
    for answer in attempt.answers:
        for site in answer.shares:
            shares[answer.session, site] = shares.get((answer.session, site), 0) + 1
    rows: list[dict[object, Fraction]] = []
    for sent in attempt.received:
        row: dict[object, Fraction] = {("vector", sent.site): Fraction(1)}
        if own_masks and shares.get((sent.session, sent.site), 0) < threshold:
            row["mask", sent.session, sent.site] = Fraction(1)
        for other in sent.sealed:
            pair = ("pair", sent.session, *sorted((sent.site, other)))
            row[pair] = Fraction(1 if sent.site < other else -1)
        rows.append(row)
    found = 0
    while rows:
        row = rows.pop()
        column = next((c for c in row if c[0] != "vector"), None) or next(iter(row))  # type: ignore[index]
        found += column[0] == "vector"  # type: ignore[index]
        for other in rows:
            if column in other:
                factor = other[column] / row[column]
                for c, value in row.items():
                    other[c] = other.get(c, Fraction(0)) - factor * value
                    if other[c] == 0:
                        del other[c]
        rows = [other for other in rows if other]
    return found


def orders(count: int) -> list[tuple[Attempt, int]]:
    """Attempts of 3 to 7 sites with late and lost letters, and their thresholds."""
    played = []
    for trial in range(count):
        luck = random.Random(trial)
        names = [f"s{k}" for k in range(luck.randint(3, 7))]
        terms = terms_for(len(names))
        vectors = {n: numpy.array([luck.randrange(1000)], numpy.int64) for n in names}
        played.append((play(vectors, terms, luck, luck.choice([0.05, 0.1, 0.2]), late=0.9), terms.threshold))
    return played


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_server_learns_nothing_but_the_opened_sum(count: int) -> None:
    bitten = 0
    for attempt, threshold in orders(count):
        assert combinations_of_vectors(attempt, threshold) == (attempt.opened is not None)
        complete = {
            session: set(names)
            for session, names in enumerate(attempt.sets)
            if {s.site for s in attempt.received if s.session == session} == set(names)
        }
        without = combinations_of_vectors(attempt, threshold, own_masks=False)
        assert without == len({frozenset(names) for names in complete.values()})
        bitten += without > 1
    assert bitten > count // 30


@pytest.mark.parametrize(("sites", "threshold"), [(2, 2), (3, 2), (4, 3), (10, 7), (100, 67), (200, 134)])
def test_threshold_is_two_thirds(sites: int, threshold: int) -> None:
    assert threshold_of(sites) == threshold


NUMBERS = numpy.array([5, -7], numpy.int64)
NAMES = ["a", "b", "c", "d"]


def prepared(least: int = 2, terms: Terms | None = None) -> tuple[dict[str, SiteSession], Named]:
    """Four sites that are ready, and their set."""
    sites, letters = make_sites(NAMES, terms or terms_for(4), least), []
    draw = random.Random(1)
    for name in NAMES:
        sites[name], letter = sites[name].ready(lambda text, name=name: signs(name, text), draw.randbytes)
        letters.append(letter)
    return sites, Named(0, tuple(letters))


def masked() -> tuple[dict[str, SiteSession], dict[str, Unmask], ServerSession]:
    """The sites once all have masked, and the server's letters to them."""
    sites, named = prepared()
    server = ServerSession(terms_for(4), 2)
    for ready in named.members:
        server = server.with_ready(ready)
    server, again = server.name_set()
    assert again == named
    for name in NAMES:
        sites[name], sent = sites[name].masked(named, NUMBERS)
        server = server.with_sent(sent)
    return sites, server.unmask(), server


def signed(ready: Ready, **changes: object) -> Ready:
    changed = replace(ready, **changes)  # type: ignore[arg-type]
    return replace(changed, signature=signs(changed.site, changed.text()))


OTHER_KEY = masks.public_key(b"\1" * 32)

FAULTS: dict[str, Callable[[tuple[Ready, ...]], tuple[Ready, ...]]] = {
    "wrong_set: its sites are not in order": lambda m: (m[1], m[0], *m[2:]),
    "wrong_set: its sites are not in order, or one is there twice": lambda m: (m[0], m[1], m[1], *m[2:]),
    "wrong_set: it lacks this site, or has another key": lambda m: m[1:],
    "wrong_set: it lacks this site": lambda m: (signed(m[0], key=OTHER_KEY), *m[1:]),
    "wrong_peer: e is not among the peers": lambda m: (*m, signed(m[3], site="e")),
    "wrong_signature: b has not signed this key": lambda m: (m[0], replace(m[1], key=OTHER_KEY), *m[2:]),
    "wrong_signature: c has not signed": lambda m: (*m[:2], replace(m[2], signature=m[3].signature), m[3]),
    "wrong_plan: d has agreed to other terms": lambda m: (*m[:3], signed(m[3], terms=terms_for(4, plan="q").digest)),
    "wrong_session: d is in 1": lambda m: (*m[:3], signed(m[3], session=1)),
    "wrong_key: a site's key has a low order": lambda m: (*m[:3], signed(m[3], key=bytes(32))),
    "few_sites: 2 sites, the contract and the threshold ask for 3": lambda m: m[:2],
}


@pytest.mark.parametrize("reason", FAULTS)
def test_site_masks_for_no_wrong_set(reason: str) -> None:
    sites, named = prepared()
    with pytest.raises(Refused, match=reason):
        sites["a"].masked(replace(named, members=FAULTS[reason](named.members)), NUMBERS)
    sites["a"].masked(named, NUMBERS)


def test_site_refuses_less_than_its_contract_asks_for() -> None:
    sites, named = prepared(least=5)
    with pytest.raises(Refused, match="few_sites: 4 sites, the contract and the threshold ask for 5"):
        sites["a"].masked(named, NUMBERS)


def test_site_refuses_a_threshold_that_is_too_small() -> None:
    sites, named = prepared(terms=terms_for(4, threshold=2))
    with pytest.raises(Refused, match="threshold: 2 of 4 sites, 3 are needed"):
        sites["a"].masked(named, NUMBERS)


def test_site_masks_for_one_set_in_a_session() -> None:
    sites, named = prepared()
    fresh, later = make_sites(["a"], terms_for(4))["a"], replace(named, session=1)
    for site, letter in ((fresh, named), (fresh, replace(named, session=-1)), (sites["a"], later)):
        with pytest.raises(Refused, match="wrong_session"):
            site.masked(letter, NUMBERS)
    site, sent = sites["a"].masked(named, NUMBERS)
    assert site.masked(named, NUMBERS) == (site, sent)
    with pytest.raises(Refused, match="wrong_set: session 0 has another set already"):
        site.masked(replace(named, members=named.members[:3]), NUMBERS)


def test_site_opens_one_set_of_an_attempt() -> None:
    sites, letters, _ = masked()
    site, answer = sites["a"].unmask(letters["a"])
    assert site.unmask(letters["a"]) == (site, answer)
    with pytest.raises(Refused, match="repeated"):
        site.unmask(replace(letters["a"], sealed=letters["b"].sealed))
    with pytest.raises(Refused, match="opened: a sum of this attempt was opened already"):
        site.ready(lambda text: text)


def test_site_opens_no_other_set_than_it_masked_for() -> None:
    sites, letters, _ = masked()
    letter = letters["a"]
    without = {n: s for n, s in letter.sealed.items() if n != "d"}
    for changed, reason in (
        (replace(letter, session=1), "wrong_session: 1, it has masked for 0"),
        (replace(letter, members=("a", "b", "c")), "wrong_set"),
        (replace(letter, sealed=without), "wrong_set"),
        (replace(letter, sealed={**letter.sealed, "b": letter.sealed["c"]}), "wrong_share: b: "),
    ):
        with pytest.raises(Refused, match=reason):
            sites["a"].unmask(changed)
    (again, _), (unmasked, _) = sites["a"].ready(lambda text: text), prepared()
    for site in (again, unmasked["a"]):
        with pytest.raises(Refused, match="wrong_session"):
            site.unmask(letter)


def test_attempt_has_four_sessions() -> None:
    site = make_sites(["a"], terms_for(4))["a"]
    for _ in range(SESSIONS):
        site, _ = site.ready(lambda text: text)
    with pytest.raises(Refused, match="sessions: 4 sets of this attempt had no sum"):
        site.ready(lambda text: text)


def test_fewer_answers_than_the_threshold_open_nothing() -> None:
    sites, letters, server = masked()
    for name in NAMES[:2]:
        server = server.with_shares(sites[name].unmask(letters[name])[1])
    with pytest.raises(NoSum, match="2 sites have opened their shares, the threshold is 3"):
        server.sum()
    total = server.with_shares(sites["d"].unmask(letters["d"])[1]).sum()
    assert total.tolist() == [20, -28]


def test_any_answers_give_the_same_sum() -> None:
    sites, letters, server = masked()
    answers = {name: sites[name].unmask(letters[name])[1] for name in NAMES}
    for some in combinations(NAMES, 3):
        opened = server
        for name in some:
            opened = opened.with_shares(answers[name])
        assert opened.sum().tolist() == [20, -28]


def test_letters_that_do_not_belong_here_are_dropped() -> None:
    sites, letters, server = masked()
    answer = sites["a"].unmask(letters["a"])[1]
    for wrong in (replace(answer, session=1), replace(answer, site="e"), replace(answer, shares={})):
        assert server.with_shares(wrong) is server
    early = replace(server, sent={}, shares={})
    assert early.with_shares(answer) is early
    sent = server.sent["a"]
    for changed in (replace(sent, vector=sent.vector[:1]), replace(sent, sealed={}), replace(sent, site="e")):
        assert early.with_sent(changed) is early
    with pytest.raises(ValueError, match="its seeds stay closed"):
        early.unmask()
    with pytest.raises(ValueError, match="its sum may be opened"):
        server.again()


def test_other_contexts_give_other_masks() -> None:
    vectors = []
    for terms in (terms_for(4), terms_for(4, attempt=4), terms_for(4, tensors=("w.A",)), terms_for(4, run="q")):
        sites, named = prepared(terms=terms)
        vectors.append(sites["a"].masked(named, NUMBERS, random.Random(2).randbytes)[1].vector.tolist())
    assert len({tuple(v) for v in vectors}) == 4


def test_keys_of_sites_sign_what_is_ready() -> None:
    key = ec.generate_private_key(ec.SECP384R1())

    def verify(signature: bytes, text: bytes) -> bool:
        try:
            key.public_key().verify(signature, text, ec.ECDSA(hashes.SHA384()))
            return True
        except InvalidSignature:
            return False

    sites, named = prepared()
    site = replace(sites["a"], peers={**sites["a"].peers, "b": verify})
    with pytest.raises(Refused, match="wrong_signature: b"):
        site.masked(named, NUMBERS)
    letter = named.members[1]
    letter = replace(letter, signature=key.sign(letter.text(), ec.ECDSA(hashes.SHA384())))
    _, sent = site.masked(replace(named, members=(named.members[0], letter, *named.members[2:])), NUMBERS)
    assert isinstance(sent, Sent)
    assert sent.sealed.keys() == {"b", "c", "d"}


def test_false_share_is_no_sum_or_another_one() -> None:
    sites, letters, server = masked()
    for name in NAMES[:3]:
        answer = sites[name].unmask(letters[name])[1]
        if name == "a":
            answer = Shares(name, 0, {**answer.shares, "b": bytes(33)})
        server = server.with_shares(answer)
    with contextlib.suppress(NoSum):
        assert server.sum().tolist() != [20, -28]
