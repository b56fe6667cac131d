"""A new start of a site whose folder has lost the state that the server counts on."""

from __future__ import annotations

from pathlib import Path

from rondo.errors import ConfigError
from rondo.federation.plan import NotAPlan, Plan
from rondo.federation.program import only_program
from rondo.federation.site.desk import PLAN
from rondo.federation.site.disk import Disk


def start_over(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Give up what the clients of a site's ``folder`` have kept for themselves in their run, and return its name and
    theirs. Raises :class:`ConfigError`, also while the site's program runs."""
    if not (folder / PLAN).is_file():
        raise ConfigError.at("STATE", f"no {PLAN} in {str(folder)!r}, so its site is in no run: name another folder")
    with only_program(folder):
        try:
            plan = Plan.decode((folder / PLAN).read_bytes())
        except NotAPlan as error:
            message = f"{str(folder / PLAN)!r} is damaged ({error}): start the site's program, which gets it again"
            raise ConfigError.at("STATE", message) from None
        for client in plan.clients or ():
            Disk(folder, plan.run).start_over(client)
    return plan.run, plan.clients or ()
