"""What a run goes on from: whole, or not at all; and damage is noticed."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rondo.engine import serialization
from rondo.engine.server.ledger import Ledger
from rondo.params import Params
from rondo.runs.storage import checkpoint
from rondo.runs.storage.checkpoint import Checkpoint
from rondo.runs.storage.client_store import Kept
from rondo.runs.storage.durable import Damaged, Journal, Position
from tiny_federation import HEADS, NAMES, make

START = Position(0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
"""Of an empty journal."""


def point(rounds: int, kept: Kept, tree: Any = None, ledger: Ledger | None = None, journal: Any = START) -> Checkpoint:
    return Checkpoint(rounds, tree if tree is not None else {}, kept, ledger or Ledger(), journal, {"before": {}})


def values(value: float) -> Params:
    return {"a": torch.full((2, 3), value)}


@pytest.mark.parametrize("policy", HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_gives_back_all_there_is_and_the_run_goes_on(name: str, policy: str, tmp_path: Path) -> None:
    fields = {"offset": True} if name.startswith("florg") else {}
    sim = make(name, policy, **fields)
    sim.locals = Kept(tmp_path)
    sim.run_round(0)
    written = point(1, sim.locals, sim.state, sim.ledger)
    checkpoint.save(tmp_path, written)
    again = make(name, policy, **fields)
    found, passed_over = checkpoint.load(tmp_path, again.state)
    assert (found.rounds, found.journal, found.scores, passed_over) == (1, START, {"before": {}}, [])
    assert serialization.same(found.state, sim.state)
    assert serialization.same(dict(found.locals), dict(sim.locals))
    assert found.ledger.held == sim.ledger.held
    again.state, again.locals, again.ledger = found.state, found.locals, found.ledger
    records = [{**each.run_round(1), "train_seconds": 0} for each in (sim, again)]
    assert records[0] == records[1]
    assert serialization.same(again.state, sim.state)
    assert serialization.same(dict(again.locals), dict(sim.locals))
    assert again.ledger.to_json() == sim.ledger.to_json()


# What clients keep

IDS = (
    "plain",
    "with/slash",
    "../../outside",
    "back\\slash",
    "клиент № 7",
    "日本語",
    "a b%2Fc",
    "with/slash%",
    "Plain",
    ".",
    "..",
    ".hidden",
    "a.safetensors",
    "a.safetensors.tmp",
    "a.3",
    "new\nline",
    "*?[x]",
)


@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        ("", "other"),
        # Three bytes a character, three letters a byte: a file name is soon full.
        ("病院" * 20, "病院" * 20 + "二", "x" * 300),
    ],
)
def test_client_ids_of_any_kind_are_kept_apart(ids: Sequence[str], tmp_path: Path) -> None:
    kept = Kept(tmp_path / "point")
    kept.update({name: {"x.B": torch.full((2,), float(i))} for i, name in enumerate(ids)})
    checkpoint.save(tmp_path / "point", point(3, kept))
    found, _ = checkpoint.load(tmp_path / "point", {})
    assert set(found.locals) == set(ids)
    assert len(found.locals) == len(ids)
    assert [float(found.locals[n]["x.B"][0]) for n in ids] == list(range(len(ids)))
    assert [p.name for p in tmp_path.iterdir()] == ["point"]
    assert len(list((tmp_path / "point" / "clients").iterdir())) == len(ids)


def test_what_a_client_keeps_leaves_memory_once_it_is_saved(tmp_path: Path) -> None:
    here = Kept(tmp_path)
    here.update({"ann": values(1.0), "bob": values(2.0)})
    assert "cid" not in here
    assert here.get("cid") is None
    checkpoint.save(tmp_path, point(1, here))
    assert serialization.same(dict(Kept(tmp_path)), {"ann": values(1.0), "bob": values(2.0)})
    here["ann"] = values(3.0)
    assert serialization.same(here["ann"], values(3.0))
    assert serialization.same(Kept(tmp_path)["ann"], values(1.0))
    assert len(here) == 2
    checkpoint.save(tmp_path, point(2, here))
    for each in (here, Kept(tmp_path), checkpoint.load(tmp_path, {})[0].locals):
        assert serialization.same(dict(each), {"ann": values(3.0), "bob": values(2.0)})
    # Nothing is left in memory: what is asked for now comes from the files.
    for file in (tmp_path / "clients").iterdir():
        file.unlink()
    with pytest.raises(Damaged, match="is missing"):
        here["ann"]


def test_nothing_a_client_keeps_is_deleted(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="never deleted"):
        del Kept(tmp_path)["ann"]


# Generations


def commit(folder: Path, rounds: int, changes: Mapping[int, Iterable[str]]) -> Kept:
    """Checkpoints 0 to ``rounds``; clients keep the number of the round in which they last took part."""
    kept = Kept(folder)
    for done in range(rounds + 1):
        for client in changes.get(done, ()):
            kept[client] = values(float(done))
        checkpoint.save(folder, point(done, kept, {"done": done}))
    return kept


CHANGES = {1: ("ann", "bob"), 2: ("ann",), 3: ("ann", "cid"), 4: ("ann", "dee")}


def test_two_generations_are_kept_and_nothing_else(tmp_path: Path) -> None:
    for rounds in range(6):
        folder = tmp_path / str(rounds)
        commit(folder, rounds, CHANGES)
        generations = {f"round-{r:06}" for r in (rounds - 1, rounds) if r >= 0}
        clients = folder / "clients"
        assert {p.name for p in folder.iterdir()} == generations | ({"clients"} if rounds else set())
        for place in generations:
            assert sorted(os.listdir(folder / place)) == ["ledger.json", "manifest.json", "state.safetensors"]
        found = sorted(p.name.split(".")[:2] for p in clients.iterdir()) if rounds else []
        expected = {
            0: [],
            1: [["ann", "1"], ["bob", "1"]],
            2: [["ann", "1"], ["ann", "2"], ["bob", "1"]],
            3: [["ann", "2"], ["ann", "3"], ["bob", "1"], ["cid", "3"]],
            4: [["ann", "3"], ["ann", "4"], ["bob", "1"], ["cid", "3"], ["dee", "4"]],
            5: [["ann", "4"], ["bob", "1"], ["cid", "3"], ["dee", "4"]],
        }
        assert found == expected[rounds]


def last(kept: Mapping[str, Params]) -> dict[str, float]:
    return {name: float(params["a"][0, 0]) for name, params in kept.items()}


NOW = {"ann": 4.0, "bob": 1.0, "cid": 3.0, "dee": 4.0}
BEFORE = {"ann": 3.0, "bob": 1.0, "cid": 3.0}


def test_the_generation_before_is_used_where_the_newest_is_damaged_and_what_is_left_is_cleaned(tmp_path: Path) -> None:
    commit(tmp_path, 4, CHANGES)
    (tmp_path / "round-000004" / "state.safetensors").write_bytes(b"")
    found, (reason,) = checkpoint.load(tmp_path, {}, Journal(tmp_path / "none"))
    assert reason == "round-000004: state.safetensors is not as it was written (length or SHA-256)"
    assert (found.rounds, found.state, last(found.locals)) == (3, {"done": 3}, BEFORE)
    # A process that stopped while it wrote leaves such things.
    (tmp_path / "round-000003" / "state.safetensors.tmp").write_bytes(b"half")
    (tmp_path / "clients" / "ann.4.safetensors.tmp").write_bytes(b"half")
    (tmp_path / "round-000005").mkdir()
    (tmp_path / "round-000005" / "ledger.json").write_bytes(b"{}")
    checkpoint.clean(tmp_path, found)
    names = {str(p.relative_to(tmp_path)).split(".")[0] for p in tmp_path.rglob("*")}
    files = {f"round-000003/{n}" for n in ("state", "ledger", "manifest")}
    assert names == {"clients", "clients/ann", "clients/bob", "clients/cid", "round-000003"} | files
    found.locals["ann"] = values(9.0)
    checkpoint.save(tmp_path, point(4, found.locals, {"done": 4}))
    again, passed_over = checkpoint.load(tmp_path, {}, Journal(tmp_path / "none"))
    assert (again.rounds, last(again.locals), passed_over) == (4, {**BEFORE, "ann": 9.0}, [])


def test_an_unfinished_generation_does_not_count(tmp_path: Path) -> None:
    commit(tmp_path, 4, CHANGES)
    (tmp_path / "round-000004" / "manifest.json").unlink()
    found, passed_over = checkpoint.load(tmp_path, {}, Journal(tmp_path / "none"))
    assert (found.rounds, last(found.locals), passed_over) == (3, BEFORE, [])


def test_where_there_is_none_or_none_is_whole_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path, {})
    commit(tmp_path, 4, CHANGES)
    for place in ("round-000003", "round-000004"):
        (tmp_path / place / "ledger.json").unlink()
    with pytest.raises(Damaged, match=r"round-000004: .*ledger\.json.*; round-000003: .*ledger\.json"):
        checkpoint.load(tmp_path, {})


def test_a_format_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 2)
        checkpoint.save(tmp_path, point(0, Kept(tmp_path)))
    with pytest.raises(Damaged, match="has format 2, this version of Rondo knows 1"):
        checkpoint.load(tmp_path, {})


def test_damage_of_any_kind_is_noticed_and_the_generation_before_is_used(tmp_path: Path) -> None:
    """200 files cut off and 500 bits turned over, among all files that only the newest generation has."""
    folder, journal = tmp_path / "checkpoint", Journal(tmp_path / "metrics.jsonl")
    kept = Kept(folder)
    ledger = Ledger({"ann": {"x.A": "0123456789abcdef"}, "bob": {"x.A": "fedcba9876543210"}})
    for done in range(3):
        kept["ann"], kept["bob"] = values(float(done)), {"b": torch.randn(50)}
        journal.append(json.dumps({"round": done}).encode())
        tree = {"p": torch.randn(300), "done": done}
        checkpoint.save(folder, point(done, kept, tree, ledger, journal.position))
    newest = [*(folder / "round-000002").iterdir(), *(folder / "clients").glob("*.2.*")]
    assert len(newest) == 5
    draw = random.Random(0)
    sizes = [p.stat().st_size for p in newest]
    for case in range(700):
        (path,) = draw.choices(newest, sizes)
        whole = path.read_bytes()
        if case < 200:
            path.write_bytes(whole[: draw.randrange(len(whole))])
        else:
            place = draw.randrange(len(whole) * 8)
            damaged = bytearray(whole)
            damaged[place // 8] ^= 1 << place % 8
            path.write_bytes(damaged)
        found, reasons = checkpoint.load(folder, {}, Journal(tmp_path / "metrics.jsonl"))
        assert (found.rounds, found.state["done"], last({"ann": found.locals["ann"]})) == (1, 1, {"ann": 1.0})
        assert len(reasons) == 1
        assert reasons[0].startswith("round-000002: ")
        path.write_bytes(whole)
    assert checkpoint.load(folder, {}, Journal(tmp_path / "metrics.jsonl"))[1] == []


def test_a_journal_without_its_last_line_takes_the_generation_before(tmp_path: Path) -> None:
    folder, journal = tmp_path / "checkpoint", Journal(tmp_path / "metrics.jsonl")
    kept = Kept(folder)
    for done in range(3):
        journal.append(json.dumps({"round": done}).encode())
        checkpoint.save(folder, point(done, kept, journal=journal.position))
    content = journal.path.read_bytes()
    journal.path.write_bytes(content[:-4])
    found, (reason,) = checkpoint.load(folder, {}, Journal(journal.path))
    assert found.rounds == 1
    assert "metrics.jsonl has" in reason
    journal.path.write_bytes(content[4:])
    with pytest.raises(Damaged, match="SHA-256"):
        checkpoint.load(folder, {}, Journal(journal.path))
