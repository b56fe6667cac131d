"""Trackio and Weights & Biases, which have one interface. Without a login nothing leaves the machine."""

from __future__ import annotations

import netrc
import os
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from rondo.runs.tracking.tracker import About, Ending

_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WEBHOOK_URL")
"""Variables by which Trackio would send its data elsewhere."""


class _LikeWandb:
    """A run of a module with ``init``, ``log`` and ``finish``."""

    _run: Any

    def begin(self, about: About) -> int:
        """Files on this machine are made anew from the first round: nothing tells where their last write ended."""
        self._run, rounds = self._begun(about)
        return rounds

    @abstractmethod
    def _begun(self, about: About) -> tuple[Any, int]:
        """The run, and the number of rounds that it has already."""

    def round(self, done: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=done)

    def close(self, ending: Ending) -> None:
        self._run.finish()


class Trackio(_LikeWandb):
    """Trackio's database on this machine; ``trackio sync`` sends it elsewhere."""

    def _begun(self, about: About) -> tuple[Any, int]:
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
            return trackio.init(about.project, name=name, config=dict(about.settings), **settings), 0
        finally:
            os.environ.update(elsewhere)


class Wandb(_LikeWandb):
    """Weights & Biases: online where the user is logged in, else files in the run directory for ``wandb sync``."""

    def _begun(self, about: About) -> tuple[Any, int]:
        online = self._online()
        if not online:
            for folder in (about.folder / "wandb").glob(f"offline-run-*-{about.id}"):
                shutil.rmtree(folder)
        import wandb

        quiet = wandb.Settings(  # without code, command line and machine of the user
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True,
            x_disable_machine_info=True, x_save_requirements=False,
        )  # fmt: skip
        run = wandb.init(
            project=about.project,
            name=about.name,
            id=about.id,
            resume="allow" if online else None,
            config=dict(about.settings),
            dir=str(about.folder),
            mode="online" if online else "offline",
            settings=quiet,
        )
        return run, max(0, run.step - 1) if online else 0  # its next step is the one after the last round

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
