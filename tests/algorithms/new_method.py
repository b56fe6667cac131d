"""Writes the stubs of a method for low-rank factors: python tests/algorithms/new_method.py NAME"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CLASS = '''from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Trainer, Uploads, Weight
from rondo.algorithms.parts.training import trained_uploads
from rondo.params import Params
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class {cls}(Algorithm[ServerState]):
    """TODO: what it does, in a sentence.

    Update, with p_k the participants' weights, summing to 1::

        client k:  TODO
        server:    TODO

    Symbols: TODO: the paper's letters in PEFT's, A (r x in), B (out x r).
    Uploads: TODO. Down: TODO.
    Exact: TODO.
    Linear: TODO.
    Personal: TODO.
    Head in the source: TODO.
    Deviations: TODO.
    Reference: TODO.
    """

    traits = Traits(exact=False)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return ServerState(params)

    def broadcast(self, state: ServerState, client: Client, round: Round) -> Shared:
        return Shared(state.params)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trained_uploads(shared.params, trainer), local
'''

ENTRY = """    "{name}": Entry(
        cls="rondo.algorithms.factors.{module}:{cls}",
        summary="TODO",
        paper="TODO",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
    ),
"""

LEFT = """{name} has its class, its entry and its rows in the tables. It is FedIT until you change it. Left to do:
  the paper card and the method    src/rondo/algorithms/factors/{module}.py
  summary, paper and bytes         src/rondo/algorithms/factors/entries.py
  what is generated from both      python tests/algorithms/declare.py; python tests/algorithms/page_tables.py
  two golden files                 tests/golden/generate.py, generate_wide.py: NumPy, from the paper, not from the class
  the laws                         rondo check {name}
  a line, for a new kind           tests/methods.py
"""


def main(name: str) -> None:
    """Write the stubs of the method ``name``. Nothing is overwritten."""
    module = name.replace("-", "_")
    folder = ROOT / "src" / "rondo" / "algorithms" / "factors"
    place, entries = folder / f"{module}.py", folder / "entries.py"
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or place.exists():
        sys.exit(f"NAME={name}: give a new name of small letters and hyphens, such as my-method")
    cls = "".join(part.capitalize() for part in name.split("-"))
    place.write_text(CLASS.format(cls=cls), encoding="utf-8")
    table = entries.read_text(encoding="utf-8")
    end = table.rindex("}\n")
    entries.write_text(table[:end] + ENTRY.format(name=name, module=module, cls=cls) + table[end:], encoding="utf-8")
    for script in ("declare.py", "page_tables.py"):
        subprocess.run([sys.executable, Path(__file__).with_name(script)], check=True)
    print(LEFT.format(name=name, module=module))


if __name__ == "__main__":
    main(*sys.argv[1:])
