"""Runs over Ray. The other tests of workers need no Ray: ``test_places.py``, ``tests/engine/test_crew.py``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rondo
from kinds_of_runs import KINDS, configured, outcome
from outcomes import told
from rondo.config import ConfigError
from rondo.errors import RunStopped
from rondo.runs.watching.progress import Quiet
from rondo.runs.workers import ray as over_ray
from rondo.runs.workers.places import Order
from small_runs import stopped

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
OVER_RAY = ("simulation.engine=ray", "simulation.workers=2")


# --- without Ray ----------------------------------------------------------------------------------------------------


def test_missing_ray_is_told_before_anything_is_loaded(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    raw, _ = configured("shared factors", sources, model={"name": "no-such/model"})
    ((path, message),) = told(lambda: rondo.run(raw, sets=OVER_RAY, run_dir=tmp_path / "run", device="cpu"))
    assert path == "simulation.engine"
    assert "pip install 'ray>=2.55'" in message
    assert not (tmp_path / "run").exists()


def test_workers_without_ray_are_a_mistake(sources: Path) -> None:
    raw, _ = configured("shared factors", sources, simulation={"workers": 2})
    with pytest.raises(ConfigError, match=r"simulation\.workers: only engine = 'ray' has workers"):
        rondo.run(raw, device="cpu")


def test_resumption_changes_the_place_only(sources: Path, tmp_path: Path) -> None:
    raw, _ = configured("a linear problem", sources)
    stopped(raw, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"train\.lr: a run that goes on keeps its configuration"):
        rondo.resume(tmp_path / "run", sets=["train.lr=9"])


def test_worker_has_room_for_as_many_cohorts_as_it_has_threads_for() -> None:
    """The least busy comes first; a worker on an accelerator has one at a time, and each has one at least."""
    workers = over_ray.RayWorkers(4, "cpu", threads=5)
    workers._workers = [over_ray._Worker(None, ready, busy) for ready, busy in ((True, 1), (False, 0), (True, 0))]
    assert [workers.idle(threads) for threads in (1, 2, 3, 9)] == [[2, 0], [2, 0], [2], [2]]
    workers._workers[0].busy = 2
    assert workers.idle(2) == [2]
    workers._workers[0].busy, workers.device = 1, "cuda"
    assert workers.idle(1) == [2]


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module in the place of ray: a cluster of two CPU cores and a GPU, with one machine of two alive. A reference is
    an answer, or an error to be raised."""

    def get(reference: Any) -> Any:
        if isinstance(reference, Exception):
            raise reference
        return reference

    class RayError(Exception): ...

    class RayTaskError(RayError): ...

    module = SimpleNamespace(
        __spec__=sys.__spec__,
        is_initialized=lambda: True,
        cluster_resources=lambda: {"CPU": 7.0, "GPU": 1.0},
        nodes=lambda: [{"Alive": True}, {"Alive": False}, {"Alive": True}],
        get=get,
        exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError),
    )
    monkeypatch.setitem(sys.modules, "ray", module)
    return module


@pytest.mark.parametrize(
    ("count", "device", "expected"),
    [(None, "cpu", (2, 3)), (7, "cpu", (7, 1)), (3, "cpu", (3, 2)), (None, "cuda", (1, 7)), (1, "cuda", (1, 7))],
)
def test_workers_and_their_threads_by_what_a_cluster_has(
    count: int | None, device: str, expected: tuple[int, int], pretended: SimpleNamespace
) -> None:
    with over_ray.ray_workers(count, device) as workers:
        assert (workers.count, workers.threads) == expected


@pytest.mark.parametrize(
    ("count", "device", "has"), [(8, "cpu", "7 CPU cores"), (2, "cuda", "1 GPUs"), (0, "cuda", None)]
)
def test_cluster_without_room(count: int, device: str, has: str | None, pretended: SimpleNamespace) -> None:
    if has is None:
        pretended.cluster_resources = lambda: {"CPU": 7.0}
        count, has = 0, "0 GPUs"
    with (
        pytest.raises(ConfigError, match=f"{count} workers, and Ray's cluster has {has}"),
        over_ray.ray_workers(count, device),
    ):
        pass


