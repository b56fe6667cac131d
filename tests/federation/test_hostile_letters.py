"""A site with a valid key that sends Flower's server what no site would: trees, objects and numbers of others."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("flwr")

import itertools

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, get_object_tree
from intruder import Intruder, Line, line

from rondo.federation.letter import record

ROOM = 1000
"""Bytes of the largest reply in these tests."""


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with line(tmp_path_factory.mktemp("line") / "keys") as made:
        yield made


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


def sent(link: Line, site: Intruder, name: str = "north", letter: bytes = b"work") -> tuple[str, Message]:
    """A letter that was sent and has been pulled."""
    number = link.link.send(name, "round", letter, 60.0, ROOM)
    message = site.pull()
    assert number is not None
    assert message is not None
    assert message.metadata.message_id == number
    return number, message


def comes(link: Line, number: str) -> bytes | None:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if (reply := link.link.reply(number)) is not None:
            return reply
        time.sleep(0.01)
    return None


def session(answer: Any) -> fleet_pb2.PushMessagesResponse:
    assert answer.status_code == 200, answer.text
    return fleet_pb2.PushMessagesResponse.FromString(answer.content)


def test_honest_reply(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    assert link.link.reply(number) is None
    north.reply(message, b"done")
    assert comes(link, number) == b"done"
    assert link.link.reply(number) is None


@pytest.mark.parametrize(("more", "taken"), [(0, b"done"), (1, b"")])
def test_reply_as_large_as_may_be(link: Line, north: Intruder, more: int, taken: bytes) -> None:
    """The room for a letter's form is filled by the name of its type, which is not part of the letter."""
    number, message = sent(link, north)

    def padded(length: int) -> RecordDict:
        array = Array(dtype="uint8", shape=(4,), stype="x" * length, data=b"done")
        return RecordDict({"rondo": ArrayRecord({"letter": array})})

    def size(length: int) -> int:
        parts = get_all_nested_objects(Message(padded(length), reply_to=message)).values()
        return sum(len(part.deflate()) for part in parts)

    length = 2**20
    length += ROOM + 2**20 - size(length) + more
    assert size(length) == ROOM + 2**20 + more
    north.reply(message, padded(length))
    assert comes(link, number) == taken


@pytest.mark.parametrize("ahead", [-290.0, 290.0])
def test_reply_of_a_site_with_another_clock(
    link: Line, north: Intruder, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """It may be wrong by five minutes, however short the time to answer."""
    number, message = sent(link, north)
    clock = sys.modules[Message.__module__]
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC) + timedelta(seconds=ahead))
    north.reply(message, b"a reply")
    assert comes(link, number) == b"a reply"


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"rondo": ConfigRecord({"letter": b"x"})}),
        RecordDict({"rondo": MetricRecord({"letter": 1.0})}),
        RecordDict({"rondo": ArrayRecord({"other": Array("uint8", (1,), "x", b"x")})}),
        RecordDict({"other": ArrayRecord({"letter": Array("uint8", (1,), "x", b"x")})}),
    ],
    ids=["empty", "config", "metric", "other array", "other record"],
)
def test_reply_without_a_letter_is_an_empty_one(link: Line, north: Intruder, content: RecordDict) -> None:
    number, message = sent(link, north)
    north.reply(message, content)
    assert comes(link, number) == b""


