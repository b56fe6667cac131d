"""A masked sum survives the death of a site or of the server: the same sum, or that without the site, or none. Programs
die within one process here, in training, beside sketches and at one letter; test_masked_processes.py has every letter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from desk_line import DeskLine, Killed
from parties import configuration
from simulations import simulated

import rondo
from outcomes import adapter
from rondo.federation.letter import SUMS
from rondo.federation.server.listening import Listening
from rondo.federation.server.run import resume, serve
from rondo.federation.site.sum_state import SumState

MASKED = {"adversary": "server", "secure_aggregation": True, "clip": 10.0}
KINDS = ("round", *SUMS)
MOMENTS = ("before", "in", "written", "after")
"""Before the letter comes; before its state is on the disk; after that; after the answer has left."""


def run_of(place: Path, **changes: Any) -> dict[str, Any]:
    task, train = {"labels": ["neg", "pos"]}, {"local_epochs": 1, "batch_size": 8}
    sections = {"privacy": MASKED, "task": task, "train": train, "clients": {"min_clients": 1}}
    return configuration(place, **{"rounds": 2, "algorithm": {"name": "rolora"}, **sections, **changes})


def algorithm(sketched: str | None) -> dict[str, Any]:
    """The changes of a run whose clients send two sketches of their products."""
    return {} if sketched is None else {"algorithm": {"name": sketched, "sketch": 4}}


@dataclass(frozen=True)
class Expected:
    """The adapters of simulations, each run when it is asked for."""

    place: Path
    folder: Path
    rounds: int = 2

    @cache  # noqa: B019
    def without_bob_in(self, *attempts: int, sketched: str | None = None) -> dict[str, bytes]:
        run_dir = self.folder / f"{sketched}-without-{''.join(map(str, attempts))}"
        run = run_of(self.place, rounds=self.rounds, **algorithm(sketched))
        return adapter(simulated(self.place, run, run_dir, without_bob(*attempts)).run_dir)


@pytest.fixture(scope="module")
def expected(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return Expected(place, tmp_path_factory.mktemp("simulations"))


def without_bob(*attempts: int) -> Callable[[int], Collection[str]]:
    """Who is away in an attempt: bob, in these."""
    return lambda attempt: ("bob",) if attempt in attempts else ()


def listening(place: Path) -> Listening:
    return Listening(place / "keys" / "server", "127.0.0.1", wait=30.0, patience=0.2)


def served(place: Path, line: DeskLine, run_dir: Path, **changes: Any) -> rondo.RunResult:
    with line.served():
        run = run_of(place, **changes)
        return serve(run, listening(place), run_dir=run_dir, device="cpu", told=line.told.append)


class Strike:
    """Kills bob's site, once, at the n-th letter of a kind."""

    def __init__(self, kind: str, moment: str, *, returns: bool, count: int = 1) -> None:
        self.kind, self.moment, self.returns, self.left = kind, moment, returns, count
        self.line: DeskLine | None = None
        self.now: str = ""

    def __call__(self, site: str, kind: str, moment: str) -> None:
        self.now = kind if site == "south" and moment == "before" else ""
        if site == "south" and kind == self.kind and moment == self.moment:
            self.hit()

    def hit(self) -> bool:
        self.left -= 1
        if self.left != 0:
            return False
        assert self.line is not None
        self.line.kill("south", returns=self.returns)
        return True

    @contextmanager
    def around_the_disk(self) -> Iterator[None]:
        """Within, the site dies while it writes."""

        def around(real: Callable[..., None]) -> Callable[..., None]:
            def write(state: SumState, content: Any) -> None:
                here = state.name == "south" and self.now == self.kind
                if here and self.moment == "in" and self.hit():
                    raise Killed
                real(state, content)
                if here and self.moment == "written" and self.hit():
                    raise Killed

            return write

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SumState, "save", around(SumState.save))
            patch.setattr(SumState, "keep", around(SumState.keep))
            yield


