"""A run that is resumed with another roster: the change is told, must be allowed, and is recorded with its round."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from parties import LABELS, SITES, Parties, configuration, write_sites
from simulations import simulated
from typer.testing import CliRunner

import rondo
from outcomes import adapter, told
from rondo.cli.app import app
from rondo.federation.identity import keys
from rondo.federation.identity.roster import Roster
from rondo.federation.server.listening import Listening
from rondo.federation.server.run import resume
from small_runs import dying, reviews, write_rows


def interrupted(folder: Path, bert: Path, **changes: Any) -> Parties:
    """A federation whose server died after two rounds."""
    shutil.copytree(bert, folder / "bert")
    write_sites(folder)
    parties = Parties(folder)
    with pytest.raises(KeyboardInterrupt):
        parties.run(config(folder, **changes), folder / "run", observer=dying(2))
    return parties


config = partial(configuration, rounds=4, task=LABELS)


def server_keys(folder: Path) -> Path:
    return folder / "keys" / "server"


def without(folder: Path, site: str) -> None:
    path = server_keys(folder) / "roster.json"
    Roster(tuple(s for s in Roster.read(path).sites if s.name != site)).write(path)


def with_east(folder: Path) -> None:
    """A site east with a client dan, and its rows."""
    keys.make([], ["east"], folder / "keys", days=10, clients={"east": ["dan"]})
    write_rows(folder / "data" / "east" / "dan.csv", reviews(22, seed=5))


def refused(folder: Path) -> list[str]:
    """The problems of a resumption that does not allow another roster."""
    way = Listening(server_keys(folder), "127.0.0.1", 0, wait=0.0)
    *changes, (last, _) = told(lambda: resume(folder / "run", way))
    assert last == "--roster-changed"
    return [message for _, message in changes]


def recorded(folder: Path) -> Any:
    return json.loads((folder / "run" / "federation.json").read_text())


def test_roster_is_recorded(tmp_path: Path, bert: Path) -> None:
    interrupted(tmp_path, bert)
    north, south = Roster.read(server_keys(tmp_path) / "roster.json").sites
    assert recorded(tmp_path)["roster"] == {
        "north": {"clients": ["ann"], "key": north.fingerprint},
        "south": {"clients": ["bob", "cid"], "key": south.fingerprint},
    }


def test_every_change_must_be_allowed(tmp_path: Path, bert: Path) -> None:
    interrupted(tmp_path, bert)
    path = server_keys(tmp_path) / "roster.json"
    original = Roster.read(path)
    north, south = original.sites

    def changed(*sites: Any) -> list[str]:
        Roster(sites).write(path)
        return refused(tmp_path)

    assert changed(north) == ["south (bob, cid): it is not in the roster any more"]
    assert changed(north, replace(south, revoked=True)) == ["south (bob, cid): its key is revoked"]
    assert changed(replace(north, clients=("ann", "bob")), replace(south, clients=("cid",))) == [
        "client 'bob': it was of south, and is of north now"
    ]
    assert changed(north, replace(south, clients=("bob", "dan"))) == [
        "client 'cid': it is not of south any more",
        "client 'dan': it is of south since",
    ]
    original.write(path)
    with_east(tmp_path)
    without(tmp_path, "north")
    assert refused(tmp_path) == [
        "north (ann): it is not in the roster any more",
        "east (dan): it is in the roster since",
    ]
    result = CliRunner().invoke(app, ["resume", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "--roster-changed" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_renewed_key_is_told_only(tmp_path: Path, bert: Path) -> None:
    parties = interrupted(tmp_path, bert)
    without(tmp_path, "south")
    shutil.rmtree(tmp_path / "keys" / "south")
    keys.make([], ["south"], tmp_path / "keys", days=10, clients={"south": SITES["south"]})
    result = parties.resume(tmp_path / "run")
    assert "south has another key than before" in parties.told
    assert len(result.history) == 4
    assert recorded(tmp_path)["changes"] == []
    south = next(s for s in Roster.read(server_keys(tmp_path) / "roster.json").sites if s.name == "south")
    assert recorded(tmp_path)["roster"]["south"]["key"] == south.fingerprint


def gone_on(parties: Parties) -> rondo.RunResult:
    """The run after two rounds with north and south, and two more with south and east."""
    folder = parties.folder
    without(folder, "north")
    with_east(folder)
    parties.sites = {"south": SITES["south"], "east": ("dan",)}
    result = parties.resume(folder / "run", roster_changed=True)
    assert not parties.errors
    assert [r["clients"] for r in result.history] == [3, 3, 3, 3]
    assert [r for r in result.history if r["failed"] != []] == []
    return result


@pytest.mark.slow
def test_run_goes_on_with_another_roster(tmp_path: Path, bert: Path) -> None:
    """Factors of fedsa-lora stay with their clients. Those of the clients that stay go on: the result is, bit for bit,
    that of a simulation of all four clients, of which each takes part as long as its site does."""
    parties = interrupted(tmp_path, bert, algorithm={"name": "fedsa-lora"})
    result = gone_on(parties)
    assert recorded(tmp_path)["changes"] == [
        {
            "round": 2,
            "changes": ["north (ann): it is not in the roster any more", "east (dan): it is in the roster since"],
        }
    ]
    assert recorded(tmp_path)["roster"].keys() == {"south", "east"}
    partition = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert partition["clients"].keys() == {"bob", "cid", "dan"}
    assert partition["clients"]["dan"]["train"] > 0
    shutil.copytree(tmp_path / "data" / "east", tmp_path / "data" / "all", dirs_exist_ok=True)
    run = config(tmp_path, algorithm={"name": "fedsa-lora"})
    expected = simulated(tmp_path, run, tmp_path / "simulation", lambda attempt: ("dan" if attempt < 2 else "ann",))
    assert adapter(result.run_dir) == adapter(expected.run_dir)


@pytest.mark.slow
def test_scaffold_goes_on_with_another_roster(tmp_path: Path, bert: Path) -> None:
    """The server's control variate keeps what a client that has gone contributed, and later rounds replace it."""
    changes = {"algorithm": {"name": "scaffold"}, "train": {"optimizer": "sgd", "momentum": 0.0}}
    result = gone_on(interrupted(tmp_path, bert, **changes))
    assert [r for r in result.history if r["skipped"] is not None] == []


