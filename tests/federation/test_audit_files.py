"""The files of a site's audit: rotated, cut and lost. No limit begins again by it, and nobody is left in the dark."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from desks import Make, contract
from typer.testing import CliRunner

from rondo.cli.app import app
from rondo.federation.program import only_program
from rondo.federation.site.audit import audit
from rondo.federation.site.audit.audit import Audit, Unwritten
from rondo.federation.site.audit.state import STATE, AuditState
from rondo.federation.site.desk import Exhausted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / audit.FILE


def noted(kept: Audit, count: int) -> Audit:
    for k in range(count):
        kept.note("out", "reason", b"letter %d" % k, {"k": k}, run="r", seconds=1.0)
    return kept


def log(file: Path, *options: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["federate", "site", "log", str(file.parent), *options])
    return ended.exit_code, ended.output


def figures(kept: Audit) -> tuple[Any, ...]:
    return kept.left(), kept.left("reason"), kept.bytes("out"), kept.seconds("r")


# --- rotation -----------------------------------------------------------------------------------------------------


def test_rotation_keeps_the_chain_and_the_limits(file: Path) -> None:
    before = noted(Audit(file), 3)
    code, said = log(file, "--rotate")
    assert (code, f"{file} is closed" in said.replace("\n", "")) == (0, True)
    after = Audit(file)
    assert figures(after) == figures(before)
    assert after.missing() is None
    noted(after, 2)
    assert figures(Audit(file)) == (5, 5, 40, 5.0)
    assert [(line.file, line.number, line.linked) for line in audit.lines(file)] == [
        *((audit.FILE, k, True) for k in (1, 2, 3)), *(("letters.2.jsonl", k, True) for k in (1, 2))
    ]  # fmt: skip
    assert log(file)[0] == 0
    assert "5 letters; each line follows the one before it" in log(file)[1]


def test_closed_file_may_be_kept_elsewhere(file: Path) -> None:
    noted(Audit(file), 3)
    log(file, "--rotate")
    noted(Audit(file), 1)
    os.rename(file, file.parent.parent / "kept.jsonl")
    assert Audit(file).missing() is None
    code, said = log(file)
    assert (code, "1 letters; letters.jsonl is not here: its letters are not in this account" in said) == (0, True)


def test_closed_file_that_was_cut_shows(file: Path) -> None:
    noted(Audit(file), 3)
    log(file, "--rotate")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    code, said = log(file)
    assert (code, "letters.jsonl does not end with the line that the site wrote last" in said) == (1, True)


def test_rotation_that_cannot_be_is_refused(file: Path) -> None:
    noted(Audit(file), 1)
    with only_program(file.parent):
        assert "in use by another program" in log(file, "--rotate")[1]
    (file.parent / "letters.2.jsonl").touch()
    assert "letters.2.jsonl is there" in log(file, "--rotate")[1]
    (file.parent / "letters.2.jsonl").unlink()
    assert log(file, "--rotate")[0] == 0
    code, said = log(file, "--rotate")
    assert (code, "nothing to rotate" in said) == (2, True)


# --- a past that is missing ---------------------------------------------------------------------------------------


def rotated_elsewhere(file: Path) -> None:
    os.rename(file, file.with_name("letters.jsonl.1"))


def begun_again(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:1] * len(content))


def cut(file: Path) -> None:
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))


def without_state(file: Path) -> None:
    (file.parent / STATE).unlink()


def without_both(file: Path) -> None:
    (file.parent / audit.CONSENTED).touch()
    (file.parent / STATE).unlink()
    file.unlink()


def damaged_state(file: Path) -> None:
    (file.parent / STATE).write_bytes(b"rubbish")


LOSSES = [rotated_elsewhere, begun_again, cut, without_state, without_both, damaged_state]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("lose", LOSSES)
def test_missing_past_counts_as_used_up(
    file: Path, tmp_path: Path, desk: Make, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None]
) -> None:
    """For the day. On the next one the site goes on, and its log shows where lines are missing, for ever."""
    noted(Audit(file), 3)
    lose(file)
    here = desk(tmp_path, contract=contract())
    for _ in range(2):
        with pytest.raises(Exhausted, match=r"today's limits count as used up.*rondo federate site log .* --rotate"):
            here.answer("plan", b"")
        here = desk(tmp_path, contract=contract())
    assert log(file)[0] == 1
    monkeypatch.setattr(audit, "today", lambda: "2999-01-01")
    assert Audit(file).missing() is None
    noted(Audit(file), 1)
    assert Audit(file).missing() is None
    code, said = log(file)
    assert code == 1
    assert "does not follow the line before it" in said


@pytest.mark.parametrize("lose", LOSSES)
def test_owner_goes_on_without_a_missing_past(file: Path, lose: Callable[[Path], None]) -> None:
    noted(Audit(file), 3)
    lose(file)
    known = figures(Audit(file))
    assert log(file, "--rotate")[0] == 0
    kept = Audit(file)
    assert kept.missing() is None
    assert figures(kept) == known == ((0, 0, 0, 0.0) if lose is without_both else (3, 3, 24, 3.0))
    noted(kept, 1)
    lines = list(audit.lines(file))
    assert [line.file for line in lines if line.number and line.linked][-1] == "letters.2.jsonl"


def test_file_that_goes_under_a_running_program(file: Path) -> None:
    kept = noted(Audit(file), 3)
    rotated_elsewhere(file)
    assert kept.missing() is not None
    os.rename(file.with_name("letters.jsonl.1"), file)
    assert kept.missing() is None, "it is there again"
    noted(kept, 1)
    assert log(file)[0] == 0


def test_line_that_is_on_the_disk_before_its_state_counts(file: Path) -> None:
    """A program that dies between the two: the letter has not left, and counts."""
    kept = noted(Audit(file), 2)
    state = (file.parent / STATE).read_bytes()
    noted(kept, 1)
    (file.parent / STATE).write_bytes(state)
    with file.open("ab") as half:
        half.write(b'{"time": "2')
    again = Audit(file)
    assert again.missing() is None
    assert figures(again) == (3, 3, 24, 3.0)
    noted(again, 1)
    code, said = log(file)
    assert (code, "letters.jsonl, line 4 is not whole" in said) == (0, True)
    assert figures(Audit(file)) == (4, 4, 32, 4.0)


def test_start_reads_the_end_of_a_long_audit(file: Path) -> None:
    """A site that trains for months has one of hundreds of megabytes."""
    noted(Audit(file), 2)
    last, size = file.read_bytes(), 200 * 10**6
    with file.open("wb") as long:
        long.truncate(size)
        long.seek(size)
        long.write(b"\n" + last)
    state = AuditState.read(file.parent)
    assert state is not None
    replace(state, size=file.stat().st_size).write(file.parent)
    before = bytes_read()
    assert Audit(file).missing() is None
    assert bytes_read() - before < 10**6
    with file.open("r+b") as cut:
        cut.truncate(file.stat().st_size - 1)
    assert Audit(file).missing() is not None


def bytes_read() -> int:
    """By this process so far."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/dev/full"), os.mkfifo])
def test_audit_that_is_no_file_stops_the_site(file: Path, make: Callable[[Path], None]) -> None:
    file.parent.mkdir()
    make(file)
    with pytest.raises(Unwritten, match="is not a file: move it away"):
        Audit(file)


def test_state_that_is_a_pipe_does_not_hang_the_site(file: Path) -> None:
    noted(Audit(file), 1)
    (file.parent / STATE).unlink()
    os.mkfifo(file.parent / STATE)
    assert Audit(file).missing() is not None


def test_log_of_a_broken_chain_says_where(file: Path) -> None:
    noted(Audit(file), 4)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], lines[1].replace(b'"k": 1', b'"k": 7'), *lines[2:]]))
    for options in ((), ("--letters",)):
        assert log(file, *options)[0] == 1
    assert "letters.jsonl, line 3 does not follow the line before it" in log(file)[1]
