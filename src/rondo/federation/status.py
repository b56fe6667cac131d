"""The state of a federation's run, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from rondo.errors import ConfigError
from rondo.report.terminal import human_bytes
from rondo.runs.progress import measured
from rondo.runs.storage import durable
from rondo.runs.storage.directory import RunDirectory

RECORD, SITES = "federation.json", "sites.json"
"""Files of a run directory: how its sites are reached, and the sites as they were when one last came or went."""


def status_lines(run_dir: Path) -> Iterator[str]:
    """Lines about the run in ``run_dir``. Raises :class:`ConfigError` if it is not of a federation."""
    directory = RunDirectory.open(run_dir)
    if not (directory.path / RECORD).is_file():
        raise ConfigError.at("RUN_DIR", f"{str(run_dir)!r} is a simulation: it has no sites")
    config = directory.config()
    history = directory.rounds() if directory.metrics.is_file() else []
    with durable.locked(directory.path) as idle:
        state = "finished" if directory.finished else "not running" if idle else "running"
    yield f"{config.algorithm.name}: {state}, {len(history)} of {config.rounds} rounds"
    if history:
        last = history[-1]
        up, down = (sum(r[key] for r in history) for key in ("bytes_up", "bytes_down"))
        parts = [f"{last['clients']} clients", *measured(last), f"{last['seconds']:.1f} s"]
        yield f"last round: {', '.join(parts)}; in all {human_bytes(up)} up, {human_bytes(down)} down"
        for failure in last["failed"]:
            yield f"  without {failure['client']}: {failure['reason']}: {failure['detail']}"
    for name, site in _sites(directory).items():
        yield f"{name}: {site['state']} since {datetime.fromisoformat(site['since']):%Y-%m-%d %H:%M:%S}"


def _sites(directory: RunDirectory) -> dict[str, dict[str, str]]:
    try:
        content = json.loads((directory.path / SITES).read_text(encoding="utf-8"))
        return {str(n): {"state": str(s["state"]), "since": str(s["since"])} for n, s in content.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
