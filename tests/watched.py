"""Functions that are noted, fail or have a bug within a block."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest


class Call(NamedTuple):
    """A call that was noted."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]
    answer: Any


@contextmanager
def planted(owner: Any, name: str, instead: Any) -> Iterator[None]:
    """Within, something else stands in the place of a module's or class's ``name``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, instead)
        yield


@contextmanager
def noted(owner: Any, name: str) -> Iterator[list[Call]]:
    """The calls of a function within, which works as ever."""
    real, calls = getattr(owner, name), list[Call]()

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(Call(arguments, options, real(*arguments, **options)))
        return calls[-1].answer

    with planted(owner, name, call):
        yield calls


@contextmanager
def failing(owner: Any, name: str, error: BaseException, at: int = 0) -> Iterator[None]:
    """Within, a function raises ``error`` at its ``at``-th call and from then on."""
    real: Callable[..., Any] = getattr(owner, name)
    calls = itertools.count()

    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) >= at:
            raise error
        return real(*arguments, **options)

    with planted(owner, name, call):
        yield
