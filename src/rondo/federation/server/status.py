"""The state of a federation's run, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from rondo.config.schema import RunConfig
from rondo.engine.transport import Observer
from rondo.errors import ConfigError
from rondo.federation.monitor import Health, days_left
from rondo.federation.server import record, standing
from rondo.federation.server.record import Record
from rondo.federation.server.sites import Sites
from rondo.federation.server.standing import Standing
from rondo.records import durable
from rondo.records.directory import RunDirectory
from rondo.report.terminal import human_bytes
from rondo.runs.watching.progress import measured


def status(run_dir: Path) -> dict[str, Any]:
    """The state of the run in ``run_dir``, for programs: ``state``, ``round`` of ``rounds``, bytes in all, the last
    round's record, and the standing of each site. If the turnout is secret, bytes, record and the rounds of sites are
    None, and ``round`` until the run is finished: the times at which it changes tell how many trained. Raises
    :class:`ConfigError` if it is not of a federation."""
    directory, history, state = _opened(run_dir)
    config, sites = directory.config(), standing.read(directory.path / standing.FILE)
    told = not config.guarantee.secret_turnout  # else no number from which the turnout would follow
    hidden = {} if told else dict.fromkeys(("rounds", "counted", "last", "answered"))
    return {
        "algorithm": config.algorithm.name,
        "state": state,
        "round": len(history) if told or state == "finished" else None,
        "rounds": config.rounds,
        **{key: sum(record[key] for record in history) if told else None for key in ("bytes_up", "bytes_down")},
        "last": history[-1] if history and told else None,
        "sites": {name: {**asdict(site), **hidden} for name, site in sites.items()},
    }


def _opened(run_dir: Path) -> tuple[RunDirectory, list[dict[str, Any]], str]:
    """The directory of a run, its rounds, and whether it is finished, running or not running."""
    directory = RunDirectory.open(run_dir)
    if not (directory.path / record.FILE).is_file():
        raise ConfigError.at("RUN_DIR", f"{str(run_dir)!r} is a simulation: it has no sites")
    history = directory.rounds() if directory.metrics.is_file() else []
    with durable.locked(directory.path) as idle:
        return directory, history, "finished" if directory.finished else "not running" if idle else "running"


def status_lines(run_dir: Path) -> Iterator[str]:
    """Lines about the run in ``run_dir``. Raises :class:`ConfigError` if it is not of a federation."""
    directory, history, state = _opened(run_dir)
    config, about = directory.config(), Record.read(directory)
    yield f"{config.algorithm.name}: {state}, {len(history)} of {config.rounds} rounds"
    if history:
        last = history[-1]
        up, down = (sum(r[key] for r in history) for key in ("bytes_up", "bytes_down"))
        parts = [f"{last['clients']} clients", *measured(last), f"{last['seconds']:.1f} s"]
        yield f"last round: {', '.join(parts)}; in all {human_bytes(up)} up, {human_bytes(down)} down"
        if "guarantee" in last:
            yield last["guarantee"]
        for failure in last["failed"]:
            yield f"  without {failure['client']}: {failure['reason']}: {failure['detail']}"
    for change in about.changes:
        yield f"the roster changed after round {change['round']}: {'; '.join(change['changes'])}"
    yield about.bits(noise=config.guarantee.draws_noise)
    if state == "not running":
        yield "the sites as the server last knew them:"
    for name, site in standing.read(directory.path / standing.FILE).items():
        yield f"{name}: {_at_end(site) if state == 'finished' else _last_known(site)}"


def _at_end(site: Standing) -> str:
    """A site of a run that is finished."""
    refused = f"refused: {site.reason}"
    if site.rounds:
        took_part = f"took part ({site.rounds} round{'s' if site.rounds > 1 else ''})"
        return f"{took_part}, then {refused}" if site.state == "refuses" else took_part
    if site.state == "refuses":
        return refused
    return "came, and no upload of it counted" if site.came else "never came"


def _last_known(site: Standing) -> str:
    """A site as it is, or was when its server ended."""
    state = f"{site.state} since {_time(site.since)}"
    reason = f": {site.reason}" if site.state == "refuses" else ""
    answered = f"; it last answered in round {site.last}, at {_time(site.answered)}" if site.last else ""
    return f"{state}{reason}{answered}"


def _time(text: str) -> str:
    """A time of the record in this machine's zone."""
    try:
        return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return "an unknown time"


class Gauges(Observer):
    """The numbers of a run for its server's monitor. No round is told where the turnout is a secret: a monitor keeps
    the time, and that of a round tells how many trained in it."""

    def __init__(self, config: RunConfig, sites: Sites, until: Callable[[], Mapping[str, date]]) -> None:
        """``until``: when each certificate and key ends."""
        self._sites, self._until = sites, until
        self._hides_turnout = config.guarantee.secret_turnout
        self._numbers: dict[str, float] = {"rounds": config.rounds}
        if not self._hides_turnout:
            self._numbers |= {"round": 0, "skipped_rounds": 0}

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        if not self._hides_turnout:
            self._numbers["round"] = rounds

    def round_done(self, record: Mapping[str, Any]) -> None:
        if self._hides_turnout:
            return
        new = {"round": record["round"] + 1.0, "round_seconds": record["seconds"]}
        more = {"skipped_rounds": int(record["skipped"] is not None)}
        more |= {key: record[key] for key in ("bytes_up", "bytes_down")}
        more |= {"failed_uploads": len(record["failed"]), "refused_uploads": sum(record["rejected"].values())}
        self._numbers |= new | {key: self._numbers.get(key, 0) + value for key, value in more.items()}

    def health(self) -> Health:
        """The state of the server, which is well as long as it serves."""
        states = [state for state, _ in self._sites.states().values()]
        numbers = dict(self._numbers)
        numbers |= {"sites": len(states), "sites_connected": len(states) - states.count("not connected")}
        numbers |= {"sites_taking_part": states.count("takes part"), "sites_refusing": states.count("refuses")}
        days = days_left(self._until().values(), datetime.now(UTC).date())
        return Health(numbers=numbers if days is None else {**numbers, "days_to_first_expiry": days})
