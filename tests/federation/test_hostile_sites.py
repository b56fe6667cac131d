"""A federation in which one site lies: the run goes on, and its adapter is that of a run without the liar."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from liars import lying
from parties import LABELS, ROWS, SITES, Parties, configuration, until, write_sites

import rondo
from rondo.engine.wire import letters
from rondo.engine.wire.letters import Reply
from rondo.federation.plan import Consent, Plan
from rondo.federation.server import sites as sites_module
from rondo.federation.server.sites import Sites
from rondo.federation.site.desk import Desk
from small_runs import Watch, save_tiny_bert, write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("liars")
    save_tiny_bert(path / "bert")
    write_sites(path)
    for client in SITES["south"]:
        write_rows(path / "data" / "honest" / f"{client}.csv", ROWS[client])
    return path


config = partial(configuration, task=LABELS, clients={"min_clients": 1})


def upload_of(reply: bytes) -> bytes:
    return Reply.decode(reply).upload


LIES: list[tuple[str, Callable[[bytes, list[bytes]], bytes]]] = [
    ("unreadable", lambda reply, before: b""),
    ("unreadable", lambda reply, before: b"\0" * 100_000),
    ("corrupt", lambda reply, before: Reply().encode()),
    ("wrong_round", lambda reply, before: before[0]),
    ("unreadable", lambda reply, before: bytes(range(256)) * 200_000),
    ("lacking", lambda reply, before: Reply(held={f"tensor {i}": "v" for i in range(10_000)}).encode()),
    ("failed", lambda reply, before: Reply(reason="\x1b[2J" * 1000, detail="x" * 10**6).encode()),
    ("corrupt", lambda reply, before: Reply(upload_of(reply)[:-1], 1.0).encode()),
    ("unreadable", lambda reply, before: Reply(scores={"clients": {}}).encode()[:-3]),
]
"""The reason that the server gives for a reply, and the reply from the honest one and those of before."""


@pytest.mark.slow
def test_replies_that_lie(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = config(folder, rounds=len(LIES) + 1)
    honest: list[bytes] = []
    told: list[int] = []

    def lie(desk: Any, kind: str | None, letter: bytes) -> bytes:
        reply: bytes = desk.answer(kind, letter)
        if kind != "round":
            return reply
        number = letters.Request.decode(letter).round.attempt
        told.append(number)
        honest.append(reply)
        return reply if number == 0 else LIES[number - 1][1](reply, honest)

    lying(monkeypatch, lie)
    result = Parties(folder, state=tmp_path).run(run, tmp_path / "run")
    assert [r["clients"] for r in result.history] == [3] + [2] * len(LIES)
    for record, (reason, _) in zip(result.history[1:], LIES, strict=True):
        (failure,) = record["failed"]
        assert failure["client"] == "ann"
        assert failure["reason"] == reason, (record["round"], failure)
        assert failure["detail"].isprintable()
        assert len(failure["detail"]) < 300
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))


CONSENTS: dict[str, tuple[str, Callable[[Plan], bytes]]] = {
    "another's client": ("not its clients", lambda plan: Consent({"ann": 15, "bob": 3}).encode()),
    "a client of nobody": ("not its clients", lambda plan: Consent({"\x1b[2Jzoe": 15}).encode()),
    "negative": ("unreadable", lambda plan: Consent({"ann": -15}).encode()),
    "huge": ("unreadable", lambda plan: Consent({"ann": 10**30}).encode()),
    "sums of three": ("the roster has 2 sites", lambda plan: Consent({"ann": 15}, fewest=3).encode()),
    "sums of none": ("unreadable", lambda plan: Consent({"ann": 15}, fewest=-1).encode()),
    "not JSON": ("unreadable", lambda plan: b"\xff" * 1000),
    "empty": ("unreadable", lambda plan: b""),
    "too large": ("unreadable", lambda plan: b" " * 30_000_000),
    "refusal of a megabyte": ("\\x1b", lambda plan: Consent({}, refused="\x1b[2J" * 200_000).encode()),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "a client of nobody" else pytest.mark.slow) for n in CONSENTS]
)
def test_consents_that_lie(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from rondo.errors import visible

    run = config(folder, rounds=1, algorithm={"name": "fedit"})
    reason, made = CONSENTS[name]

    def lie(desk: Any, kind: str | None, letter: bytes) -> bytes:
        return made(Plan.decode(letter)) if kind == "plan" else desk.answer(kind, letter)

    lying(monkeypatch, lie)
    parties = Parties(folder, state=tmp_path)
    result = parties.run(run, tmp_path / "run", answered=("north", "south"))
    assert [r["clients"] for r in result.history] == [2]
    (line,) = [line for line in parties.told if line.startswith("north takes no part")]
    assert reason in visible(line)
    assert len(line) < 1000


@pytest.mark.slow
def test_labels_that_lie(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site whose labels are no labels takes no part, and the others are not made to wait for a million classes."""

    def lie(desk: Any, kind: str | None, letter: bytes) -> bytes:
        if kind == "plan":
            return Consent({}, labels=tuple(f"label {i}" for i in range(10**5))).encode()
        return desk.answer(kind, letter)

    lying(monkeypatch, lie)
    run = config(folder, rounds=1)
    del run["task"]["labels"]
    with pytest.raises(rondo.ConfigError, match=r"not all labels are known(.|\n)*north \(ann\): refuses"):
        Parties(folder, state=tmp_path).run(run, tmp_path / "run", answered=("north",))


