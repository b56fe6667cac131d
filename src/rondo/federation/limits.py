"""Limits that a site's owner sets. Whatever is beyond them is refused before anything is loaded or trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rondo import algorithms
from rondo.engine.letters import Request
from rondo.errors import Problem, UnknownAlgorithm
from rondo.federation.plan import Plan


@dataclass(frozen=True)
class Limits:
    """A site's consent in advance. None does not limit."""

    algorithms: tuple[str, ...] | None = None
    """Methods that it takes part in."""
    uploads_per_day: int | None = None
    """Uploads that may leave it in a day (UTC), of all its clients together. As many replies with scores may: they
    tell of its rows too, one number at a time."""
    upload_mb: float | None = None
    """Megabytes of its largest upload."""
    min_clients: int = 1
    """A round must ask so many clients at least: the fewer, the more an average says about each."""

    def problems(self) -> Iterator[Problem]:
        """Everything that is no limit, by the option that sets it."""
        for name in self.algorithms or ():
            try:
                if ":" not in name:  # code of one's own is loaded once a run asks for it, if at all
                    algorithms.entry(name)
            except UnknownAlgorithm as error:
                yield Problem("--algorithms", str(error))
        if self.algorithms == ():
            yield Problem("--algorithms", "names no method, so every run would be refused: name one, or leave it out")
        if self.uploads_per_day is not None and self.uploads_per_day < 0:
            yield Problem("--uploads-per-day", f"should be 0 or more, got {self.uploads_per_day}")
        if self.upload_mb is not None and not 0 < self.upload_mb < math.inf:
            yield Problem("--upload-mb", f"should be a number of megabytes above 0, got {self.upload_mb}")
        if self.min_clients < 1:
            yield Problem("--min-clients", f"should be 1 or more, got {self.min_clients}")

    def against_plan(self, plan: Plan) -> str | None:
        """The reason to refuse ``plan``; None if there is none."""
        algorithm = plan.config.get("algorithm")
        name = algorithm.get("name") if isinstance(algorithm, dict) else None
        if self.algorithms is not None and name not in self.algorithms:
            return f"its owner consents to {', '.join(self.algorithms)}, and the run is {name!r}"
        return None

    def against_request(self, request: Request, left: int) -> str | None:
        """The reason to refuse a round's work, or scores; None if there is none. ``left``: the number of replies of the
        kind that is asked for which have left today."""
        if request.asked < self.min_clients:
            return f"{request.asked} clients are asked, and its owner wants {self.min_clients} at least"
        if self.uploads_per_day is not None and left >= self.uploads_per_day:
            what = "scores" if request.scores else "uploads"
            return f"{left} {what} have left it today, as many as its owner allows"
        return None

    def against_upload(self, data: bytes) -> str | None:
        """The reason to keep an upload back; None if there is none."""
        if self.upload_mb is not None and len(data) > self.upload_mb * 1e6:
            return f"the upload has {len(data)} bytes, and its owner allows {self.upload_mb:g} MB"
        return None
