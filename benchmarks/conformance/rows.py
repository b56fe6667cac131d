"""One row of the table: published code that is imported as it is, given uploads, and its oracle."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from oracles import Array, Draw

DRAWS = 3


@dataclass(frozen=True)
class Source:
    """A public repository at a commit, in a folder of the clones, with the folders that its programs import from."""

    repository: str
    commit: str
    roots: tuple[str, ...] = (".",)
    folder: str = ""

    @property
    def name(self) -> str:
        """The folder of the clone."""
        return self.folder or self.repository.split("/")[1]


Load = Callable[[str], Any]
"""From a module's name to the module of the clone."""


@dataclass(frozen=True)
class Row:
    """One aggregation by published code.

    ``run`` gets a loader of the clone's modules and the uploads, and returns what the code computes; ``oracle`` what
    the paper defines. ``stubs`` are packages whose import is replaced: their names exist and do nothing, and modules
    in the clone's folder of that name are still the clone's.
    """

    source: Source
    method: str
    code: str
    run: Callable[[Load, Draw], Array]
    oracle: Callable[[Draw], Array]
    sentence: str
    stubs: tuple[str, ...] = ()
    draw: Callable[[int], Draw] = Draw.of
    reported: str = "not yet"


class Stub(types.ModuleType):
    """Stands for a package that the code imports and that the aggregation does not use."""

    def __init__(self, name: str, path: Sequence[str]) -> None:
        super().__init__(name)
        self.__path__, self.__all__ = list(path), []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def borrowed(roots: Sequence[Path], stubs: Sequence[str]) -> Iterator[Load]:
    """A loader of the modules under ``roots``; afterwards none of them is left among the imported."""
    before, path, argv = dict(sys.modules), list(sys.path), sys.argv
    sys.path[:0], sys.argv = map(str, roots), argv[:1]
    try:
        yield lambda name: _imported(name, roots, stubs)
    finally:
        sys.path[:], sys.argv = path, argv
        new = [name for name in sys.modules if name not in before and _of(sys.modules[name], roots)]
        for name in new:
            del sys.modules[name]


def _of(module: Any, roots: Sequence[Path]) -> bool:
    """Whether ``module`` is a stub or comes from one of ``roots``. A folder without __init__.py has no file."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return isinstance(module, Stub) or any(Path(file).is_relative_to(root) for root in roots)


def _imported(name: str, roots: Sequence[Path], stubs: Sequence[str]) -> Any:
    """The module, imported while ``stubs`` are in place of packages that are imported already, too."""
    real = {stub: sys.modules[stub] for stub in stubs if stub in sys.modules}
    for stub in stubs:
        inside = [str(root / stub.replace(".", "/")) for root in roots]
        sys.modules[stub] = Stub(stub, [folder for folder in inside if Path(folder).is_dir()])
    try:
        return importlib.import_module(name)
    finally:
        sys.modules.update(real)


def difference(found: Array, expected: Array) -> float:
    """|found - expected| / |expected|, Frobenius; infinite where the shapes differ."""
    if found.shape != expected.shape:
        return float("inf")
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def largest(run: Callable[[Draw], Array], oracle: Callable[[Draw], Array], draw: Callable[[int], Draw]) -> str:
    """The largest relative difference over the draws; as a power of ten if it is rounding."""
    worst = max(difference(run(d), oracle(d)) for d in map(draw, range(DRAWS)))
    return f"{worst:.0e}" if 0 < worst < 1e-4 else f"{worst:.3g}"


def outcome(row: Row, clones: Path) -> str:
    """The row's difference, or the error that stops the code."""
    roots = [(clones / row.source.name / root).resolve() for root in row.source.roots]
    if not all(root.is_dir() for root in roots):
        return "not fetched"
    try:
        with borrowed(roots, row.stubs) as load, contextlib.redirect_stdout(io.StringIO()):
            return largest(lambda d: row.run(load, d), row.oracle, row.draw)
    except Exception as error:  # the code stops, and that is the result
        return type(error).__name__
