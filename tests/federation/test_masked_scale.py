"""The scale of weights is that of the moment at which a round begins, though a larger client comes while it goes on."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from desk_line import SITES, DeskLine
from parties import write_sites
from simulations import simulated
from test_masked_kills import listening, run_of

from outcomes import weights
from rondo.federation.server.run import serve

pytestmark = pytest.mark.slow


class LateLine(DeskLine):
    """West, whose client has the most rows, comes while the others mask in the first round."""

    def present(self) -> dict[str, str]:
        here = dict(super().present())
        if not self.come:
            del here["west"]
        return here

    come = False

    def reply(self, number: str) -> bytes | None:
        if self.come and threading.current_thread() is threading.main_thread():
            end = time.monotonic() + 30
            while not any(line.startswith("west takes part") for line in list(self.told)):
                assert time.monotonic() < end, self.told
                time.sleep(0.01)
        return super().reply(number)


def test_scale_is_that_of_the_rounds_begin(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "bert")
    write_sites(tmp_path, SITES)

    def watch(site: str, kind: str, moment: str) -> None:
        if (site, kind, moment) == ("north", "masked", "before"):
            line.come = True

    line = LateLine(tmp_path, tmp_path, watch)
    with line.served():
        way = replace(listening(tmp_path), wait=0.5)
        result = serve(run_of(tmp_path), way, run_dir=tmp_path / "run", device="cpu", told=line.told.append)
    assert [r["clients"] for r in result.history] == [2, 3]
    without_cid = simulated(tmp_path, run_of(tmp_path), tmp_path / "simulation", lambda at: () if at else ("cid",))
    # Integers of another scale are rounded otherwise, and training of the second round makes more of it.
    torch.testing.assert_close(weights(result.run_dir), weights(without_cid.run_dir), rtol=0, atol=1e-4)
