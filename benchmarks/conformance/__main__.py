"""What published code computes in one aggregation, beside its paper: the tables of docs/results/conformance.md.

python benchmarks/conformance                                     # the git commands that fetch the code
python benchmarks/conformance CLONES                              # the tables
python benchmarks/conformance CLONES --page docs/results/conformance.md   # into the page
"""

from __future__ import annotations

import argparse
from pathlib import Path

from page import fetching, line, placed
from rows import largest, outcome
from table import RONDO, ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path, nargs="?", help="the folder of the clones")
    parser.add_argument("--page", type=Path, help="the page to write the tables into")
    args = parser.parse_args()
    if args.clones is None:
        print(*fetching(ROWS), sep="\n")
        return
    tables: dict[str, list[str]] = {"published": [], "rondo": []}
    for row in ROWS:
        tables["published"].append(line(row, outcome(row, args.clones)))
        print(tables["published"][-1], flush=True)
    for name, (run, oracle, draw) in RONDO.items():
        tables["rondo"].append(f"| `{name}` | `{oracle.__name__}` | {largest(run, oracle, draw)} |")
        print(tables["rondo"][-1], flush=True)
    if args.page:
        text = args.page.read_text(encoding="utf-8")
        for name, lines in tables.items():
            text = placed(text, name, lines)
        args.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
