"""A letter that the server withdraws while a site fetches it: the site goes on, over the same connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from intruder import line

from rondo.federation.identity.keys import SiteKeys
from rondo.federation.site.line.supernode import SuperNode


def test_withdrawn_letter_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with line(tmp_path / "keys") as link:
        keys = SiteKeys.read(link.folder / "north")
        with SuperNode(f"localhost:{link.link.port}", keys.private_key, keys.ca) as node:
            since = link.link.present()["north"]
            number = link.link.send("north", "round", b"late", 60.0, 100)
            assert number is not None
            post = node._line.post

            def too_late(path: str, *rest: Any) -> bytes:
                if path.endswith("pull-object"):
                    link.link.forget(number)
                return post(path, *rest)

            monkeypatch.setattr(node._line, "post", too_late)
            assert node.next() is None
            monkeypatch.undo()
            link.link.send("north", "round", b"next", 60.0, 100)
            letter = node.next()
            assert letter is not None
            assert letter.data == b"next"
            assert link.link.present()["north"] == since
