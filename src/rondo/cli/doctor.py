"""The command doctor."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rondo.cli.process import FAILED, quiet_libraries


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="for a bug report: without paths, and names of hosts, models and data")
    ] = False,
) -> None:
    """Look at this machine: versions, threads, memory, disk, hub, extras, each with what mends it. Exit code 1 for a
    fault."""
    quiet_libraries()
    from rondo import __version__
    from rondo.doctor import look

    found = look()
    if as_json:
        print(json.dumps({"rondo": __version__, "found": [finding.record() for finding in found]}, indent=1))
    else:
        print(f"rondo {__version__}")
        for finding in found:
            print(finding.line())
        counts = {mark: sum(finding.mark == mark for finding in found) for mark in ("fault", "note")}
        print(", ".join(f"{count} {mark}{'' if count == 1 else 's'}" for mark, count in counts.items()))
    if any(finding.mark == "fault" for finding in found):
        raise typer.Exit(FAILED)
