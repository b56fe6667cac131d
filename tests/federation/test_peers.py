"""The other sites' keys beside a site's own: only they vouch for a key of a masked sum."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rondo.cli.app import app
from rondo.errors import ConfigError
from rondo.federation.identity import certificates, enrolment
from rondo.federation.identity.keys import SiteKeys, make
from rondo.federation.identity.peers import Offered, Voice, others
from rondo.federation.identity.roster import ACCEPTED, drawn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make(["localhost"], ["north", "south", "west"], tmp_path / "keys", days=10, clients={})
    return tmp_path / "keys"


def voice(folder: Path, name: str) -> Voice:
    found = Voice.of(SiteKeys.read(folder / name))
    assert found is not None
    return found


def test_each_site_verifies_the_others_and_nobody_else(folder: Path) -> None:
    north, south = voice(folder, "north"), voice(folder, "south")
    assert (north.name, set(north.peers)) == ("north", {"south", "west"})
    signature = south.sign(b"text")
    assert north.peers["south"](signature, b"text")
    assert not north.peers["south"](signature, b"texts")
    assert not north.peers["west"](signature, b"text")
    assert not north.peers["south"](b"none", b"text")


def test_site_without_the_file_has_no_voice(folder: Path) -> None:
    (folder / "north" / "peers.json").unlink()
    assert Voice.of(SiteKeys.read(folder / "north")) is None


def spoiled(folder: Path, change: Callable[[list[dict[str, Any]]], Any]) -> Path:
    path = folder / "north" / "peers.json"
    content = json.loads(path.read_text())
    change(content["sites"])
    path.write_text(json.dumps(content))
    return path


def accepted(folder: Path) -> None:
    """Take in the file that is there, whatever it changes."""
    (folder / "north" / ACCEPTED).write_bytes((folder / "north" / "peers.json").read_bytes())


@pytest.mark.parametrize("change", [{"expires": "2020-01-01"}, {"revoked": True}])
def test_key_that_has_expired_or_is_revoked_vouches_for_nothing(folder: Path, change: dict[str, Any]) -> None:
    spoiled(folder, lambda sites: sites[1].update(change))
    accepted(folder)
    assert set(voice(folder, "north").peers) == {"west"}


def test_own_key_may_be_newer_than_the_file(folder: Path) -> None:
    spoiled(folder, lambda sites: sites.__setitem__(0, {**sites[1], "name": "north"}) or sites.pop(1))
    accepted(folder)
    assert set(voice(folder, "north").peers) == {"west"}


def test_file_that_its_owner_has_not_taken_in_is_not_used(folder: Path) -> None:
    spoiled(folder, lambda sites: sites[1].update(expires="2020-01-01"))
    with pytest.raises(ConfigError, match="owner has taken in: rondo federate site peers"):
        voice(folder, "north")
    assert take(folder, "--accept").exit_code == 0
    assert set(voice(folder, "north").peers) == {"west"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sites: sites[0].update(name="east"), "'east' has the key of this site, 'north'"),
        (lambda sites: sites.append({**sites[1], "name": "east"}), "this key is there already"),
        (lambda sites: sites.append({**sites[1], "public_key": "x"}), "not a public key in PEM"),
    ],
)
def test_file_in_which_a_site_would_count_twice_is_refused(folder: Path, change: Any, message: str) -> None:
    path = spoiled(folder, change)
    with pytest.raises(ConfigError, match=message):
        others(path, SiteKeys.read(folder / "north"))


def test_commands_hand_the_keys_on_and_show_them(folder: Path, tmp_path: Path) -> None:
    run, file = CliRunner(), tmp_path / "peers.json"
    made = run.invoke(app, ["federate", "sites", "peers", "--keys", str(folder / "server"), "--to", str(file)])
    assert made.output.startswith(f"{file}: 3 sites; send it to every site")
    assert b"clients" not in file.read_bytes()
    (folder / "north" / "peers.json").unlink()
    taken = run.invoke(app, ["federate", "site", "peers", str(file), "--keys", str(folder / "north")])
    assert (folder / "north" / "peers.json").read_bytes() == file.read_bytes()
    south = SiteKeys.read(folder / "south").fingerprint
    shown = "".join(taken.output.split())
    assert f"{folder}/north/peers.json:2othersites" in shown
    assert SiteKeys.read(folder / "north").fingerprint in shown
    assert south in shown


# --- what a later file changes ------------------------------------------------------------------------------------


def take(folder: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["federate", "site", "peers", "--keys", str(folder / "north"), *options])


def pem() -> str:
    return certificates.public_pem(certificates.site_key().public_key()).decode()


def of(name: str) -> dict[str, Any]:
    return {"name": name, "public_key": pem(), "expires": None}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda sites: sites[1].update(public_key=pem()), "'south' has another key"),
        (lambda sites: sites.append(of("east")), "'east' is new"),
        (lambda sites: sites.pop(1), "'south' is not in it any more"),
        (lambda sites: sites[1].update(revoked=True), "'south' is revoked"),
        (lambda sites: sites[1].update(expires=None), "'south' is valid until without end, before: "),
        (lambda sites: sites.append(of("\u0455outh")), "looks like 'south' ('south'), and is another site"),
        (lambda sites: sites.append(of("n0rth")), "'n0rth' ('n0rth') looks like 'north' ('north')"),
    ],
)
def test_change_is_shown_and_accepted(folder: Path, tmp_path: Path, change: Any, said: str) -> None:
    path, before = folder / "north" / "peers.json", (folder / "north" / "peers.json").read_bytes()
    new = tmp_path / "new.json"
    new.write_bytes(spoiled(folder, change).read_bytes())
    path.write_bytes(before)
    refused = take(folder, str(new))
    assert (refused.exit_code, said in refused.output) == (2, True), refused.output
    assert "nobody can be asked without a terminal" in refused.output
    assert path.read_bytes() == before
    assert take(folder, str(new), "--accept").exit_code == 0
    assert path.read_bytes() == new.read_bytes()
    again = take(folder, str(new))
    assert (again.exit_code, "look at these" in again.output) == (0, False)


def test_revoked_key_that_counts_again_is_shown(folder: Path) -> None:
    spoiled(folder, lambda sites: sites[1].update(revoked=True))
    accepted(folder)
    spoiled(folder, lambda sites: sites[1].pop("revoked"))
    (change,) = Offered.read(folder / "north" / "peers.json", SiteKeys.read(folder / "north")).changes
    assert change.said == "'south' was revoked, and is not any more"


def test_another_key_for_this_site_is_refused(folder: Path) -> None:
    spoiled(folder, lambda sites: sites[0].update(public_key=pem()))
    refused = take(folder, "--accept")
    assert (refused.exit_code, "another key for this site, 'north'" in refused.output) == (2, True)


def test_look_alikes_of_a_first_file_are_shown(folder: Path) -> None:
    spoiled(folder, lambda sites: sites.append(of("\u0455outh")))
    (folder / "north" / ACCEPTED).unlink()
    shown = "'\u0455outh' ('\\u0455outh') looks like 'south' ('south'), and is another site"
    assert shown in take(folder).output
    assert take(folder).exit_code == 2
    assert take(folder, "--accept").exit_code == 0


def test_each_look_alike_has_one_line(folder: Path) -> None:
    """A hostile server's file has many, and a line for each pair would have no end."""
    names = [f"x{'l' * i}{'I' * (12 - i)}" for i in range(13)]
    spoiled(folder, lambda sites: sites.extend(of(name) for name in names))
    changes = Offered.read(folder / "north" / "peers.json", SiteKeys.read(folder / "north")).changes
    assert sum("looks like" in change.said for change in changes) == 12


def test_revocation_reaches_the_file_of_the_sites(folder: Path, tmp_path: Path) -> None:
    enrolment.revoke(folder / "server", "south")
    new = tmp_path / "new.json"
    CliRunner().invoke(app, ["federate", "sites", "peers", "--keys", str(folder / "server"), "--to", str(new)])
    taken = take(folder, str(new), "--accept")
    assert "'south' is revoked" in taken.output
    assert "south, revoked: this site masks for it no more" in taken.output
    assert set(voice(folder, "north").peers) == {"west"}


@pytest.mark.parametrize(
    ("one", "other"), [("st-anna", "\u0455t \u0430nn\u0430"), ("s1", "sl"), ("modern", "rnodern"), ("müller", "Muller")]
)
def test_names_that_look_alike(one: str, other: str) -> None:
    assert drawn(one) == drawn(other)
    assert len({drawn(name) for name in ("st-anna", "st-anne", "west", "ward 2", "ward 3")}) == 5
