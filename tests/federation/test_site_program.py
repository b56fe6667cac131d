"""A site's program over the real line: what leaves it, byte by byte, a look at a plan, and a disk that is full."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from desks import contract
from flwr.proto.message_pb2 import PushObjectRequest
from parties import OPEN, ROWS, Parties, configuration, write_sites

from rondo.errors import ConfigError
from rondo.federation.site import run as site
from rondo.federation.site.audit import account, audit
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.line.connection import Connection
from rondo.federation.site.run import SiteSetup, show_plan
from small_runs import save_tiny_bert

SITES = {"north": ("ann",), "south": ("bob",)}
PATIENTS = {name: [{**row, "patient": f"Patient {i}"} for i, row in enumerate(rows)] for name, rows in ROWS.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_bert(tmp_path / "bert")
    write_sites(tmp_path, SITES, PATIENTS)
    return tmp_path


config = partial(configuration, evaluation={"clients_every": 1})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """The route and the body of every request that leaves a site from now on."""
    seen: list[tuple[str, bytes]] = []
    real = Connection.post

    def noted(self: Connection, path: str, body: bytes, headers: Any, largest: int) -> tuple[bytes, str]:
        seen.append((path.rpartition("/")[2], body))
        return real(self, path, body, headers, largest)

    monkeypatch.setattr(Connection, "post", noted)
    return seen


def letters(bodies: list[tuple[str, bytes]]) -> list[bytes]:
    """The letters that left, each of one part."""
    parts = [PushObjectRequest.FromString(body) for route, body in bodies if route == "push-object"]
    assert {part.object_id.rpartition("/")[2] for part in parts} == {"0"}
    return [part.object_content for part in parts]


SMALL = 4096
"""Bytes of the largest request without a letter: ids and a key."""


@pytest.mark.slow
def test_every_byte_that_left_is_in_the_audit(folder: Path, sent: list[tuple[str, bytes]]) -> None:
    parties = Parties(folder, SITES)
    parties.run(config(folder), folder / "run")
    assert not parties.errors
    lines = [line for name in SITES for line in audit.lines(folder / f"at-{name}" / audit.FILE)]
    assert [line for line in lines if not line.linked or line.entry is None] == []
    out = [line.entry for line in lines if line.entry is not None and line.entry["direction"] == "out"]
    left = sorted(hashlib.sha256(letter).hexdigest() for letter in letters(sent) if letter)
    assert left == sorted(entry["sha256"] for entry in out)
    other = [(route, body) for route, body in sent if route != "push-object"]
    assert max(len(body) for _, body in other) < SMALL
    assert {entry["kind"] for entry in out} == {"consent", "upload", "scores"}
    bodies = b"".join(body for _, body in sent)
    assert [row for row in PATIENTS["ann"] if row["text"].encode() in bodies or row["patient"].encode() in bodies] == []
    # In clear, as an owner reads it.
    text = "\n".join(account.account(audit.lines(folder / "at-north" / audit.FILE)))
    assert "consented: ann (20), class names neg, pos" in text
    assert "2 uploads" in text
    count = len(next(entry for entry in out if entry["kind"] == "upload")["content"]["tensors"])
    (names,) = {line.partition("tensors: ")[2] for line in text.splitlines() if "  tensors: " in line}
    assert names.count(", ") == 3
    assert names.endswith(f" and {count - 4} more")
    assert "each line follows the one before it" in text
    written = "\n".join(account.letters(audit.lines(folder / "at-north" / audit.FILE)))
    assert "head:classifier.bias" in written
    assert "examples 15" in written


@pytest.mark.slow
def test_audit_that_was_changed(folder: Path) -> None:
    Parties(folder, SITES).run(config(folder, rounds=1), folder / "run")
    beating = [thread for thread in threading.enumerate() if thread.name == "heartbeat"]
    for thread in beating:
        thread.join(5)
    assert [thread for thread in beating if thread.is_alive()] == [], "a site that has gone says that it is there"
    file = folder / "at-north" / audit.FILE
    lines = file.read_bytes().splitlines(keepends=True)
    for changed, fault in (
        (lines, ""),
        ([*lines[:2], lines[2].replace(b'"bytes": ', b'"bytes": 1'), *lines[3:]], "line 4 does not follow"),
        ([*lines[:2], *lines[3:]], "line 3 does not follow"),
        ([*lines, lines[-1][:40]], f"line {len(lines) + 1} is not whole"),
        (lines[:-1], "does not end with the line that the site wrote last"),
    ):
        file.write_bytes(b"".join(changed))
        (*_, verdict) = account.account(audit.lines(file))
        assert fault in verdict
        assert ("each line follows" in verdict) == (not fault)
    # After a crash in the middle of a line the audit goes on.
    file.write_bytes(b"".join([*lines, lines[-1][:40]]))
    audit.Audit(file).note("out", "reason", b"x", {})
    *_, torn, last = audit.lines(file)
    assert torn.entry is None
    assert last.linked
    assert last.entry is not None


def test_audit_is_whole_after_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = audit.Audit(tmp_path / "letters.jsonl")
    kept.note("out", "upload", b"first", {})
    real, room = os.write, [100, 0]

    def write(descriptor: int, data: Any) -> int:
        if (left := room.pop(0)) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, bytes(data[:left]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            kept.note("out", "upload", b"never leaves", {})
    for letter in (b"second", b"third"):
        kept.note("out", "upload", letter, {})
    lines = list(audit.lines(kept.path))
    assert [line for line in lines if not line.linked or line.entry is None] == []
    assert len(lines) == kept.left() == audit.Audit(kept.path).left() == 3


def test_label_column_that_is_not_allowed(folder: Path, sent: list[tuple[str, bytes]]) -> None:
    """The whole way: the server's run ends, and no value of the column left either site."""
    parties = Parties(folder, SITES, options={"contract": OPEN})
    wanted = config(folder, task={"label": "patient"}, data={"validation_fraction": 0.25, "test_split": ""})
    with pytest.raises(ConfigError):
        parties.run(wanted, folder / "run", answered=("north", "south"))
    assert "label columns: patient" in "\n".join(parties.told)
    assert b"Patient" not in b"".join(body for _, body in sent)


