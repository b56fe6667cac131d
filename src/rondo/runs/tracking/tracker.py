"""The trackers by name, each with one interface. Imports no torch, and no tracker's package before it begins."""

from __future__ import annotations

import netrc
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from rondo.config.section import Tracker as Name

Ending: TypeAlias = Literal["finished", "stopped"]


@dataclass(frozen=True)
class About:
    """A run as its trackers know it.

    - ``id``: made once for the run, and for no other.
    - ``name``: the name of its folder.
    - ``settings``: its configuration by key path.
    - ``secret_turnout``: whether nobody may learn how many clients take part in a round.
    """

    folder: Path
    id: str
    name: str
    project: str
    settings: Mapping[str, Any]
    secret_turnout: bool = False


class Tracker(Protocol):
    """One run at one tracker, used by one thread. Every method may raise anything."""

    def begin(self, about: About) -> int:
        """Begin, or go on with the run of the same id. Returns the number of rounds that it has already: the rounds
        after these are given to :meth:`round`, each once, in their order."""

    def round(self, done: int, values: Mapping[str, float]) -> None:
        """Note a round, the ``done``-th. Once it returns, the round is not given again."""

    def close(self, ending: Ending) -> None:
        """Write what is not written yet."""


_ID = "rondo.id"
"""The tag by which the run is found again: MLflow gives its own ids."""
_PARAMETERS, _LENGTH = 100, 500
"""Most parameters that are logged at once, and most characters of each."""


class MLflow:
    """A server, by ``MLFLOW_TRACKING_URI``; without one, the database ``mlflow.db`` beside the run directory.

    A round is one batch, which is stored whole or not at all. The server says which rounds it has."""

    def begin(self, about: About) -> int:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{about.folder.parent / 'mlflow.db'}"
        self._client: Any = MlflowClient(tracking_uri=place)
        self._metric = Metric
        experiment = self._experiment(about)
        runs = self._client.search_runs([experiment], filter_string=f"tags.`{_ID}` = '{about.id}'", max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            history = self._client.get_metric_history(self._run, "round")
            return max((point.step for point in history), default=0)
        run = self._client.create_run(experiment, tags={_ID: about.id}, run_name=about.name)
        self._run = run.info.run_id
        texts = [(key, str(value)[:_LENGTH]) for key, value in about.settings.items()]
        for first in range(0, len(texts), _PARAMETERS):
            some = [Param(key, text) for key, text in texts[first : first + _PARAMETERS]]
            self._client.log_batch(self._run, params=some)
        return 0

    def _experiment(self, about: About) -> str:
        found = self._client.get_experiment_by_name(about.project)
        if found is not None:
            return str(found.experiment_id)
        artifacts = None if os.environ.get("MLFLOW_TRACKING_URI") else (about.folder.parent / "mlruns").as_uri()
        try:
            return str(self._client.create_experiment(about.project, artifact_location=artifacts))
        except Exception:  # another run has just made it
            found = self._client.get_experiment_by_name(about.project)
            if found is None:
                raise
            return str(found.experiment_id)

    def round(self, done: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        points = [self._metric(name, value, now, done) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=points)

    def close(self, ending: Ending) -> None:
        self._client.set_terminated(self._run, status="FINISHED" if ending == "finished" else "KILLED")


class TensorBoard:
    """A file of events in the run directory, ``tensorboard/``. It needs no torch and no TensorFlow.

    Events cannot be taken back, so a run that goes on gets its file anew, from the first round."""

    def begin(self, about: About) -> int:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = about.folder / "tensorboard"
        if folder.exists():
            shutil.rmtree(folder)
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder))
        return 0

    def round(self, done: int, values: Mapping[str, float]) -> None:
        numbers = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=done, summary=self._summary(value=numbers)))
        self._writer.flush()

    def close(self, ending: Ending) -> None:
        self._writer.close()


_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WEBHOOK_URL")
"""Variables by which Trackio would send its data elsewhere."""


class _LikeWandb:
    """A run of a module with ``init``, ``log`` and ``finish``. Without a login nothing leaves the machine.

    Files on this machine are made anew from the first round: nothing tells where their last write ended."""

    _run: Any

    def round(self, done: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=done)

    def close(self, ending: Ending) -> None:
        self._run.finish()


class Trackio(_LikeWandb):
    """Trackio's database on this machine; ``trackio sync`` sends it elsewhere."""

    def begin(self, about: About) -> int:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        name = f"{about.name}-{about.id[:6]}"
        if SQLiteStorage.get_project_db_path(about.project).exists():
            for run in trackio.Api().runs(about.project):
                if run.name == name:
                    run.delete()
        settings = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        elsewhere = {key: os.environ.pop(key) for key in _ELSEWHERE if key in os.environ}
        try:
            self._run = trackio.init(about.project, name=name, config=dict(about.settings), **settings)
        finally:
            os.environ.update(elsewhere)
        return 0


class Wandb(_LikeWandb):
    """Weights & Biases: online where the user is logged in, else files in the run directory for ``wandb sync``."""

    def begin(self, about: About) -> int:
        online = self._online()
        if not online:
            for folder in (about.folder / "wandb").glob(f"offline-run-*-{about.id}"):
                shutil.rmtree(folder)
        import wandb

        quiet = wandb.Settings(  # without code, command line and machine of the user
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True,
            x_disable_machine_info=True, x_save_requirements=False,
        )  # fmt: skip
        self._run = wandb.init(
            project=about.project,
            name=about.name,
            id=about.id,
            resume="allow" if online else None,
            config=dict(about.settings),
            dir=str(about.folder),
            mode="online" if online else "offline",
            settings=quiet,
        )
        return max(0, self._run.step - 1) if online else 0  # its next step is the one after the last round

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=0 if ending == "finished" else 1)

    @staticmethod
    def _online() -> bool:
        if mode := os.environ.get("WANDB_MODE"):
            return mode == "online"
        host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
        try:
            return "WANDB_API_KEY" in os.environ or netrc.netrc().authenticators(host) is not None
        except (OSError, netrc.NetrcParseError):
            return False


def made(name: Name) -> Tracker:
    """The tracker of this name. Its package is imported by :meth:`Tracker.begin`."""
    trackers: dict[Name, type[Tracker]] = {
        "mlflow": MLflow,
        "tensorboard": TensorBoard,
        "trackio": Trackio,
        "wandb": Wandb,
    }
    return trackers[name]()
