"""The other sites' keys beside a site's own: only they vouch for a key of a masked sum."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from typer.testing import CliRunner

from rondo.cli.app import app
from rondo.errors import ConfigError
from rondo.federation.identity.keys import SiteKeys, make
from rondo.federation.identity.peers import Voice, others


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


def test_expired_key_vouches_for_nothing(folder: Path) -> None:
    spoiled(folder, lambda sites: sites[1].update(expires="2020-01-01"))
    assert set(voice(folder, "north").peers) == {"west"}


def test_own_key_may_be_newer_than_the_file(folder: Path) -> None:
    spoiled(folder, lambda sites: sites.__setitem__(0, {**sites[1], "name": "north"}) or sites.pop(1))
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