@pytest.mark.slow
def test_many_labels_in_all(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Desk.answer

    def answer(self: Desk, kind: str | None, letter: bytes) -> bytes:
        if kind == "plan":
            return Consent({}, labels=tuple(f"{next(iter(self.rows))} {i}" for i in range(900))).encode()
        return real(self, kind, letter)

    monkeypatch.setattr(Desk, "answer", answer)
    run = config(folder, rounds=1)
    del run["task"]["labels"]
    with pytest.raises(rondo.ConfigError, match="1800 distinct labels"):
        Parties(folder, state=tmp_path).run(run, tmp_path / "run")


@pytest.mark.slow
def test_scores_that_lie(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lies = [
        {"clients": {"accuracy": 1e99, "f1": 1e99, "matthews": 1e99, "loss": -1e99, "examples": 10**99}},
        {"clients": {}},
        {"clients": {"f1": 1.0}},
        {"other": {"accuracy": 1.0}},
        {"clients": {"accuracy": None}},
        {},
        {"clients": {"accuracy": 0.5}, "fine_tuned": {"accuracy": 0.5}},
    ]

    def lie(desk: Any, kind: str | None, letter: bytes) -> bytes:
        if kind == "round":
            request = letters.Request.decode(letter)
            if request.scores:
                return Reply(scores=lies[request.round.attempt % len(lies)]).encode()
        return bytes(desk.answer(kind, letter))

    lying(monkeypatch, lie)
    run = config(folder, rounds=len(lies), evaluation={"clients_every": 1})
    result = Parties(folder, state=tmp_path).run(run, tmp_path / "run")
    assert [r["clients"] for r in result.history] == [3] * len(lies)
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())


@pytest.mark.slow
def test_consents_and_never_answers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()

    def lie(desk: Any, kind: str | None, letter: bytes) -> bytes:
        if kind == "round":
            gone.wait(60)
        return bytes(desk.answer(kind, letter))

    lying(monkeypatch, lie)
    parties = Parties(folder, state=tmp_path)
    began = time.monotonic()
    run = config(folder, rounds=2, clients={"deadline": 10.0, "min_clients": 1})
    result = parties.run(run, tmp_path / "run", observer=Watch(done=lambda done: done == 2 and gone.set()))
    assert [r["clients"] for r in result.history] == [2, 2]
    assert [f["reason"] for r in result.history for f in r["failed"]] == ["no_answer"] * 2
    assert time.monotonic() - began < 60


# --- the server's view of sites, without a network ----------------------------------------------------------------


class Wire:
    """A line to one site, which comes and goes as a test says. It stands in for a SuperLink."""

    def __init__(self) -> None:
        self.since: str | None = None
        self.open: dict[str, tuple[str, bytes]] = {}
        self.sent = 0
        self.answers: Callable[[str, bytes], bytes | None] = lambda kind, letter: None

    def present(self) -> dict[str, str]:
        return {} if self.since is None else {"north": self.since}

    def send(self, site: str, kind: str, letter: bytes, seconds: float, largest: int) -> str:
        self.sent += 1
        self.open[str(self.sent)] = (kind, letter)
        return str(self.sent)

    def reply(self, number: str) -> bytes | None:
        if number not in self.open:
            return None
        answer = self.answers(*self.open[number])
        if answer is not None:
            del self.open[number]
        return answer

    def forget(self, number: str) -> None:
        self.open.pop(number, None)

    def wait(self, after: int, seconds: float) -> int:
        time.sleep(min(seconds, 0.02))
        return after


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Wire, Sites]]:
    monkeypatch.setattr(sites_module, "_LOOK", 0.01)
    wire, told = Wire(), []
    made = Sites(
        wire,  # type: ignore[arg-type]
        {"ann": "north"},
        deadline=None,
        patience=0.2,
        stop=threading.Event(),
        told=told.append,
    )
    yield wire, made
    made.close(None)


PLAN = Plan("run", {}, (), ("a", "b"), "", "", 1)


@pytest.mark.slow
def test_site_that_connects_again_and_again_leaves_nothing(wire: tuple[Wire, Sites]) -> None:
    line, sites = wire
    sites.offer(PLAN)
    for i in range(20):
        line.since, before = f"start {i}", line.sent
        until(lambda before=before: line.sent > before)
    assert len(line.open) == 1, "plans that nobody will answer are kept"
    sites.offer(replace(PLAN, run="another"))
    before = line.sent
    until(lambda: line.sent > before)
    assert len(line.open) == 1


