"""Two programs with one key: the second is refused, and both ends of both lines hear of it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from flwr.proto.fleet_pb2 import DeactivateNodeRequest, PullMessagesRequest
from intruder import Line, line

from rondo.errors import ConfigError
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.program import FILE, Program, only_program
from rondo.federation.server.line import fleet
from rondo.federation.site.line.supernode import SuperNode, TurnedAway


def asked(link: Line, program: Program, name: str = "north") -> int:
    """The status of a question by a program that has connected."""
    site = link.site(name, program)
    site.node.node_id = fleet.number_of(name)
    return site.post("pull-messages", PullMessagesRequest(node=site.node)).status_code


def supernode(link: Line, program: Program, told: list[str], stop: threading.Event | None = None) -> SuperNode:
    keys = SiteKeys.read(link.folder / "north")
    return SuperNode(
        f"localhost:{link.link.port}", keys.private_key, keys.ca, program=program, told=told.append, stop=stop
    )


def test_second_program_is_refused_and_all_hear_of_it(tmp_path: Path) -> None:
    with line(tmp_path / "keys", held=5.0) as link:
        first: list[str] = []
        with supernode(link, Program.fresh(), first) as node:
            since = link.link.present()["north"]
            waiting = threading.Thread(target=node.next)
            waiting.start()
            time.sleep(0.3)
            for _ in range(3):  # it tries again, and is told of once
                second = supernode(link, Program(("a" * 32,)), [])
                with (
                    pytest.raises(
                        TurnedAway, match=r"north is connected already, from 127.0.0.1:.* since .*; this program"
                    ) as no,
                    second,
                ):
                    pass
            assert "have the key revoked" in str(no.value)
            waiting.join(timeout=3)
            assert not waiting.is_alive(), "the first one hears of it only later"
            assert link.link.present() == {"north": since}
            (told,) = link.told
            assert told.startswith("north is connected from 127.0.0.1:")
            assert "another program with its key, from 127.0.0.1:" in told
            (heard,) = first
            assert heard.startswith("another program with the key of north, from 127.0.0.1:")
            number = link.link.send("north", "round", b"letter", 60.0, 100)
            letter = node.next()
            assert letter is not None
            assert letter.number == number


def test_letters_go_to_the_first_program_alone(tmp_path: Path) -> None:
    with line(tmp_path / "keys") as link:
        first, second = Program.fresh(), Program.fresh()
        assert link.site("north", first).connect().status_code == 200
        assert link.site("north", second).connect().status_code == 409
        for route in ("pull-messages", "pull-object", "push-object", "send-node-heartbeat", "deactivate-node"):
            site = link.site("north", second)
            site.node.node_id = fleet.number_of("north")
            body = (
                DeactivateNodeRequest(node_id=site.node.node_id)
                if "deact" in route
                else PullMessagesRequest(node=site.node)
            )
            assert site.post(route, body).status_code == 409, route
        assert asked(link, first) == 200


def test_successor_takes_the_place_at_once(tmp_path: Path) -> None:
    """Of a program that was killed: it never said that it goes."""
    with line(tmp_path / "keys") as link:
        first = Program.fresh()
        assert link.site("north", first).connect().status_code == 200
        died_before_it_connected = Program.fresh(first.ids)
        third = Program.fresh(died_before_it_connected.ids)
        assert link.site("north", third).connect().status_code == 200
        assert link.told == []
        assert asked(link, first) == 409  # it lives: two machines have one folder
        assert len(link.told) == 1
        assert asked(link, third) == 200


def test_place_of_a_program_that_went_is_free(tmp_path: Path) -> None:
    with line(tmp_path / "keys") as link:
        with supernode(link, Program.fresh(), []):
            pass
        assert link.site("north", Program.fresh()).connect().status_code == 200


@pytest.mark.slow
def test_place_of_a_silent_program_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "SILENCE", 1.0)
    with line(tmp_path / "keys") as link:
        first, second = Program.fresh(), Program.fresh()
        assert link.site("north", first).connect().status_code == 200
        time.sleep(0.5)
        assert asked(link, first) == 200  # held for a second
        assert link.site("north", second).connect().status_code == 409
        time.sleep(1.2)
        assert link.site("north", second).connect().status_code == 200
        assert asked(link, first) == 409


def test_same_program_connects_again(tmp_path: Path) -> None:
    with line(tmp_path / "keys") as link:
        program = Program.fresh()
        for _ in range(3):
            assert link.site("north", program).connect().status_code == 200
        assert link.told == []


def test_stop_ends_a_question_that_is_held(tmp_path: Path) -> None:
    with line(tmp_path / "keys", held=15.0) as link:
        stop = threading.Event()
        with supernode(link, Program.fresh(), [], stop) as node:
            threading.Timer(0.5, stop.set).start()
            began = time.monotonic()
            assert node.next() is None
            assert time.monotonic() - began < 3
        assert "north" not in link.link.present()


def test_old_question_takes_no_letter_of_a_new_connection(tmp_path: Path) -> None:
    """The line was cut: the server still holds the question, and nobody would hear the answer."""
    with line(tmp_path / "keys", held=10.0) as link:
        program, before = Program.fresh(), []
        old = link.site("north", program)
        old.connect()
        thread = threading.Thread(target=lambda: before.append(old.pull()))
        thread.start()
        time.sleep(0.3)
        new = link.site("north", program)
        new.connect()
        number = link.link.send("north", "round", b"letter", 60.0, 100)
        pulled = new.pull()
        thread.join()
        assert before == [None]
        assert number is not None
        assert pulled == number


# --- the folder of a site -----------------------------------------------------------------------------------------


def test_program_names_those_before_it(tmp_path: Path) -> None:
    before: list[str] = []
    for _ in range(10):
        with only_program(tmp_path / "state") as program:
            assert list(program.ids[1:]) == before[:5]
            assert Program.parse((tmp_path / "state" / FILE).read_text()) == program
        before.insert(0, program.id)
    (tmp_path / "state" / FILE).write_text("\0broken")
    with only_program(tmp_path / "state") as program:
        assert len(program.ids) == 1


def test_folder_has_one_program(tmp_path: Path) -> None:
    with (
        only_program(tmp_path / "state"),
        pytest.raises(ConfigError, match="in use by another program of this site: stop it"),
        only_program(tmp_path / "state"),
    ):
        pass
    with only_program(tmp_path / "state"):
        pass


@pytest.mark.parametrize("text", ["", "a", "A" * 32, ",".join(["a" * 32] * 7), "a" * 32 + ",", "a" * 32 + "\n"])
def test_no_ids_of_programs(text: str) -> None:
    with pytest.raises(ValueError, match="no ids"):
        Program.parse(text)


def test_program_that_is_refused_leaves_no_connection(tmp_path: Path) -> None:
    """A site tries again every two seconds."""
    with line(tmp_path / "keys") as link, supernode(link, Program.fresh(), []):
        before = len(os.listdir("/dev/fd"))
        kept = [supernode(link, Program.fresh(), []) for _ in range(5)]
        for second in kept:
            with pytest.raises(TurnedAway), second:
                pass
        time.sleep(0.3)
        assert len(os.listdir("/dev/fd")) <= before + 1
