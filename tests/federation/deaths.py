"""A federation of processes, of which one ends by SIGKILL at a moment of a masked sum.

The moment is planted in that process before its program begins; the product knows nothing of it. Processes are forked
from one that has imported the program, which saves some seconds each.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Self

import peft  # noqa: F401  imported once for all processes, as the model's module
import pytest
import transformers.models.bert.modeling_bert  # noqa: F401
from desk_line import SITES
from parties import OPEN

from rondo.algorithm import Round
from rondo.federation.server.line.superlink import SuperLink
from rondo.federation.server.listening import Listening
from rondo.federation.server.masked_rounds import MaskedRounds
from rondo.federation.server.run import resume, serve
from rondo.federation.server.sites import Sites
from rondo.federation.site import run as site_run
from rondo.federation.site.audit.audit import FILE, Audit, lines
from rondo.federation.site.desk import Desk
from rondo.federation.site.line.supernode import SuperNode
from rondo.federation.site.run import SiteSetup, take_part
from rondo.records import durable
from rondo.report import drawing, pictures

PATIENCE = 120.0
"""Seconds after which a test waits no longer."""
ATTEMPT = 1
"""The attempt in which a program dies: the disks have the state of the one before, and another follows."""
_ANSWERS = {"round": "trained", "ready": "key", "masked": "masked vector", "unmask": "shares"}
"""How a site's audit calls its answer to each kind of letter."""