def test_labels_of_all_sites_are_waited_for_and_no_longer(
    wire: tuple[Wire, Sites], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    from rondo.config.load import load
    from rondo.federation.server import gathering

    line, sites = wire
    line.answers = lambda kind, letter: Consent({"ann": 3}, labels=("b", "a")).encode()
    line.since = "start 0"
    known: list[tuple[str, ...]] = []

    def loaded(config: Any, device: str, labels: tuple[str, ...]) -> Any:
        known.append(labels)
        return SimpleNamespace(labels=labels, model_sha256="")

    monkeypatch.setattr(gathering, "loaded", loaded)
    run = config(folder, rounds=1)
    del run["task"]["labels"]
    began = time.monotonic()
    gathering.started(load(run, check_paths=False), "cpu", None, sites, "run", {"ann": "north"}, 8.0, lambda text: None)
    assert time.monotonic() - began < 8.0
    assert known == [("b", "a")]


@pytest.mark.parametrize("waits", ["for sites", "for replies"])
def test_server_that_can_welcome_nobody_ends(wire: tuple[Wire, Sites], waits: str) -> None:
    """Whatever the fault: it would wait for ever."""
    line, sites = wire
    line.answers = lambda kind, letter: Consent({"ann": 3}).encode() if kind == "plan" else None
    line.since = "start 0"
    sites.offer(PLAN)
    until(lambda: bool(sites.present()))
    sites.send("ann", b"work", 100)
    line.since = "start 1"
    sites._computes = lambda *_: [][0]
    with pytest.raises(IndexError):
        sites.wait(10.0, lambda: False) if waits == "for sites" else list(sites.replies())


def test_site_that_comes_back_and_answers_nothing_is_not_waited_for(wire: tuple[Wire, Sites]) -> None:
    """Its disk is full: it connects, cannot put a letter down in its audit, and goes until it looks again."""
    line, sites = wire
    line.answers = lambda kind, letter: Consent({"ann": 3}).encode() if kind == "plan" and line.sent == 1 else None
    line.since = "start 0"
    sites.offer(PLAN)
    until(lambda: bool(sites.present()))
    over = threading.Event()

    def come_and_go() -> None:
        for i in itertools.count(1):
            line.since = None if i % 2 else f"start {i}"
            if over.wait(0.05):
                return

    coming = threading.Thread(target=come_and_go, daemon=True)
    sites.send("ann", b"work", 100)
    coming.start()
    ended = threading.Event()
    waiting = threading.Thread(target=lambda: (list(sites.replies()), ended.set()), daemon=True)
    waiting.start()
    assert ended.wait(10.0)
    over.set()
    coming.join()


@pytest.mark.slow
def test_site_that_dies_of_every_letter_does_not_hold_up_the_run(wire: tuple[Wire, Sites]) -> None:
    """It is started anew each time, asked anew, and dies of it again."""
    line, sites = wire
    line.answers = lambda kind, letter: Consent({"ann": 3}).encode() if kind == "plan" else None
    line.since = "start 0"
    sites.offer(PLAN)
    until(lambda: bool(sites.present()))
    over = threading.Event()

    def restart() -> None:
        i = 0
        while not over.wait(0.15):
            i += 1
            line.since = f"start {i}"

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        sites.send("ann", b"work", 100)
        began = time.monotonic()
        assert list(sites.replies()) == []
        assert time.monotonic() - began < 20
    finally:
        over.set()
        thread.join()


def test_site_that_comes_back_and_refuses_does_not_hold_up_the_run(wire: tuple[Wire, Sites]) -> None:
    """It was started anew in the middle of a round, with other limits or other data."""
    line, sites = wire
    consent = Consent({"ann": 3})
    line.answers = lambda kind, letter: consent.encode() if kind == "plan" else None
    line.since = "start 0"
    sites.offer(PLAN)
    until(lambda: bool(sites.present()))
    sites.send("ann", b"work", 100)
    consent = Consent({}, refused="its data are others than before")
    line.since = "start 1"
    timer = threading.Timer(10, sites._stop.set)
    timer.start()
    assert list(sites.replies()) == []
    timer.cancel()


def test_site_that_has_just_come_back_is_asked(wire: tuple[Wire, Sites]) -> None:
    """A round may begin before it has consented anew; its letter waits for that."""
    line, sites = wire
    consenting = True
    replies = {"plan": Consent({"ann": 3}).encode(), "round": b"done"}
    line.answers = lambda kind, letter: replies[kind] if consenting else None
    line.since = "start 0"
    sites.offer(PLAN)
    until(lambda: bool(sites.present()))
    consenting, line.since = False, "start 1"
    time.sleep(0.1)
    assert sites.consents() == {}
    assert sites.present() == {"ann": 3}
    sites.send("ann", b"work", 100)
    threading.Timer(0.2, lambda: line.__dict__.update(answers=lambda kind, letter: replies[kind])).start()
    assert list(sites.replies()) == [("ann", b"done")]
    line.since = None
    until(lambda: not sites.present())
