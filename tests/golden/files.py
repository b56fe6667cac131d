"""Golden files on the disk: written, or compared with what an oracle gives now."""

import argparse
import json
import re
from pathlib import Path

HERE = Path(__file__).parent


def to_text(golden):
    """Indented JSON with every row of numbers on one line."""
    text = json.dumps(golden, indent=1, allow_nan=False)
    row = re.compile(r"\[\s+([^\[\]{}]+?)\s+\]")
    return row.sub(lambda m: "[" + " ".join(m[1].split()) + "]", text) + "\n"


def difference(a, b):
    """Largest absolute difference of two JSON values; infinite if built differently."""
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b)
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return max((difference(a[k], b[k]) for k in a), default=0.0)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return max((difference(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    return 0.0 if type(a) is type(b) and a == b else float("inf")


def write_or_compare(description, folder, names, golden):
    """The command line of an oracle: write ``golden(name)`` to ``folder`` for every name, or with ``--check`` compare
    it with the file there. Returns the exit code: 1 where a file differs."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check, failed = parser.parse_args().check, False
    for name in names:
        path, found = folder / f"{name}.json", golden(name)
        if not check:
            path.write_text(to_text(found), encoding="utf-8", newline="\n")
            print(f"wrote {path.relative_to(HERE)}")
            continue
        gap = difference(found, json.loads(path.read_text(encoding="utf-8"))) if path.exists() else float("inf")
        failed |= not gap <= 1e-12  # true for NaN too
        print(f"{'ok  ' if gap <= 1e-12 else 'FAIL'} {path.relative_to(HERE)}: difference {gap:.1e}")
    return int(failed)
