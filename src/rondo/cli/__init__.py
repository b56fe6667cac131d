"""The command line. Each command imports its modules when it runs, so help and lists appear at once."""

from __future__ import annotations

from collections.abc import Callable

from rondo.cli import algorithms, data, results, run, study
from rondo.cli.app import app, main
from rondo.cli.federate import federate
from rondo.cli.privacy import privacy

__all__ = ["app", "main"]

_SHOWN: tuple[tuple[str, Callable[..., None]], ...] = (
    ("run", run.run),
    ("resume", run.resume),
    ("demo", run.demo),
    ("watch", results.watch),
    ("compare", study.compare),
    ("report", results.report),
    ("tune", study.tune),
    ("reproduce", study.reproduce),
    ("init", run.init),
    ("schema", run.schema),
    ("data", data.data),
    ("list", algorithms.list_),
    ("show", algorithms.show),
    ("check", algorithms.check),
    ("export", results.export),
    ("evaluate", results.evaluate),
    ("predict", results.predict),
    ("adapt", results.adapt),
    ("doctor", data.doctor),
)
"""The commands, in the order of ``rondo --help``."""

for _name, _command in _SHOWN:
    app.command(_name)(_command)
app.add_typer(federate, name="federate")
app.add_typer(privacy, name="privacy")