@pytest.mark.slow
def test_dealt_ranks_stay_with_their_clients(tmp_path: Path, bert: Path) -> None:
    """A client that has gone takes its rank with it; one that comes has none."""
    parties = interrupted(tmp_path, bert, algorithm={"name": "hetlora"}, clients={"ranks": {"1": 0.5, "2": 0.5}})
    ranks = recorded(tmp_path)["ranks"]
    assert set(ranks) == {"ann", "bob", "cid"}
    original = Roster.read(server_keys(tmp_path) / "roster.json")
    with_east(tmp_path)
    with pytest.raises(rondo.ConfigError, match="and none to dan"):
        resume(tmp_path / "run", Listening(server_keys(tmp_path), "127.0.0.1", 0, wait=0.0), roster_changed=True)
    original.write(server_keys(tmp_path) / "roster.json")
    without(tmp_path, "north")
    parties.sites = {"south": SITES["south"]}
    result = parties.resume(tmp_path / "run", roster_changed=True)
    assert [r["clients"] for r in result.history] == [3, 3, 2, 2]
    assert recorded(tmp_path)["ranks"] == {client: ranks[client] for client in ("bob", "cid")}


@pytest.mark.slow
def test_simulation_has_no_roster(tmp_path: Path, bert: Path) -> None:
    interrupted(tmp_path, bert)
    (tmp_path / "run" / "federation.json").unlink()
    result = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--roster-changed"])
    assert result.exit_code == 2
    assert "this run is a simulation, which has no roster" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_resumption_compares_the_manifest(tmp_path: Path, bert: Path) -> None:
    """Before a site is asked: other test rows at the server, and another number of threads, are another run."""
    test, more = (write_rows(tmp_path / f"{name}.csv", reviews(12, seed=8)) for name in ("test", "more"))
    interrupted(tmp_path, bert, data={"test_source": str(test), "more_tests": {"more": str(more)}})

    def differences() -> list[str]:
        way = Listening(server_keys(tmp_path), "127.0.0.1", 0, wait=0.0)
        return [path for path, _ in told(lambda: resume(tmp_path / "run", way))]

    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    assert differences() == ["threads", "--allow-nondeterministic"]
    torch.set_num_threads(threads)
    for file, path in ((test, "test_examples_sha256"), (more, "more_tests.more")):
        write_rows(file, reviews(12, seed=9))
        assert differences() == [f"partition.{path}", "--allow-nondeterministic"]
        write_rows(file, reviews(12, seed=8))
