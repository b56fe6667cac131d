"""The commands that look before a run: data and doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rondo.cli.app import Sets
from rondo.cli.process import FAILED, quiet_libraries, user_errors, written


def data(
    config: Annotated[str, typer.Argument(help="a TOML file")],
    sets: Sets = None,
    picture: Annotated[Path | None, typer.Option(help="draw the partition as a PNG file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="everything as JSON, as in partition.json")] = False,
) -> None:
    """Show the rows of a configuration as a run would deal them: clients, labels, lengths, and what would be left out
    or cut. Nothing is trained, and no weights are loaded."""
    with user_errors():
        from rondo.config.load import load

        settings = load(config, sets or [])
        quiet_libraries()
        from rondo.report.rows import account, clients_table, lengths_line
        from rondo.report.terminal import plain_console
        from rondo.runs.assembling.assemble import deal

        population, task = deal(settings)
        report = population.report
        if picture is not None:
            from rondo.report import drawing, pictures

            with written(picture, "--picture", "rondo data"):
                picture.write_bytes(drawing.png(pictures.partition(report)))
        if as_json:
            print(json.dumps(report, indent=2))
            return
        console = plain_console(width=250)
        console.print(clients_table(report))
        if task.padded:
            rows = [e for member in population.members.values() for e in (*member.train, *member.validation)]
            for what, examples in (("training rows", rows), ("test rows", population.test)):
                costs = [part.cost for example in examples for part in task.sequences(example)]
                if costs:
                    console.print(lengths_line(what, costs, settings.task.max_length))
        for line in account(report):
            console.print(line)


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
