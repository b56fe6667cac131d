"""Keys that enter the roster while the server runs: of a new site, and a site's next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from intruder import Intruder, line

from rondo.federation.identity.roster import Roster
from rondo.federation.program import Program


def test_new_site_is_let_in(tmp_path: Path) -> None:
    with line(tmp_path / "keys") as link:
        roster = link.roster[0]
        link.roster[0] = Roster(roster.sites[:1])
        south = link.site("south")
        assert south.connect().status_code == 403
        assert link.link.send("south", "round", b"letter", 60.0, 100) is None
        link.roster[0] = roster
        assert south.connect().status_code == 200
        assert "south" in link.link.present()
        number = link.link.send("south", "round", b"letter", 60.0, 100)
        message = south.pull()
        assert message is not None
        assert message == number


def test_next_key_of_a_site(tmp_path: Path) -> None:
    """Its program is started anew with the new key, and is the same site."""
    with line(tmp_path / "keys") as link:
        before = Program.fresh()
        old = link.site("north", before)
        assert old.connect().status_code == 200
        key = ec.generate_private_key(ec.SECP256R1())
        pem = public_key_to_bytes(key.public_key()).decode()
        sites = link.roster[0].sites
        link.roster[0] = Roster(tuple(replace(s, public_key=pem) if s.name == "north" else s for s in sites))
        assert "north" not in link.link.present()
        assert old.post("pull-messages", PullMessagesRequest(node=old.node)).status_code == 403
        new = Intruder(link.link.port, key, old.ca, Program.fresh(before.ids))
        assert new.connect().status_code == 200
        assert "north" in link.link.present()
        number = link.link.send("north", "round", b"letter", 60.0, 100)
        message = new.pull()
        assert message is not None
        assert message == number
