"""A question for letters is held back until there is one, so that idle sites cost the server next to nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from intruder import line

from rondo.federation.identity.keys import SiteKeys
from rondo.federation.site.line.supernode import SuperNode


@pytest.mark.slow
def test_question_waits_for_a_letter(tmp_path: Path) -> None:
    with line(tmp_path / "keys") as link:
        keys = SiteKeys.read(link.folder / "north")
        with SuperNode(f"localhost:{link.link.port}", keys.private_key, keys.ca) as node:
            began = time.monotonic()
            assert node.next() is None
            assert 0.9 < time.monotonic() - began < 5

            def post() -> None:
                assert link.link.send("north", "round", b"letter", 60.0, 100) is not None

            later = threading.Timer(0.4, post)
            later.start()
            began = time.monotonic()
            letter = node.next()
            later.join()
            assert letter is not None
            assert letter.data == b"letter"
            assert 0.4 < time.monotonic() - began < 0.9
            began = time.monotonic()
            assert node.next() is None  # a letter that was fetched is not handed out again
            assert time.monotonic() - began > 0.9
