"""The stubs of ``make method`` are a lawful method from the start."""

from __future__ import annotations

from typing import Any

from new_method import CLASS, ENTRY

from rondo.algorithms import formulas
from rondo.algorithms.entries import Entry
from rondo.testing import check_algorithm


def test_stub_of_a_class_obeys_the_laws() -> None:
    scope: dict[str, Any] = {"__name__": "stub"}
    exec(CLASS.format(cls="MyMethod"), scope)
    assert [r for r in check_algorithm(scope["MyMethod"](), seeds=(0,)) if r.outcome == "failed"] == []


def test_stub_of_an_entry_is_one() -> None:
    text = ENTRY.format(name="my-method", module="my_method", cls="MyMethod")
    entry = eval(f"{{{text}}}", {"Entry": Entry, "formulas": formulas})["my-method"]
    assert (entry.cls, entry.core) == ("rondo.algorithms.factors.my_method:MyMethod", False)