@pytest.mark.parametrize(
    ("kind", "moment", "returns"),
    [
        ("masked", "written", True),
        *(
            pytest.param("round", moment, returns, marks=pytest.mark.slow)
            for moment in MOMENTS
            for returns in (True, False)
        ),
    ],
)
def test_site_dies(place: Path, tmp_path: Path, expected: Expected, kind: str, moment: str, returns: bool) -> None:
    strike = Strike(kind, moment, returns=returns)
    line = strike.line = DeskLine(place, tmp_path, strike)
    with strike.around_the_disk():
        result = served(place, line, tmp_path / "run")
    assert strike.left <= 0
    assert [r["skipped"] for r in result.history] == [None, None]
    assert adapter(result.run_dir) == expected.without_bob_in(*(() if returns else (0, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flexlora", "fedex-lora"])
@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize(("kind", "moment"), [("round", "after"), ("masked", "written"), ("unmask", "before")])
def test_site_dies_beside_sketches(
    place: Path, tmp_path: Path, expected: Expected, kind: str, moment: str, returns: bool, name: str
) -> None:
    strike = Strike(kind, moment, returns=returns)
    line = strike.line = DeskLine(place, tmp_path, strike)
    with strike.around_the_disk():
        result = served(place, line, tmp_path / "run", **algorithm(name))
    assert strike.left <= 0
    missing = {True: (), False: (1,) if kind == "unmask" else (0, 1)}[returns]
    if (kind, moment) == ("round", "after") and not returns and result.history[0]["clients"] == 3:
        missing = (1,)
    assert adapter(result.run_dir) == expected.without_bob_in(*missing, sketched=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flexlora", "fedex-lora"])
@pytest.mark.parametrize("kind", KINDS)
def test_server_dies_beside_sketches(place: Path, tmp_path: Path, expected: Expected, kind: str, name: str) -> None:
    line = DeskLine(place, tmp_path, Dies(kind, "west", "after"))
    with pytest.raises(Killed):
        served(place, line, tmp_path / "run", **algorithm(name))
    with line.served():
        result = resume(tmp_path / "run", listening(place), told=line.told.append)
    assert adapter(result.run_dir) == expected.without_bob_in(sketched=name)
    assert [r["skipped"] for r in result.history] == [None, None]


class Dies:
    """Kills the server, once, at a letter to a site."""

    def __init__(self, kind: str, site: str, moment: str) -> None:
        self.at, self.left = (site, kind, moment), 1

    def __call__(self, site: str, kind: str, moment: str) -> None:
        if self.left and (site, kind, moment) == self.at:
            self.left = 0
            raise Killed


@pytest.mark.parametrize(
    ("kind", "site", "moment"),
    [
        ("unmask", "west", "after"),
        *(
            pytest.param("round", site, moment, marks=pytest.mark.slow)
            for site in ("north", "west")
            for moment in ("before", "after")
        ),
    ],
)
def test_server_dies_and_is_resumed(
    place: Path, tmp_path: Path, expected: Expected, kind: str, site: str, moment: str
) -> None:
    line = DeskLine(place, tmp_path, Dies(kind, site, moment))
    with pytest.raises(Killed):
        served(place, line, tmp_path / "run")
    with line.served():
        result = resume(tmp_path / "run", listening(place), told=line.told.append)
    assert adapter(result.run_dir) == expected.without_bob_in()
    assert [r["skipped"] for r in result.history] == [None, None]


@pytest.mark.slow
def test_server_that_lost_its_state_skips_the_round(place: Path, tmp_path: Path) -> None:
    """Its sites have opened a sum that it does not have any more. They open no other of this round."""
    line = DeskLine(place, tmp_path, Dies("unmask", "west", "after"))
    with pytest.raises(Killed):
        served(place, line, tmp_path / "run")
    (tmp_path / "run" / "sum.session").unlink()
    with line.served():
        result = resume(tmp_path / "run", listening(place), told=line.told.append)
    skipped = [r["skipped"] for r in result.history]
    assert skipped[0] is not None
    assert skipped[1] is None
    reasons = {f["detail"] for f in result.history[0]["failed"]}
    assert reasons == {"opened: 'a sum of this attempt was opened already'"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "fedsa-lora"}, "clients": {"per_round": 2}, "privacy": {**MASKED, "ring": 64}},
        {"server": {"optimizer": "adam"}, "clients": {"weighting": "uniform"}},
        {"algorithm": {"name": "fedsvd"}, "privacy": {**MASKED, "clip": 0.01}},
        {
            "privacy": {
                **MASKED,
                "unit": "example",
                "clip": 0.5,
                "upload_clip": 5.0,
                "noise": 1.0,
                "delta": 1e-5,
                "debug_seed": 5,
            },
            "clients": {"weighting": "uniform"},
            "train": {"local_epochs": 1, "batch_size": 4, "max_grad_norm": 0.0},
            "evaluation": {"diagnostics_every": 0},
        },
    ],
    ids=["some clients, their own tensors, 64 bits", "server optimizer, equal weights", "changes at the bound", "rows"],
)
def test_runs_of_other_options_equal_their_simulation(place: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = {"rounds": 4, **changes}
    result = served(place, DeskLine(place, tmp_path), tmp_path / "run", **changes)
    expected = simulated(place, run_of(place, **changes), tmp_path / "simulation")
    assert adapter(result.run_dir) == adapter(expected.run_dir)
    for key in ("bytes_up", "epsilon", "client_epsilon"):
        assert [r.get(key) for r in result.history] == [r.get(key) for r in expected.history]
    assert [r["skipped"] for r in result.history] == [None] * 4
