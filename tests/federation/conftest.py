"""Letters of an honest server, and desks that answer them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from desks import Make
from parties import OPEN, ROWS, Parties, write_sites

from rondo.data.room import Room
from rondo.data.sources import read_rows
from rondo.engine.letters import Request
from rondo.federation.plan import Plan
from rondo.federation.site.contract import Contract
from rondo.federation.site.desk import Desk
from rondo.report import pictures
from small_runs import save_tiny_bert, settings, write_rows


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A folder with the base model, and the letters of an honest server to the client ann."""
    folder = tmp_path_factory.mktemp("letters")
    save_tiny_bert(folder / "bert")
    write_sites(folder)
    config = settings(
        folder / "bert",
        data={"test_source": str(folder / "data" / "test.csv"), "validation_fraction": 0.25},
        partition={"kind": None, "clients": None},
        simulation={"cohort": 1},
        rounds=1,
    )
    heard: dict[str, bytes] = {}
    real = Desk.answer

    def noted(self: Desk, kind: str | None, letter: bytes) -> bytes:
        if "ann" in self.rows and kind is not None:
            scores = kind == "round" and Request.decode(letter).scores
            heard["scores" if scores else kind] = letter  # the last plan has the labels
        return real(self, kind, letter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Desk, "answer", noted)
        for name in ("partition", "curve"):
            patch.setattr(pictures, name, lambda *_: b"")
        Parties(folder).run(config, folder / "run")
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
