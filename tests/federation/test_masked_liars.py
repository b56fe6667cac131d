"""A site that sends what is none, or false numbers, in a masked sum: the others go on without it, or have no sum."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from desk_line import DeskLine
from simulations import simulated
from test_masked_kills import run_of, served, without_bob

from outcomes import adapter
from rondo.engine.wire import masked
from rondo.engine.wire.letters import Reply

pytestmark = pytest.mark.slow


class Liar:
    """Bob's site, in the first round."""

    def __init__(self, kind: str, lie: Callable[[bytes], bytes]) -> None:
        self.kind, self.lie, self.told = kind, lie, 0

    def __call__(self, site: str, kind: str, answer: bytes) -> bytes:
        if (site, kind) != ("south", self.kind) or self.told:
            return answer
        self.told += 1
        return self.lie(answer)


def body(random: Callable[[int], bytes]) -> Callable[[bytes], bytes]:
    """A letter with the same header and another body."""

    def lie(answer: bytes) -> bytes:
        start = 8 + int.from_bytes(answer[:8], "little")
        return answer[:start] + random(len(answer) - start)

    return lie


def refusing(answer: bytes) -> bytes:
    return masked.Refusal("busy", "\x1b[2J" * 1000).encode()


GONE = {
    "ready none": ("ready", lambda answer: b"none", "unreadable"),
    "ready empty": ("ready", lambda answer: b"", "unreadable"),
    "ready for other terms": ("ready", body(os.urandom), "wrong_plan"),
    "ready refused": ("ready", refusing, "refused"),
    "masked none": ("masked", lambda answer: answer[:-1], "unreadable"),
    "masked too large": ("masked", lambda answer: answer + bytes(2**21), "too_large"),
    "masked refused": ("masked", refusing, "refused"),
    "bare upload": ("round", lambda answer: Reply(b"numbers").encode(), "unmasked"),
}


@pytest.mark.parametrize("name", GONE)
def test_others_go_on_without_a_site_that_sends_none(place: Path, tmp_path: Path, name: str) -> None:
    kind, lie, reason = GONE[name]
    result = served(place, DeskLine(place, tmp_path, spoil=Liar(kind, lie)), tmp_path / "run")
    assert [f["reason"] for f in result.history[0]["failed"]] == [reason]
    assert "\x1b" not in str(result.history[0]["failed"])
    expected = simulated(place, run_of(place), tmp_path / "simulation", without_bob(0))
    assert adapter(result.run_dir) == adapter(expected.run_dir)


def test_false_vector_is_no_sum(place: Path, tmp_path: Path) -> None:
    sealed = 2 * 49
    lie = body(lambda size: os.urandom(size - sealed))
    liar = Liar("masked", lambda answer: lie(answer) + answer[-sealed:])
    result = served(place, DeskLine(place, tmp_path, spoil=liar), tmp_path / "run")
    assert "not decodable: the sum has a norm of" in result.history[0]["skipped"]
    assert result.history[1]["skipped"] is None


def test_false_sealed_shares_are_opened_by_nobody(place: Path, tmp_path: Path) -> None:
    liar = Liar("masked", lambda answer: answer[:-98] + os.urandom(98))
    result = served(place, DeskLine(place, tmp_path, spoil=liar), tmp_path / "run")
    details = {f["detail"] for f in result.history[0]["failed"]}
    assert details == {"1 sites have opened their shares, the threshold is 2"}
    assert result.history[1]["skipped"] is None


def test_shares_that_are_none_are_not_needed(place: Path, tmp_path: Path) -> None:
    result = served(place, DeskLine(place, tmp_path, spoil=Liar("unmask", lambda answer: b"x")), tmp_path / "run")
    assert adapter(result.run_dir) == adapter(simulated(place, run_of(place), tmp_path / "simulation").run_dir)


@pytest.mark.parametrize("byte", [0, 255])
def test_false_shares_are_no_sum(place: Path, tmp_path: Path, byte: int) -> None:
    """Of the seed 0 for each site; or of no element of the field."""
    lie = body(lambda size: bytes([byte]) * size)
    result = served(place, DeskLine(place, tmp_path, spoil=Liar("unmask", lie)), tmp_path / "run")
    skipped = result.history[0]["skipped"]
    details = {f["detail"] for f in result.history[0]["failed"]}
    assert "not decodable" in skipped or any("the share" in detail for detail in details)
    assert result.history[1]["skipped"] is None
