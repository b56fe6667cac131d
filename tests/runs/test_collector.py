"""What the garbage collector sees of imports."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator

import pytest

from rondo.runs.collector import collector_paused


class Node:
    """Something that the collector looks at."""


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    assert gc.isenabled()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


def is_old(node: Node) -> bool:
    return any(other is node for other in gc.get_objects(generation=2))


def test_what_is_made_with_imports_while_the_collector_rests_is_old_at_once() -> None:
    sys.modules.pop("colorsys", None)
    with collector_paused():
        assert not gc.isenabled()
        node = Node()
        importlib.import_module("colorsys")
        assert not is_old(node)
    assert gc.isenabled()
    assert gc.get_freeze_count() < 10_000  # Python's own
    assert is_old(node)


def test_what_is_made_without_imports_is_new() -> None:
    """So that the collector soon looks at the model of a run that is over."""
    with collector_paused():
        node = Node()
    assert not is_old(node)


def test_it_rests_on_where_it_rested_before() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_an_inner_one_does_not_wake_it() -> None:
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_a_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    assert count > 10_000
    sys.modules.pop("colorsys", None)
    with collector_paused():
        node = Node()
        importlib.import_module("colorsys")
    assert gc.get_freeze_count() == pytest.approx(count, rel=0.01)
    assert not is_old(node)