def test_reply_that_is_an_error(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    error = Message(Error(code=0, reason="no"), reply_to=message)
    pushed = session(north.push(error))
    north.put(pushed.session_id, message.metadata.run_id, error.object_id, error.deflate())
    assert comes(link, number) == b""


def test_number_of_the_reply_is_not_that_of_its_tree(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    reply = Message(record(b"done"), reply_to=message)
    for name in ("no digest", "0" * 64):
        north.push(reply, number=name)
    assert comes(link, number) == b""


@pytest.mark.parametrize("root", [ArrayRecord(), RecordDict(), Array("uint8", (1,), "x", b"x")])
def test_root_is_no_message(link: Line, north: Intruder, root: Any) -> None:
    number, message = sent(link, north)
    reply = Message(record(b"done"), reply_to=message)
    pushed = session(north.push(reply, tree=get_object_tree(root), number=root.object_id))
    for name, part in get_all_nested_objects(root).items():
        assert north.put(pushed.session_id, message.metadata.run_id, name, part.deflate())
    assert comes(link, number) == b""


def test_message_whose_content_is_an_array(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    reply = Message(record(b"done"), reply_to=message)
    reply.metadata.__dict__["_message_id"] = ""
    reply._content = reply.content.array_records["rondo"]  # type: ignore[attr-defined]
    parts = get_all_nested_objects(reply)
    root = get_object_id(reply.deflate())
    pushed = session(north.push(Message(record(b"done"), reply_to=message), tree=get_object_tree(reply), number=root))
    for name, part in parts.items():
        north.put(pushed.session_id, message.metadata.run_id, name, part.deflate())
    assert comes(link, number) == b""


def test_tree_that_grows_without_end(link: Line, north: Intruder) -> None:
    """Every object twice below the next: 2 ** 40 nodes, announced in 80."""
    number, message = sent(link, north)
    reply = Message(record(b"done"), reply_to=message)
    names = [f"{i:064x}" for i in range(1, 41)]
    children = [ObjectTree(object_id=names[0])]
    for below, name in itertools.pairwise(names):
        children.append(ObjectTree(object_id=name, children=[ObjectTree(object_id=below)] * 2))
    tree = ObjectTree(object_id=reply.object_id, children=children)
    began = time.monotonic()
    pushed = session(north.push(reply, tree=tree))
    assert set(pushed.objects_to_push) == {*names, reply.object_id}
    assert link.link.reply(number) is None  # it waits for the parts
    link.link.forget(number)
    assert time.monotonic() - began < 5


def array_of(chunk: bytes, times: int) -> dict[str, bytes]:
    """The objects of an array that names one chunk many times."""
    small = get_all_nested_objects(record(chunk).array_records["rondo"]["letter"])
    *chunks, (old, array) = small.items()
    content = array.deflate().partition(b"\0")
    body = content[2].replace(b"[0]", b"[" + b",".join([b"0"] * times) + b"]")
    head = content[0].rpartition(b" ")[0] + b" %d" % len(body)
    return {**{n: c.deflate() for n, c in chunks}, old: head + b"\0" + body}


def test_array_that_unpacks_to_far_more_than_was_sent(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    reply = Message(record(b"x" * 500_000), reply_to=message)
    parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
    bomb = array_of(b"x" * 500_000, 20_000)  # 10 GB
    names = {old: get_object_id(content) for old, content in bomb.items()}
    for name, content in parts.items():  # each above the array names its children's new ids
        content = bomb.get(name, content)
        for old, new in names.items():
            content = content.replace(old.encode(), new.encode())
        names[name] = get_object_id(content)
        parts[name] = content
    ids = list(names.values())
    tree = ObjectTree(object_id=names[reply.object_id], children=[ObjectTree(object_id=i) for i in ids[:-1]])
    pushed = session(north.push(reply, tree=tree, number=names[reply.object_id]))
    for name, content in parts.items():
        assert north.put(pushed.session_id, message.metadata.run_id, names[name], content)
    assert comes(link, number) == b""


def test_reply_larger_than_asked_for_is_an_empty_one(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    north.reply(message, bytes(range(256)) * 50_000)
    assert comes(link, number) == b""


def test_tree_of_many_objects(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    reply = Message(record(b"done"), reply_to=message)
    leaves = [ObjectTree(object_id=f"{i:064x}") for i in range(14_000)]
    pushed = session(north.push(reply, tree=ObjectTree(object_id=reply.object_id, children=leaves)))
    assert pushed.session_id
    leaves *= 2
    assert north.push(reply, tree=ObjectTree(object_id=reply.object_id, children=leaves)).status_code == 413
    link.link.forget(number)


def test_only_the_site_that_was_asked_can_answer(link: Line, north: Intruder, south: Intruder) -> None:
    number, message = sent(link, north)
    forged = Message(record(b"mine"), reply_to=message)
    assert south.push(forged).status_code == 403  # north's node as the sender
    forged.metadata.__dict__["_src_node_id"] = south.node.node_id
    assert session(south.push(forged)).objects_to_push == []
    assert link.link.reply(number) is None
    north.reply(message, b"done")
    assert comes(link, number) == b"done"


def test_session_of_another_site(link: Line, north: Intruder, south: Intruder) -> None:
    number, message = sent(link, north)
    reply = Message(record(b"done"), reply_to=message)
    pushed = session(north.push(reply))
    for name, part in get_all_nested_objects(reply).items():
        for session_id in ("", "0" * 32):
            assert not south.put(session_id, message.metadata.run_id, name, part.deflate())
        assert not north.put(pushed.session_id, message.metadata.run_id, name, b"another")
    assert link.link.reply(number) is None
    link.link.forget(number)


def test_object_that_comes_twice_counts_once(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    reply = Message(record(b"done"), reply_to=message)
    pushed, parts = session(north.push(reply)), get_all_nested_objects(reply)

    def put(name: str) -> bool:
        return bool(north.put(pushed.session_id, message.metadata.run_id, name, parts[name].deflate()))

    first, *others = parts
    assert [put(first) for _ in parts] == [True] + [False] * len(others)
    assert link.link.reply(number) is None
    assert [put(name) for name in others] == [True] * len(others)
    assert comes(link, number) == b"done"


def test_letters_of_another_site_cannot_be_had(link: Line, north: Intruder, south: Intruder) -> None:
    number = link.link.send("north", "round", b"secret", 60.0, ROOM)
    assert number is not None
    parts = [number, *(n for n, _ in get_all_nested_objects(record(b"secret")).items())]
    for name in parts:
        asked = message_pb2.PullObjectRequest(node=south.node, object_id=name)
        assert south.post("pull-object", asked).status_code == 403
        received = message_pb2.ConfirmMessageReceivedRequest(node=south.node, message_object_id=name)
        assert south.post("confirm-message-received", received).status_code == 403
    message = north.pull()
    assert message is not None
    for name in parts:
        asked = message_pb2.PullObjectRequest(node=north.node, run_id=message.metadata.run_id, object_id=name)
        answer = north.post("pull-object", asked)
        assert message_pb2.PullObjectResponse.FromString(answer.content).object_available
    link.link.forget(number)


def test_second_and_late_replies(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    north.reply(message, b"first")
    north.reply(message, b"second")
    assert comes(link, number) == b"first"
    north.reply(message, b"late")
    assert link.link.reply(number) is None
    number, message = sent(link, north)
    link.link.forget(number)
    north.reply(message, b"late")
    assert link.link.reply(number) is None


def test_malformed_announcements(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    reply = Message(record(b"done"), reply_to=message)
    node = north.node
    empty = fleet_pb2.PushMessagesRequest(node=node)
    assert north.post("push-messages", empty).status_code == 403
    assert north.push(reply, tree=ObjectTree()).status_code in (200, 400, 500)
    other = Message(record(b"x"), reply_to=message)
    other.metadata.__dict__.update(_run_id=7)
    assert north.push(other).status_code in (200, 500)
    made_up = Metadata(message.metadata.run_id, "", node.node_id, 1, "f" * 64, "", time.time(), 9.0, "train")
    assert session(north.push(Message(record(b"x"), metadata=made_up))).objects_to_push == []
    assert comes(link, number) == b""


def test_nothing_of_rejected_announcements_stays(link: Line, north: Intruder) -> None:
    number, message = sent(link, north)
    link.link.forget(number)
    links = link.link._links
    for _ in range(50):
        assert session(north.push(Message(record(b"late"), reply_to=message))).objects_to_push == []
        north.post("push-messages", fleet_pb2.PushMessagesRequest(node=north.node))
    assert not links._object_push_sessions
    assert not links._sessions
    assert not links._posts
    assert not links.message_ins_store
    assert not links.message_res_store
    assert not len(links.object_store)


def test_letter_is_whole_when_it_can_be_seen(link: Line, north: Intruder) -> None:
    """A site that asks while a large letter is being left must not get a part of it."""
    letter = bytes(range(256)) * 200_000  # ten objects
    for _ in range(5):
        numbers: list[str | None] = []
        thread = threading.Thread(
            target=lambda into=numbers: into.append(link.link.send("north", "round", letter, 60.0, ROOM))
        )
        thread.start()
        while (message := north.pull()) is None:
            time.sleep(0.001)
        tree = get_all_nested_objects(record(letter))
        for name in tree:
            asked = message_pb2.PullObjectRequest(node=north.node, run_id=message.metadata.run_id, object_id=name)
            answer = message_pb2.PullObjectResponse.FromString(north.post("pull-object", asked).content)
            assert answer.object_available
        thread.join()
        assert numbers[0] is not None
        link.link.forget(numbers[0])


def test_heartbeat_of_an_hour_and_of_nonsense(link: Line, north: Intruder) -> None:
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

    for interval in (0.0, -1.0, float("nan"), float("inf"), 1e9):
        asked = SendNodeHeartbeatRequest(node=north.node, heartbeat_interval=interval)
        assert north.post("send-node-heartbeat", asked).status_code == 400, interval
    asked = SendNodeHeartbeatRequest(node=north.node, heartbeat_interval=1800.0)
    assert north.post("send-node-heartbeat", asked).status_code == 200
    online_until = link.link._links.nodes[north.node.node_id].online_until
    assert online_until is not None
    assert online_until < time.time() + 100


def test_reply_is_too_large_by_all_its_objects_together(link: Line, north: Intruder) -> None:
    """Each is within the limit: none after the limit is taken or kept."""
    number, message = sent(link, north)
    arrays = {str(i): Array(dtype="uint8", shape=(600_000,), stype="x", data=bytes([i]) * 600_000) for i in range(3)}
    reply = Message(RecordDict({"rondo": ArrayRecord(arrays)}), reply_to=message)
    pushed = session(north.push(reply))
    objects = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
    largest = sorted(objects, key=lambda name: -len(objects[name]))
    run = message.metadata.run_id
    taken = [north.put(pushed.session_id, run, name, objects[name]) for name in largest]
    assert taken == [True] + [False] * (len(objects) - 1)
    assert comes(link, number) == b""
