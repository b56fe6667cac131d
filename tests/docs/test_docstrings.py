"""Every public name has an example in its docstring, the examples run, and the reference has a place for each name."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import rondo

ROOT = Path(__file__).parents[2]
MODULES = ["rondo", *(f"rondo.{name}" for name in sorted(set(dir(rondo)) - set(rondo.__all__)))]


def public(name: str) -> list[str]:
    """The public names of a module: its ``__all__``, else what it defines or imports under its own name."""
    module = importlib.import_module(name)
    if hasattr(module, "__all__"):
        return [n for n in module.__all__ if n != "__version__"]
    names: list[str] = []
    for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.append(node.name)
            case ast.Assign():
                names += [target.id for target in node.targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=assigned)):
                names.append(assigned)
            case ast.ImportFrom():
                names += [alias.name for alias in node.names if alias.asname == alias.name]
    return [n for n in names if not n.startswith("_")]


def needs_example(value: Any) -> bool:
    return inspect.isfunction(value) or inspect.isclass(value)


NAMES = [(m, n) for m in MODULES for n in public(m) if needs_example(getattr(importlib.import_module(m), n))]


def has_example(module: str, name: str) -> bool:
    """Whether there is one in the docstring. A section of the configuration may be in its module's."""
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value) and issubclass(value, BaseModel):
        examples = doctest.DocTestParser().get_examples(importlib.import_module(module).__doc__ or "")
        return any(re.search(rf"\b{name}\b", example.source) for example in examples)
    return ">>> " in (value.__doc__ or "")


@functools.cache
def start(module: str) -> dict[str, Any]:
    """The names that the module's own examples leave, which those of its members go on from."""
    globs: dict[str, Any] = {"__name__": "__main__"}
    run(module, importlib.import_module(module).__doc__ or "", globs)
    return globs


def run(name: str, docstring: str, globs: dict[str, Any]) -> None:
    """Run the examples of a docstring, which may add to ``globs``."""
    test = doctest.DocTestParser().get_doctest(inspect.cleandoc(docstring), globs, name, None, 0)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append, clear_globs=False)
    globs.update(test.globs)
    assert said == [], "".join(said)


def test_every_public_function_and_class_has_an_example() -> None:
    assert [f"{module}.{name}" for module, name in NAMES if not has_example(module, name)] == []


@pytest.mark.parametrize("module", MODULES)
def test_reference_has_every_public_name(module: str) -> None:
    page = (ROOT / "docs" / "reference" / f"{module.rpartition('.')[2]}.md").read_text(encoding="utf-8")
    assert sorted(re.findall(rf"^::: {module}\.(\w+)$", page, re.M)) == sorted(public(module))


LAWS = [pytest.param(m, marks=pytest.mark.slow) for m in ("rondo.algorithm", "rondo.testing")]


@pytest.mark.parametrize("module", [*(m for m in MODULES[1:] if m not in ("rondo.algorithm", "rondo.testing")), *LAWS])
def test_examples_of_a_module(module: str) -> None:
    for owner, name in NAMES:
        if owner == module:
            value = getattr(importlib.import_module(module), name)
            run(f"{module}.{name}", value.__doc__ or "", dict(start(module)))


@pytest.mark.slow
def test_examples_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share a folder with the runs of the module's first example."""
    monkeypatch.chdir(tmp_path)
    for module, name in NAMES:
        if module == "rondo":
            run(f"rondo.{name}", getattr(rondo, name).__doc__ or "", dict(start("rondo")))
