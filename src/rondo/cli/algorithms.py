"""Commands about algorithms: list, show and check."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rondo.cli.process import FAILED, own_modules, user_errors


def list_() -> None:
    """The algorithms: name, what it does, exact, linear, personal, paper."""
    from rich.console import Console
    from rich.table import Table

    from rondo import algorithms

    table = Table(box=None, pad_edge=False)
    for column in ("name", "what it does", "exact", "linear", "personal", "up, numbers a module", "paper"):
        table.add_column(column, overflow="fold")
    for name, e in algorithms.TABLE.items():
        flags = ["yes" if flag else "no" for flag in (e.exact, e.linear, e.personal)]
        table.add_row(name, e.summary, *flags, e.up, e.paper)
    # Off a terminal a line an algorithm, for grep and the like.
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def show(name: str) -> None:
    """The paper card of an algorithm: equations, symbols, bytes, head, deviations, reference."""
    with user_errors():
        import inspect

        cls = _algorithm_class(name)
        print(f"{name}\n{'=' * len(name)}\n\n{inspect.getdoc(cls)}")


def _algorithm_class(name: str) -> Any:
    from rondo import algorithms
    from rondo.errors import ConfigError

    own_modules()
    try:
        return algorithms.load(name)
    except algorithms.UnknownAlgorithm as error:
        raise ConfigError.at("NAME", str(error), "rondo") from None


def check(
    names: Annotated[list[str] | None, typer.Argument(help="names, or package.module:Class; left out: all")] = None,
) -> None:
    """Run the public laws on algorithms, ours or one of your own."""
    with user_errors():
        from rondo import algorithms, errors, testing

        failed = 0
        for name in names or algorithms.names():
            cls = _algorithm_class(name)
            entry = algorithms.TABLE.get(name)
            formulas = (entry.up_numbers, entry.down_numbers) if entry is not None else None
            print(name)
            try:
                algorithm = cls()
            except Exception as error:  # someone's class: a field without default, an abstract method left open
                words = f"{name} cannot be made without arguments: {error}"
                raise errors.ConfigError([errors.Problem("NAME", words)], "rondo") from None
            for result in testing.check_algorithm(algorithm, formulas=formulas):
                print(f"  {result.outcome:15} {result.law:20} {result.detail}".rstrip())
                failed += result.outcome == "failed"
        print(f"\n{failed} failed" if failed else "\nall laws hold")
    if failed:
        raise typer.Exit(FAILED)
