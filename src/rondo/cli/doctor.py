"""The command doctor."""

from __future__ import annotations

import typer

from rondo.cli.process import FAILED, quiet_libraries


def doctor() -> None:
    """Look at this machine: versions, extras, threads, memory, disk, hub, each with what mends it. The page is for bug
    reports: it has no paths, and no names of hosts, models or data. Exit code 1 for a fault."""
    quiet_libraries()
    from rondo import __version__
    from rondo.doctor import look

    print(f"rondo {__version__}")
    marks = []
    for finding in look():
        print(finding.line(), flush=True)
        marks.append(finding.mark)
    counts = {mark: marks.count(mark) for mark in ("fault", "note")}
    print(", ".join(f"{count} {mark}{'' if count == 1 else 's'}" for mark, count in counts.items()))
    if counts["fault"]:
        raise typer.Exit(FAILED)