@pytest.mark.slow
def test_plan_is_shown_and_nothing_leaves(folder: Path, sent: list[tuple[str, bytes]]) -> None:
    shown: list[Any] = []

    def look(told: str) -> None:
        if told.startswith("listening on "):
            port = told.split(":")[1].split()[0]
            own = SiteSetup(
                f"localhost:{port}",
                folder / "keys" / "north",
                folder / "data" / "north",
                folder / "look",
                contract(),
                "cpu",
                str(folder / "bert"),
            )
            threading.Thread(target=lambda: shown.append(show_plan(own)), daemon=True).start()

    parties = Parties(folder, {})
    parties.told = _Calling(look)
    with pytest.raises(ConfigError):
        parties.run(config(folder), folder / "run", wait=6.0)
    (offer,) = shown
    assert [term for term in offer.terms if not term.kept] == []
    assert "class names" in {term.subject for term in offer.terms}
    assert "an upload of" in "\n".join(offer.leaving)
    assert [route for route, _ in sent if route.startswith("push")] == [], "a letter left"
    assert not (folder / "look" / audit.FILE).exists()


class _Calling(list[str]):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    def append(self, line: str) -> None:
        super().append(line)
        self._call(line)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["full disk", "exhausted"])
def test_site_that_cannot_let_letters_leave(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """It says so, stays, and goes on when it can; the run ends as if nothing had been."""
    monkeypatch.setattr(site, "_WITHHELD", 0.5)
    real, left = audit.Audit.note, {"ann": 2}

    def note(self: audit.Audit, direction: Any, kind: str, *args: Any, **options: Any) -> None:
        if "at-north" in str(self.path) and direction == "out" and kind == "upload" and left["ann"] > 0:
            left["ann"] -= 1
            if fault == "full disk":
                raise OSError(errno.ENOSPC, "No space left on device")
            raise site.Exhausted("outgoing.letters_per_day = 1 of the contract is reached")
        real(self, direction, kind, *args, **options)

    monkeypatch.setattr(audit.Audit, "note", note)
    parties = Parties(folder, SITES)
    result = parties.run(config(folder), folder / "run", patience=60.0)
    assert not parties.errors
    assert [record["clients"] for record in result.history] == [2, 2]
    assert sum("nothing leaves now" in line for line in parties.told) == 1
    entries = [json.loads(line) for line in (folder / "at-north" / audit.FILE).read_text().splitlines()]
    assert sum(entry["kind"] == "upload" for entry in entries) == 2


def test_contract_of_the_default_runs_over_the_line(folder: Path) -> None:
    own = contract(rows={"labels": ["label", "who"]})
    assert isinstance(own, Contract)
    parties = Parties(folder, SITES, options={"contract": own})
    began = time.monotonic()
    result = parties.run(config(folder), folder / "run")
    assert not parties.errors
    assert len(result.history) == 2
    assert time.monotonic() - began < 120


def test_day_of_an_audit_ends_at_midnight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next day has limits of its own, in the program that saw midnight and in the next one. A letter that was begun
    the day before is not counted in the new one; a run's seconds go on."""
    kept = audit.Audit(tmp_path / "letters.jsonl")
    kept.note("out", "upload", b"today", {}, run="r", seconds=2.0)
    assert (kept.left(), kept.left("upload"), kept.bytes("out")) == (1, 1, 5)
    monkeypatch.setattr(audit, "today", lambda: "2999-01-01")
    assert (kept.left(), kept.left("upload"), kept.bytes("out")) == (0, 0, 0)
    kept.note("out", "upload", b"before midnight", {}, run="r", seconds=3.0)
    for counted in (kept, audit.Audit(kept.path)):
        assert (counted.left(), counted.bytes("out"), counted.seconds("r")) == (0, 0, 5.0)


def test_account_tells_scores_from_answers_without_them() -> None:
    def line(number: int, scores: Any) -> audit.AuditLine:
        content = {"scores": scores, "loss": None}
        entry = {"time": "2026-01-02T03:04:05", "run": "r", "direction": "out", "kind": "scores", "bytes": 100}
        return audit.AuditLine(number, {**entry, "client": "ann", "round": 0, "content": content}, True)

    text = "\n".join(account.account([line(1, {"global": {"loss": 0.5}}), line(2, {})]))
    assert "1 letters with scores (100 B), such as {global: {loss: 0.5}}" in text
    assert "1 answers without the scores asked for (100 B)" in text
    assert "such as {}" not in "\n".join(account.account([line(1, {})]))
