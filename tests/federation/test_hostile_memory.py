"""A SuperLink over many rounds: nothing of a letter stays when it is answered or given up."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest
from intruder import Line

from rondo.federation.identity.keys import SiteKeys
from rondo.federation.letter import PART
from rondo.federation.site.line.supernode import SuperNode

LETTER = bytes(range(256)) * 4096
"""A megabyte."""


def resident() -> int:
    """Bytes of this process's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def sizes(link: Line) -> dict[str, int]:
    """The number of entries of everything that the line holds."""
    held = {**vars(link.link._links), **vars(link.link._fleet), **vars(link.link._fleet.places)}
    counted = {k: len(v) for k, v in held.items() if isinstance(v, dict | set | list)}
    inner = [x for v in held.values() if isinstance(v, dict) for x in v.values() if isinstance(x, dict | set | list)]
    return counted | {"inside of them": sum(map(len, inner))}


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_rounds_leave_nothing(link: Line, rounds: int) -> None:
    keys = SiteKeys.read(link.folder / "north")
    address = f"localhost:{link.link.port}"
    stop = threading.Event()

    def site() -> None:
        with SuperNode(address, keys.private_key, keys.ca) as node:
            while not stop.is_set():
                message = node.next()
                if message is None:
                    time.sleep(0.005)
                elif message.data != b"forget":
                    node.answer(message, message.data[::-1])

    thread = threading.Thread(target=site)
    thread.start()
    late = link.site("south")
    late.connect()
    try:
        while "north" not in link.link.present():
            time.sleep(0.01)
        before, grown = None, 0
        for number in range(rounds + 5):
            letter = number.to_bytes(4, "little") + LETTER
            sent = link.link.send("north", "round", letter, 60.0, len(letter))
            given_up = link.link.send("north", "round", b"forget", 60.0, 100)
            half = link.link.send("south", "round", letter, 60.0, 2 * PART)
            assert None not in (sent, given_up, half)
            assert half is not None
            asked = late.pull()
            assert asked is not None
            late.put(asked, 0, bytes(PART))  # and never the rest
            while (reply := link.link.reply(sent)) is None:
                time.sleep(0.002)
            assert reply == letter[::-1]
            link.link.forget(given_up)
            link.link.forget(half)
            late.reply(asked, letter)
            if number == 4:
                gc.collect()
                before, start = sizes(link), resident()
        gc.collect()
        grown = resident() - start
        after = sizes(link)
        assert after == before
        print(f"{rounds} rounds: {grown / 1e6:.1f} MB more")
        if rounds >= 200:
            assert grown < 100e6, "a leak of a letter a round is twice as much"
    finally:
        stop.set()
        thread.join()
