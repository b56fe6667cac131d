"""A server that sends sites different models has no sum: the others' changes would be known, and the sum one upload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from desk_line import DeskLine, desk_of
from parties import OPEN
from test_masked_kills import served

from rondo.engine.wire.letters import Request
from rondo.engine.wire.masked import AskReady
from rondo.engine.wire.parcel import version
from rondo.errors import RunStopped


class Zeros(DeskLine):
    """Tensors of zeros to every site but one."""

    victim = "north"

    def _answer(self, site: str, kind: str, letter: bytes) -> bytes | None:
        if kind == "round" and site != self.victim:
            request = Request.decode(letter)
            (party,) = self._desks[site].parties.values()
            start = party.start(request.client).params if party.start is not None else party.holdings.params
            zeros = {name: torch.zeros_like(start[name]) for name in request.parcel.versions}
            versions = {name: version(tensor) for name, tensor in zeros.items()}
            letter = replace(request, parcel=replace(request.parcel, versions=versions, params=zeros)).encode()
        return super()._answer(site, kind, letter)


def test_zeros_to_all_sites_but_one_open_no_sum(place: Path, tmp_path: Path) -> None:
    line = Zeros(place, tmp_path)
    with pytest.raises(RunStopped):
        served(place, line, tmp_path / "run")
    assert {kind for _, kind, _, _ in line.heard} == {"plan", "round", "ready", "end"}
    others = {site for site in ("south", "west") if any(line.startswith(f"{site} is in no sum") for line in line.told)}
    assert others == {"south", "west"}
    assert "wrong_plan: it has another plan, or was sent another model" in " ".join(line.told)


@pytest.mark.slow
def test_contract_that_asks_for_more_sites_raises_the_threshold(place: Path, tmp_path: Path) -> None:
    contract = OPEN.model_copy(update={"training": OPEN.training.model_copy(update={"least_sites": 3})})
    line = DeskLine(place, tmp_path)
    line._desks["south"] = desk_of(place, tmp_path, "south", line.told.append, contract)
    result = served(place, line, tmp_path / "run")
    ready = [AskReady.decode(letter) for _, kind, letter, _ in line.heard if kind == "ready"]
    assert {letter.threshold for letter in ready} == {3}
    assert [record["skipped"] for record in result.history] == [None, None]
