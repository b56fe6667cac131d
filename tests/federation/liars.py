"""A site that lies: it answers letters as a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rondo.federation.site.desk import Desk

Lie = Callable[[Any, str | None, bytes], bytes]
"""Given the honest desk, a letter's kind and the letter, the answer."""


def lying(monkeypatch: pytest.MonkeyPatch, lie: Lie) -> None:
    """North answers by ``lie``; other sites answer as they do."""
    real = Desk.answer

    def answer(self: Desk, kind: str | None, letter: bytes) -> bytes:
        if "ann" not in self.rows:
            return real(self, kind, letter)
        return lie(_honest(self, real), kind, letter)

    monkeypatch.setattr(Desk, "answer", answer)


def _honest(desk: Desk, real: Any) -> Any:
    class Honest:
        rows = desk.rows
        answer = staticmethod(lambda kind, letter: real(desk, kind, letter))

    return Honest
