"""The commands on algorithms: list, show and check."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from rondo.cli.app import keys, methods, shown
from rondo.cli.process import FAILED, user_errors
from rondo.errors import ConfigError

_COLUMNS = (
    "name",
    "what it does",
    "exact",
    "linear",
    "personal",
    "up, numbers per module",
    "whole tensors",
    "paper",
)
_WIDE = 140
"""Characters of a terminal in which these columns can be read. A narrower one shows the first two."""


def list_(
    names: Annotated[
        list[str] | None, typer.Argument(help="with --compat: names, or package.module:Class", autocompletion=methods)
    ] = None,
    compat: Annotated[bool, typer.Option("--compat", help="the options that each one takes")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="with --compat: as JSON, refusals with their reason")] = False,
) -> None:
    """List the algorithms: what each does, its flags (exact, linear, personal), numbers sent up and paper. With
    --compat, the options that each one takes."""
    with user_errors():
        if compat:
            _compatible(names, as_json)
            return
        for given, argument in ((bool(names), "NAMES"), (as_json, "--json")):
            if given:
                raise ConfigError.at(argument, "it goes with --compat: add that, or remove it", "rondo")
    from rondo import algorithms
    from rondo.report.terminal import folded, plain_console

    console = plain_console(width=250)
    columns = _COLUMNS if console.width >= _WIDE else _COLUMNS[:2]
    table = folded(*columns)
    for core in (True, False):
        for name, entry in algorithms.TABLE.items():
            cells = (name, entry.summary, *entry.flags, entry.up, entry.whole, entry.paper)
            if entry.core == core:
                table.add_row(*cells[: len(columns)])
        table.add_section()
    console.print(table)
    console.print("\nfirst the core methods, which claims rest on (rondo reproduce list), then more methods")
    if columns != _COLUMNS:
        console.print(f"\nrondo show NAME tells more of one; a terminal of {_WIDE} characters has a table of all")
        return
    console.print("\nexact, whole: exact if whole tensors are trained alone, without factors beside them")
    console.print("linear, one rank: linear if all clients have one rank")
    console.print(
        "clients with different ranks train at the run's scale, alpha / r, which weakens small ranks; "
        'flexlora, flora and florist take client_scale = "rank"'
    )


def _compatible(names: list[str] | None, as_json: bool) -> None:
    """Print the options that methods take, or refuse with the reason."""
    from rondo import algorithms
    from rondo.algorithms.compatible import OPTIONS, refused

    rows = {}
    for name in names or algorithms.TABLE:
        if (entry := algorithms.TABLE.get(name)) is not None:
            rows[name] = refused(entry.traits, linear=entry.linear)
        else:
            algorithm = _made(name)
            rows[name] = refused(algorithm.traits, linear=algorithm.linear)
    if as_json:
        print(json.dumps({n: {o: reasons.get(o) for o in OPTIONS} for n, reasons in rows.items()}, indent=2))
        return
    from rondo.report.terminal import folded, plain_console

    console, table = plain_console(width=250), folded("name", *OPTIONS)
    notes = list(dict.fromkeys(reason for reasons in rows.values() for reason in reasons.values()))
    for name, reasons in rows.items():
        table.add_row(name, *(str(notes.index(reasons[o]) + 1) if o in reasons else "yes" for o in OPTIONS))
    console.print(table)
    for number, reason in enumerate(notes, 1):
        console.print(f"{number}: {reason}")
    console.print("\nwith default fields; others may allow more (rondo show NAME)")


def _made(name: str) -> Any:
    """An algorithm with its defaults. Raises :class:`ConfigError`."""
    cls = _algorithm_class(name)
    try:
        return cls()
    except Exception as error:  # a user's class may have a field without default or an abstract method
        raise ConfigError.at("NAME", f"{name} cannot be made without arguments: {error}", "rondo") from None


def show(
    name: Annotated[
        str, typer.Argument(help="an algorithm's name, package.module:Class, or config", autocompletion=shown)
    ],
    key: Annotated[
        str | None, typer.Argument(help="config alone: a section or key, for instance train.lr", autocompletion=keys)
    ] = None,
) -> None:
    """Show the paper card of an algorithm (equations, symbols, bytes, head, deviations, reference) and its keys; or,
    with config, every configuration key."""
    with user_errors():
        if name == "config":
            from rondo.config import reference

            print(reference.text(key))
            return
        if key is not None:
            raise ConfigError.at("KEY", "only config takes a key; remove it", "rondo")
        import inspect

        from rondo import algorithms
        from rondo.algorithms.compatible import sight

        cls = _algorithm_class(name)
        print(f"{name}\n{'=' * len(name)}\n\n{inspect.getdoc(cls)}\n\n{_START}")
        fields = inspect.signature(cls).parameters.values()
        whole = not any(field.default is field.empty for field in fields) and not inspect.isabstract(cls)
        if (method := algorithms.TABLE.get(name) or (cls() if whole else None)) is not None:
            print("\nSeen by each party (docs/privacy.md):")
            for party, sees in sight(method.traits, linear=method.linear).items():
                print(f"{party}: {sees}")
        if fields:
            print("\nKeys of [algorithm], with their defaults:")
            for field in fields:
                required = field.default is field.empty
                print(field.name, "(required)" if required else f"= {json.dumps(field.default, default=repr)}")


_START = (
    "Start: nothing is sent at a client's first contact but what rounds have changed. A client makes the run's first\n"
    "tensors itself, from the run's seed and its copy of the base model."
)


def _algorithm_class(name: str) -> Any:
    from rondo import algorithms

    try:
        return algorithms.load(name)
    except algorithms.UnknownAlgorithm as error:
        raise ConfigError.at("NAME", str(error), "rondo") from None


def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="names, or package.module:Class; default: all", autocompletion=methods)
    ] = None,
) -> None:
    """Check algorithms, ours or your own, against the public laws."""
    with user_errors():
        from rondo import algorithms, errors, testing
        from rondo.algorithms.formulas import WHOLE

        failed = 0
        for name in names or algorithms.names():
            algorithm, entry = _made(name), algorithms.TABLE.get(name)
            formulas = (entry.up_numbers, entry.down_numbers) if entry is not None else None
            whole = WHOLE[entry.whole] if entry is not None else None
            print(name)
            results = testing.check_algorithm(algorithm, formulas=formulas, whole=whole)
            for line in law_lines(results):
                print(errors.visible(line))
            failed += sum(result.outcome == "failed" for result in results)
        print(f"\n{failed} failed" if failed else "\nall laws hold")
    if failed:
        raise typer.Exit(FAILED)


def law_lines(results: Sequence[Any]) -> Iterator[str]:
    """The results of the laws (:class:`rondo.testing.LawResult`) in lines. An error that ended several laws has a
    paragraph of its own: the line of the method's file, the error, and the laws."""
    counts = Counter((result.error, result.place) for result in results if result.error)
    told = set()
    for result in results:
        cause = (result.error, result.place)
        if counts[cause] < 2:
            yield f"  {result.outcome:15} {result.law:20} {result.detail}".rstrip()
            if result.place:
                yield f"    {result.place}"
        elif cause not in told:
            told.add(cause)
            yield f"  failed          {counts[cause]} laws, by one error of the method:"
            yield from (f"    {text}" for text in (result.place, result.error) if text)
            yield f"    laws: {', '.join(other.law for other in results if (other.error, other.place) == cause)}"
