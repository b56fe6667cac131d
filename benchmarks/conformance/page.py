"""The tables of docs/results/conformance.md, and the commands that fetch the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rows import Row


def fetching(rows: Iterable[Row]) -> Iterator[str]:
    """The commands that put each repository at its commit into the folder that its rows name."""
    for source in {row.source.name: row.source for row in rows}.values():
        yield f"git clone https://github.com/{source.repository} {source.name}"
        yield f"git -C {source.name} checkout {source.commit}"


def line(row: Row, found: str) -> str:
    """The row of the page."""
    repository, commit = row.source.repository, row.source.commit
    link = f"[{repository.split('/')[1]} {commit[:7]}](https://github.com/{repository}/tree/{commit})"
    stubs = f" Stubs: {', '.join(f'`{stub}`' for stub in row.stubs)}." if row.stubs else ""
    cells = (row.method, link, f"`{row.code}`", f"`{row.oracle.__name__}`", found, row.sentence + stubs, row.reported)
    return f"| {' | '.join(cells)} |"


def placed(text: str, name: str, lines: Iterable[str]) -> str:
    """The page with ``lines`` under the head of the table that follows the mark ``name``. Raises SystemExit."""
    before, mark, after = text.partition(f"<!-- {name} -->\n")
    if not mark:
        raise SystemExit(f"the page has no mark <!-- {name} -->: put it above the table's head")
    table, _, rest = after.partition("\n\n")
    head = table.splitlines()[:2]
    return before + mark + "\n".join([*head, *lines]) + "\n\n" + rest
