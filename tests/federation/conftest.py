"""Letters of an honest server, and desks that answer them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from desk_line import SITES
from desks import Make
from intruder import Line, line
from parties import OPEN, ROWS, Parties, configuration, write_sites

from rondo.data.files.room import Room
from rondo.data.sources import read_rows
from rondo.engine.server.ledger import Ledger
from rondo.engine.wire.letters import Request
from rondo.federation.plan import Plan
from rondo.federation.site import desk as desks
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.desk import Desk
from rondo.runs.assembling.assembly import Assembly
from small_runs import write_rows


@pytest.fixture(autouse=True)
def undrawn(no_pictures: None) -> None:
    """No run of a federation composes pictures."""


@pytest.fixture
def beat(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the seconds of which a refusal takes a multiple, whatever it read."""
    return lambda seconds: monkeypatch.setattr(desks, "_BEAT", seconds)


@pytest.fixture
def refusals_at_once(beat: Callable[[float], None]) -> None:
    beat(0.01)


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """A SuperLink that serves two sites."""
    with line(tmp_path_factory.mktemp("line") / "keys") as made:
        yield made


@pytest.fixture(scope="module")
def place(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the base model, and the keys and rows of the sites of a :class:`desk_line.DeskLine`."""
    path = tmp_path_factory.mktemp("three")
    shutil.copytree(bert, path / "bert")
    write_sites(path, SITES)
    return path


@pytest.fixture(scope="session")
def sites(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the base model, and the keys and rows of the sites. Tests get a copy: ``folder``."""
    path = tmp_path_factory.mktemp("sites")
    shutil.copytree(bert, path / "bert")
    write_sites(path)
    return path


@pytest.fixture
def folder(sites: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sites, tmp_path, dirs_exist_ok=True))


@pytest.fixture(scope="module")
def letters(sites: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A folder with the base model, and the letters of an honest server to the client ann. They have all tensors, as if
    ann made none herself."""
    folder = Path(shutil.copytree(sites, tmp_path_factory.mktemp("letters"), dirs_exist_ok=True))
    heard: dict[str, bytes] = {}
    real = Desk.answer

    def noted(self: Desk, kind: str | None, letter: bytes) -> bytes:
        if "ann" in self.rows and kind is not None:
            scores = kind == "round" and Request.decode(letter).scores
            heard["scores" if scores else kind] = letter  # the last plan has the labels
        return real(self, kind, letter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Desk, "answer", noted)
        patch.setattr(Assembly, "ledger", lambda self, first: Ledger())
        Parties(folder).run(configuration(folder, rounds=1), folder / "run")
    return folder, heard


@pytest.fixture(scope="module")
def plan(letters: tuple[Path, dict[str, bytes]]) -> Plan:
    return Plan.decode(letters[1]["plan"])


@pytest.fixture(scope="module")
def request_(letters: tuple[Path, dict[str, bytes]]) -> Request:
    return Request.decode(letters[1]["round"])


@pytest.fixture
def desk(letters: tuple[Path, dict[str, bytes]]) -> Make:
    """Makes the desk of ann's site in a folder, by default with the owner's copy of the base model."""

    def make(
        folder: Path,
        told: list[str] | None = None,
        contract: Contract = OPEN,
        rows: Any = ROWS["ann"],
        consent: Any = lambda offer: True,
        **options: Any,
    ) -> Desk:
        write_rows(folder / "ann.csv", rows)
        own = {"ann": read_rows(folder / "ann.csv", "--data", Room())}
        model = {"model": str(letters[0] / "bert"), **options}
        heard = [] if told is None else told
        return Desk(own, folder / "state", "cpu", contract, consent, heard.append, threading.Event(), **model)

    return make