@dataclass
class Death:
    """The end of a program at the letter of ``kind``.

    ``moment``, at a site: ``"before"`` the letter is noted; ``"half of FILE"``, while that file is written;
    ``"written"``: all is on the disk, and nothing has left; ``"leaving"``: nothing of the answer is there;
    ``"after"`` it.

    At the server: ``"before"`` the first site is asked; ``"in"``: one site has answered, and no other is asked;
    ``"after"`` all have answered; ``"half of FILE"``, which is written before ``ready``, or after another letter.
    """

    kind: str
    moment: str
    at: tuple[int | None, str] = (None, "")
    """Attempt and kind of the last letter."""

    def plant_in_site(self) -> None:
        answer, note, push, ask = Desk.answer, Audit.note, SuperNode.answer, SuperNode._ask

        def answered(desk: Desk, kind: str | None, letter: bytes) -> bytes:
            self.at = None, kind or ""
            data = answer(desk, kind, letter)
            self._strike("written")
            return data

        def noted(audit: Audit, direction: Any, *given: Any, **facts: Any) -> None:
            if direction == "in":
                self.at = facts.get("round"), self.at[1]
                self._strike("before")
            note(audit, direction, *given, **facts)

        def pushed(*given: Any) -> None:
            push(*given)
            self._strike("after")

        def asked(node: SuperNode, route: str, *given: Any) -> Any:
            if route == "push-object":
                self._strike("leaving")
            return ask(node, route, *given)

        Desk.answer, Audit.note = answered, noted  # type: ignore[method-assign]
        SuperNode.answer, SuperNode._ask = pushed, asked  # type: ignore[method-assign]
        self._plant_in_files()

    def plant_in_server(self, work: Path) -> None:
        """``work``: the folder with the states of the sites."""
        exchange, send, replies = MaskedRounds.exchange, SuperLink.send, Sites.replies
        first: dict[tuple[int | None, str], str] = {}

        def exchanged(transport: MaskedRounds, round: Round, work: Any) -> Iterator[Any]:
            self.at = round.attempt, "round"
            yield from exchange(transport, round, work)

        def sent(link: SuperLink, site: str, kind: str, *given: Any) -> str | None:
            if kind in _ANSWERS:
                self.at = self.at[0], kind
                self._strike("before")
                if first.setdefault(self.at, site) != site and self._is("in"):
                    state, letter = work / f"at-{first[self.at]}", (ATTEMPT, _ANSWERS[kind])
                    _until(lambda: letter in [(e["round"], e["kind"]) for e in left(state)], "the first site to answer")
                    _die()
            return send(link, site, kind, *given)

        def replied(sites: Sites) -> Iterator[tuple[str, bytes]]:
            try:
                yield from replies(sites)
            finally:
                self._strike("after")
                if self.at[1] == "round":
                    self.at = self.at[0], "ready"

        MaskedRounds.exchange = exchanged  # type: ignore[method-assign]
        SuperLink.send, Sites.replies = sent, replied  # type: ignore[method-assign]
        self._plant_in_files()

    def _plant_in_files(self) -> None:
        """Half of a file is what is on the disk of a program that dies while it writes."""
        write, replace = durable._write, durable._replace

        def written(path: Path, content: bytes, start: int) -> None:
            if self._is(f"half of {path.name.removesuffix(durable.TEMPORARY)}"):
                write(path, content[: len(content) // 2], start)
                _die()
            write(path, content, start)

        def replaced(source: Path, target: Path) -> None:
            if self._is(f"half of {target.name}"):
                os.truncate(source, source.stat().st_size // 2)
                _die()
            replace(source, target)

        durable._write, durable._replace = written, replaced

    def _is(self, moment: str) -> bool:
        return (self.at, moment) == ((ATTEMPT, self.kind), self.moment)

    def _strike(self, moment: str) -> None:
        if self._is(moment):
            _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- within a process -------------------------------------------------------------------------------------------------


def _site(place: Path, work: Path, name: str, port: int, death: Death | None) -> None:
    _begin(work / name)
    if death is not None:
        death.plant_in_site()
    rows, keys, model = place / "data" / name, place / "keys" / name, str(place / "bert")
    setup = SiteSetup(f"localhost:{port}", keys, rows, work / f"at-{name}", OPEN, "cpu", model)
    take_part(setup, asked=lambda offer: True, told=_told)


def _server(place: Path, work: Path, config: dict[str, Any] | None, death: Death | None) -> None:
    """``config``: of a new run; None goes on with the one there is."""
    _begin(work / "server")
    present, replies = SuperLink.present, Sites.replies

    def here(link: SuperLink) -> dict[str, str]:
        return {name: since for name, since in present(link).items() if not (work / f"{name} is gone").exists()}

    def all_replies(sites: Sites) -> Iterator[tuple[str, bytes]]:
        """No site is too slow to be asked for its shares."""
        unmask = any(letter.kind == "unmask" for letter in sites._waiting)
        yield from list(replies(sites)) if unmask else replies(sites)

    SuperLink.present, Sites.replies = here, all_replies  # type: ignore[method-assign]
    if death is not None:
        death.plant_in_server(work)
    if config is None:
        resume(work / "run", told=_told)
    else:
        way = Listening(place / "keys" / "server", "127.0.0.1", 0, wait=PATIENCE, patience=0.2)
        serve(config, way, run_dir=work / "run", device="cpu", told=_told)


def _begin(log: Path) -> None:
    """The conditions of every test, in a process that pytest has not prepared."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.fsync = os.fstat  # type: ignore[assignment]  # what is written outlives its process
    site_run.AGAIN = 0.1  # type: ignore[attr-defined]
    for name in ("partition", "curve", "contact_sheet"):
        setattr(pictures, name, lambda *_: None)
    drawing.png = lambda figure: b"a picture"


def _told(line: str) -> None:
    print(line, flush=True)


# --- in the test ------------------------------------------------------------------------------------------------------


@dataclass
class Programs:
    """A server and the sites of :mod:`desk_line`, each a process, until the end of a context.

    ``place``: the folder of the fixture of that name.
    ``work``: for states, logs and the run directory.
    """

    place: Path
    work: Path
    running: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            process.kill()

    def begin(self, config: dict[str, Any], **deaths: Death) -> None:
        """Start all of them. ``deaths``: by ``server`` or a site."""
        self._fork("server", _server, config, deaths.get("server"))
        _until(lambda: "listening on" in self.log("server"), "the server")
        for name in SITES:
            self._fork(name, _site, name, self._port, deaths.get(name))

    def again(self, name: str) -> None:
        """Start a program that was killed."""
        self._fork(name, *((_server, None, None) if name == "server" else (_site, name, self._port, None)))

    def must_die(self, name: str) -> None:
        """Wait until a program has killed itself."""
        process = self.running.pop(name)
        process.join(PATIENCE)
        assert process.exitcode == -signal.SIGKILL, f"{name} ended by {process.exitcode}: {self.log(name)}"

    def is_gone(self, site: str) -> None:
        """Let the server see at once what it would see after a minute without a sign of life."""
        (self.work / f"{site} is gone").touch()

    def end(self) -> None:
        """Wait for all that are running, which must end well."""
        for name in list(self.running):
            self.running[name].join(PATIENCE)
            assert self.running.pop(name).exitcode == 0, f"{name}: {self.log(name)}"
            assert "Traceback" not in self.log(name)

    def log(self, name: str) -> str:
        path = self.work / name
        return path.read_text() if path.exists() else ""

    @property
    def _port(self) -> int:
        return int(self.log("server").split("listening on 127.0.0.1:")[1].split()[0])

    def _fork(self, name: str, program: Callable[..., None], *given: Any) -> None:
        process = _context().Process(target=program, args=(self.place, self.work, *given), daemon=True)
        self.running[name] = process
        process.start()


def _context() -> Any:
    """Where processes come from: one without threads that has imported this module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    return context


def _until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def left(state: Path) -> list[dict[str, Any]]:
    """The letters that have left a site with the folder ``state``, by its audit."""
    return [letter for letter in _letters(state) if letter["direction"] == "out"]


def opened(state: Path) -> set[tuple[int, int, tuple[str, ...]]]:
    """Attempt, session and sites of each set whose shares a site has opened."""
    letters = _letters(state)
    answered = [asked for asked, answer in pairwise(letters) if answer["kind"] == "shares"]
    return {(e["round"], e["content"]["session"], tuple(e["content"]["sites"])) for e in answered}


def _letters(state: Path) -> list[dict[str, Any]]:
    path = state / FILE
    return [dict(line.entry) for line in lines(path) if line.entry is not None] if path.exists() else []
