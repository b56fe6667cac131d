"""A letter that the server withdraws while a site fetches it: the site goes on, over the same connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from intruder import line

from rondo.federation.keys import SiteKeys
from rondo.federation.letter import content_of
from rondo.federation.supernode import SuperNode


@pytest.mark.parametrize("step", ["PullObject", "ConfirmMessageReceived"])
def test_withdrawn_letter_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    with line(tmp_path / "keys") as link:
        keys = SiteKeys.read(link.folder / "north")
        with SuperNode(f"localhost:{link.link.port}", keys.private_key, keys.ca) as node:
            since = link.link.present()["north"]
            number = link.link.send("north", "round", b"late", 60.0, 100)
            assert number is not None
            fetch = getattr(node._client, step)

            def too_late(asked: Any) -> Any:
                link.link.forget(number)
                return fetch(asked)

            monkeypatch.setattr(node._client, step, too_late)
            assert node.next() is None
            monkeypatch.undo()
            link.link.send("north", "round", b"next", 60.0, 100)
            message = node.next()
            assert message is not None
            assert content_of(message) == b"next"
            assert link.link.present()["north"] == since