def test_worker_that_dies_while_it_loads(pretended: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two deaths are borne, a third one after another stops the run; a worker that was ready starts anew."""
    started: list[int] = []
    monkeypatch.setattr(over_ray.RayWorkers, "_start", lambda self, number: started.append(number))
    workers = over_ray.RayWorkers(2, "cpu", 1, _workers=[over_ray._Worker(None), over_ray._Worker(None)])
    workers._check = lambda host, facts: None
    death = pretended.exceptions.RayError("the worker died\nmore")
    for number in (0, 1, 0):
        workers._note_loaded(number, death)
    assert started == [0, 1, 0]
    workers._note_loaded(0, ("host", {}, ""))
    assert (workers._workers[0].ready, workers.hosts) == (True, {0: "host"})
    for _ in range(2):
        workers._note_loaded(0, death)
    with pytest.raises(RunStopped, match=r"a worker of Ray died 3 times while it loaded: the worker died$"):
        workers._note_loaded(0, death)
    with pytest.raises(RunStopped, match=r"a worker of Ray \(host\) cannot load the run: no rows"):
        workers._note_loaded(1, ("host", None, "no rows"))


# --- with Ray -------------------------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.slow
def test_run_of_one_process_goes_on_over_ray(sources: Path, tmp_path: Path) -> None:
    """The result is that of a run that stayed in one process. Rows that a program gives travel with it."""
    raw, rows = configured("whole tensors", sources)
    rondo.run(raw, run_dir=tmp_path / "here", device="cpu", **rows)
    stopped(raw, tmp_path / "both", **rows)
    rondo.resume(tmp_path / "both", sets=["simulation.engine=ray"], allow_code=True, **rows)
    assert outcome(tmp_path / "both") == outcome(tmp_path / "here")
    import ray

    assert not ray.is_initialized(), "what a run starts it ends"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster that the program has joined, for several runs."""
    with over_ray.ray_workers(2, "cpu"):
        import ray

        yield ray


@pytest.mark.slow
@needs_ray
@pytest.mark.parametrize("kind", KINDS)
def test_run_over_ray_as_in_one_process(kind: str, sources: Path, tmp_path: Path, cluster: Any) -> None:
    """Also where one is stopped and goes on over Ray, and one in a single process."""
    raw, rows = configured(kind, sources)
    rondo.run(raw, run_dir=tmp_path / "here", device="cpu", **rows)
    rondo.run(raw, sets=OVER_RAY, run_dir=tmp_path / "there", device="cpu", **rows)
    expected = outcome(tmp_path / "here")
    assert outcome(tmp_path / "there") == expected
    places = {"again": (), "back": ("simulation.engine=process", "simulation.workers=")}
    for folder, sets in places.items():
        if folder == "back" and kind != "a personal head":
            continue  # one kind is enough: a state has no trace of where it was made
        stopped(raw, tmp_path / folder, sets=OVER_RAY, **rows)
        rondo.resume(tmp_path / folder, sets=sets, allow_code=True, **rows)
        assert outcome(tmp_path / folder) == expected
    assert cluster.is_initialized(), "what a run did not start it does not end"


@pytest.mark.slow
@needs_ray
def test_threads_and_shared_cohorts(
    sources: Path, tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two threads and cohorts of several clients, where every worker has the threads of one process."""
    raw, _ = configured("a personal head", sources, simulation={"cohort": "auto"})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        rondo.run(raw, run_dir=tmp_path / "here", device="cpu")
        for workers in (1, 2):
            sets = ("simulation.engine=ray", f"simulation.workers={workers}")
            rondo.run(raw, sets=sets, run_dir=tmp_path / f"there{workers}", device="cpu")
            assert outcome(tmp_path / f"there{workers}") == outcome(tmp_path / "here")
    finally:
        torch.set_num_threads(before)


class Killer(Quiet):
    """Kills a worker when the first client of the second round has answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.killed: list[int] = []
        self.round = 0
        made: list[over_ray.RayWorkers] = []
        monkeypatch.setattr(
            over_ray.RayWorkers,
            "load",
            lambda w, *rest, load=over_ray.RayWorkers.load: (made.append(w), load(w, *rest)),
        )
        self.made = made

    def round_started(self, index: int, clients: int) -> None:
        self.round = index

    def client_done(self, client: str, loss: float | None) -> None:
        (workers,) = self.made
        if self.round == 1 and not self.killed:
            for host in workers.hosts.values():
                pid = int(host.rpartition(" ")[2])
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)


@pytest.mark.slow
@needs_ray
def test_killed_workers_change_nothing(
    sources: Path, tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both are killed in the middle of a round."""
    raw, _ = configured("a personal head", sources, clients={"per_round": 4})
    rondo.run(raw, run_dir=tmp_path / "here", device="cpu")
    killer = Killer(monkeypatch)
    rondo.run(raw, sets=OVER_RAY, run_dir=tmp_path / "there", device="cpu", observer=killer)
    assert killer.killed
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    log = (tmp_path / "there" / "run.log").read_text()
    assert f"process {killer.killed[0]} is lost, and another does its cohorts again: " in log
    captured = capfd.readouterr()
    assert "raylet" not in captured.out + captured.err


@pytest.mark.slow
@needs_ray
def test_fault_of_a_worker_is_told(
    sources: Path, tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that are gone when a worker looks for them, as on a machine that does not have them."""
    raw, _ = configured("shared factors", sources)

    def elsewhere(*arguments: Any, of: Any = Order.of) -> Order:
        order = of(*arguments)
        return replace(order, config=order.config.replace("rows.csv", "gone.csv"))

    monkeypatch.setattr(Order, "of", elsewhere)
    with pytest.raises(RunStopped, match=r"a worker of Ray \(.*, process \d+\) cannot load the run: .*gone\.csv"):
        rondo.run(raw, sets=OVER_RAY, run_dir=tmp_path / "run", device="cpu")


@pytest.mark.slow
@needs_ray
def test_too_many_workers_are_refused_before_anything_is_loaded(sources: Path, tmp_path: Path, cluster: Any) -> None:
    raw, _ = configured("shared factors", sources, model={"name": "no-such/model"})
    with pytest.raises(ConfigError, match=r"simulation\.workers: 99 workers, and Ray's cluster has 2 CPU cores"):
        rondo.run(raw, sets=["simulation.engine=ray", "simulation.workers=99"], run_dir=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@needs_ray
def test_interrupted_command(sources: Path, tmp_path: Path) -> None:
    """^C in a terminal reaches the whole group of processes: the run ends at once with one line, nothing of Ray's is
    printed or left, and the run goes on."""
    from rondo.config import load
    from rondo.records.directory import to_toml

    raw, _ = configured("shared factors", sources, rounds=400, evaluation={"every": 0, "diagnostics_every": 0})
    (tmp_path / "run.toml").write_text(to_toml(load(raw, OVER_RAY)))
    command = [
        sys.executable,
        "-c",
        "from rondo.cli import main; main()",
        "run",
        "run.toml",
        "--run-dir",
        "out",
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    metrics = tmp_path / "out" / "metrics.jsonl"
    waited_until = time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < waited_until
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "go on with: rondo resume out" in errors
    assert "Traceback" not in errors
    assert "ray" not in (out + errors).lower().replace(str(tmp_path), "")
