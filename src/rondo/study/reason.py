"""Why a run stopped, as files and pages that are handed on say it. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from rondo.config.schema import RunConfig


def reason(stopped: str, config: RunConfig, run_dir: Path) -> str:
    """The message ``stopped`` of the run in ``run_dir``, without the way to that folder, which is its machine's.
    Messages name clients, so where who took part is a secret, the run's own log alone has it."""
    if config.guarantee.secret_turnout:
        return f"why it stopped is in {run_dir.name}/run.log: it would tell who took part, which is a secret"
    return stopped.replace(str(run_dir), run_dir.name)
