"""Limits that a site's owner sets. Whatever is beyond them is refused before anything is loaded or trained."""

from __future__ import annotations

from dataclasses import dataclass

from rondo.engine.letters import Request
from rondo.federation.plan import Plan


@dataclass(frozen=True)
class Limits:
    """A site's consent in advance. None does not limit."""

    algorithms: tuple[str, ...] | None = None
    """Methods that it takes part in."""
    uploads_per_day: int | None = None
    """Uploads that may leave it in a day (UTC), of all its clients together. As many replies with scores may: they
    tell of its rows too, one number at a time."""
    upload_bytes: int | None = None
    """Bytes of its largest upload."""
    min_clients: int = 1
    """A round must ask so many clients at least: the fewer, the more an average says about each."""

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
        if self.upload_bytes is not None and len(data) > self.upload_bytes:
            return f"the upload has {len(data)} bytes, and its owner allows {self.upload_bytes}"
        return None
