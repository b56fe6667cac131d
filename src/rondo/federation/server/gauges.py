"""The numbers of a run for its server's monitor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from rondo.config.schema import RunConfig
from rondo.engine.transport import Observer
from rondo.federation.monitor import Health, days_left
from rondo.federation.server.sites import Sites


class Gauges(Observer):
    """The numbers of a run for its server's monitor."""

    def __init__(self, config: RunConfig, sites: Sites, until: Callable[[], Mapping[str, date]]) -> None:
        """``until``: when each certificate and key ends."""
        self._sites, self._until = sites, until
        self._hides_turnout = config.guarantee.secret_turnout
        self._numbers: dict[str, float] = {"rounds": config.rounds, "round": 0, "skipped_rounds": 0}

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        self._numbers["round"] = rounds

    def round_done(self, record: Mapping[str, Any]) -> None:
        """Numbers from which a round's turnout would follow are left out where it is a secret."""
        new = {"round": record["round"] + 1.0}
        more = {"skipped_rounds": int(record["skipped"] is not None)}
        if not self._hides_turnout:
            new["round_seconds"] = record["seconds"]
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
