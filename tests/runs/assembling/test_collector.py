"""The garbage collector rests during imports, and imported objects become old at once."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator

import pytest

from rondo.runs.assembling.assemble import collector_paused


class Node:
    """An object that the collector tracks."""


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    assert gc.isenabled()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


def is_old(node: Node) -> bool:
    return any(other is node for other in gc.get_objects(generation=2))


def test_imported_objects_are_old_at_once() -> None:
    """Objects made while the collector rests join the old generation if a module was imported meanwhile."""
    sys.modules.pop("colorsys", None)
    with collector_paused():
        assert not gc.isenabled()
        node = Node()
        importlib.import_module("colorsys")
        assert not is_old(node)
    assert gc.isenabled()
    assert gc.get_freeze_count() < 10_000  # Python's own objects
    assert is_old(node)


def test_objects_stay_new_without_imports() -> None:
    """The collector then soon looks at the model of a finished run."""
    with collector_paused():
        node = Node()
    assert not is_old(node)


def test_disabled_collector_stays_disabled() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_inner_pause_does_not_resume_collection() -> None:
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_frozen_objects_stay_frozen() -> None:
    """Where the program froze objects itself, none is unfrozen and new objects stay new."""
    gc.freeze()
    count = gc.get_freeze_count()
    assert count > 10_000
    sys.modules.pop("colorsys", None)
    with collector_paused():
        node = Node()
        importlib.import_module("colorsys")
    assert gc.get_freeze_count() == pytest.approx(count, rel=0.01)
    assert not is_old(node)
