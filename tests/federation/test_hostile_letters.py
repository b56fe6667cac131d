"""A site with a valid key that sends its server what no site would: parts out of order, too many, and of others."""

from __future__ import annotations

import pytest
from flwr.proto import message_pb2
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from intruder import Intruder, Line

from rondo.federation.letter import PART
from rondo.federation.server.line.fleet import GONE

ROOM = 1000
"""Bytes of the largest reply in these tests."""


@pytest.fixture
def north(link: Line) -> Intruder:
    site = link.site("north")
    assert site.connect().status_code == 200
    return site


@pytest.fixture
def south(link: Line) -> Intruder:
    site = link.site("south")
    assert site.connect().status_code == 200
    return site


def sent(link: Line, site: Intruder, room: int = ROOM, letter: bytes = b"work") -> str:
    """The number of a letter to north that it has heard of."""
    number = link.link.send("north", "round", letter, 60.0, room)
    assert number is not None
    assert site.pull() == number
    return number


@pytest.mark.parametrize("size", [0, 4, PART - 1, PART, PART + 1, 3 * PART])
def test_honest_reply(link: Line, north: Intruder, size: int) -> None:
    number, reply = sent(link, north, room=size), bytes([7]) * size
    assert link.link.reply(number) is None
    assert north.reply(number, reply)
    assert link.link.reply(number) == reply
    assert link.link.reply(number) is None


@pytest.mark.parametrize("room", [ROOM, PART + ROOM])
def test_reply_larger_than_asked_for_is_an_empty_one(link: Line, north: Intruder, room: int) -> None:
    """Nothing of it is kept, and nothing more is taken."""
    number = sent(link, north, room=room)
    assert not north.reply(number, bytes(room + 1))
    assert link.link._links._posts[number].reply.getvalue() == b""
    assert not north.put(number, 0, b"done")
    assert link.link.reply(number) == b""


@pytest.mark.parametrize("places", [[1], [0, 0], [0, 2], [0, 10**9 - 1]])
def test_part_out_of_its_order_is_not_taken(link: Line, north: Intruder, places: list[int]) -> None:
    number = sent(link, north, room=2 * PART)
    *first, last = places
    assert [north.put(number, place, bytes(PART)) for place in first] == [True] * len(first)
    assert not north.put(number, last, b"x")
    assert link.link.reply(number) is None
    assert north.put(number, len(first), b"end")
    assert link.link.reply(number) == bytes(PART) * len(first) + b"end"


def test_only_the_site_that_was_asked_can_answer(link: Line, north: Intruder, south: Intruder) -> None:
    number = sent(link, north)
    assert not south.reply(number, b"mine")
    assert link.link.reply(number) is None
    assert north.reply(number, b"done")
    assert link.link.reply(number) == b"done"


def test_letters_of_another_site_cannot_be_had(link: Line, north: Intruder, south: Intruder) -> None:
    number = link.link.send("north", "round", b"secret", 60.0, ROOM)
    assert number is not None
    assert south.get(number) is None
    assert north.get(number) == b"secret"
    assert north.get(number, 1) == b""
    link.link.forget(number)
    assert north.get(number) is None


def test_second_and_late_replies(link: Line, north: Intruder) -> None:
    number = sent(link, north)
    assert north.reply(number, b"first")
    assert not north.reply(number, b"second")
    assert link.link.reply(number) == b"first"
    assert not north.reply(number, b"late")
    assert link.link.reply(number) is None
    number = sent(link, north)
    link.link.forget(number)
    assert not north.reply(number, b"late")
    assert link.link.reply(number) is None
    assert not link.link._links._posts


@pytest.mark.parametrize("name", ["", "x", "0" * 32, "0" * 32 + "/-1", "0" * 32 + "/" + "9" * 5000, "../" * 11 + "/0"])
def test_malformed_names_of_parts(link: Line, north: Intruder, name: str) -> None:
    for route, asked in (
        ("pull-object", message_pb2.PullObjectRequest(node=north.node, object_id=name)),
        ("push-object", message_pb2.PushObjectRequest(node=north.node, object_id=name)),
    ):
        assert north.post(route, asked).status_code == 400


def test_letter_whose_time_is_up_is_not_handed_out(link: Line, north: Intruder) -> None:
    number = link.link.send("north", "round", b"late", 0.0, ROOM)
    assert number is not None
    assert north.pull() is None
    assert north.get(number) is None


@pytest.mark.parametrize("interval", [0.0, -1.0, float("nan"), float("inf"), 1e9, 1800.0])
def test_no_heartbeat_holds_longer_than_another(interval: float, link: Line, north: Intruder) -> None:
    asked = SendNodeHeartbeatRequest(node=north.node, heartbeat_interval=interval)
    assert north.post("send-node-heartbeat", asked).status_code == 200
    link.link._fleet.places._places["north"].heard -= GONE
    assert "north" not in link.link.present()
