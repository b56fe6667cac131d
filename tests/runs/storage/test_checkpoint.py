"""Checkpoints: restored whole or not at all, and every damage is noticed."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from records import timeless
from rondo.engine.server.ledger import Ledger
from rondo.engine.wire import serialization
from rondo.params import Params
from rondo.records.durable import Damaged, Journal, Position
from rondo.runs.storage import checkpoint
from rondo.runs.storage.checkpoint import Checkpoint, Kept
from tiny_federation import HEADS_OF_KINDS, make
from watched import failing, planted

START = Position(0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
"""The position of an empty journal."""


def point(rounds: int, kept: Kept, tree: Any = None, ledger: Ledger | None = None, journal: Any = START) -> Checkpoint:
    return Checkpoint(
        rounds, rounds, tree if tree is not None else {}, kept, ledger or Ledger(), journal, {"before": {}}
    )


def values(value: float) -> Params:
    return {"a": torch.full((2, 3), value)}


@pytest.mark.parametrize(("name", "policy"), HEADS_OF_KINDS)
def test_checkpoint_restores_the_whole_run(name: str, policy: str, tmp_path: Path) -> None:
    """The next round of the restored run is the same to the last bit."""
    fields = {"offset": True} if name.startswith("florg") else {}
    sim = make(name, policy, **fields)
    sim.locals = Kept(tmp_path)
    sim.run_round(0)
    written = point(1, sim.locals, sim.state, sim.ledger)
    checkpoint.save(tmp_path, written)
    again = make(name, policy, **fields)
    restored, passed_over = checkpoint.load(tmp_path, again.state)
    assert (restored.rounds, restored.aggregated, restored.journal) == (1, 1, START)
    assert (restored.scores, passed_over) == ({"before": {}}, [])
    assert serialization.same(restored.state, sim.state)
    assert serialization.same(dict(restored.locals), dict(sim.locals))
    assert restored.ledger.held == sim.ledger.held
    again.state, again.locals, again.ledger = restored.state, restored.locals, restored.ledger
    again.aggregated = restored.aggregated
    records = [timeless(federation.run_round(1)) for federation in (sim, again)]
    assert records[0] == records[1]
    assert serialization.same(again.state, sim.state)
    assert serialization.same(dict(again.locals), dict(sim.locals))
    assert again.ledger.to_json() == sim.ledger.to_json()


# Clients' local tensors

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
        # Three bytes per character and three letters per byte soon fill a file name.
        ("病院" * 20, "病院" * 20 + "二", "x" * 300),
    ],
)
def test_client_ids_of_any_kind_get_separate_files(ids: Sequence[str], tmp_path: Path) -> None:
    kept = Kept(tmp_path / "point")
    kept.update({name: {"x.B": torch.full((2,), float(i))} for i, name in enumerate(ids)})
    checkpoint.save(tmp_path / "point", point(3, kept))
    restored, _ = checkpoint.load(tmp_path / "point", {})
    assert set(restored.locals) == set(ids)
    assert len(restored.locals) == len(ids)
    assert [float(restored.locals[n]["x.B"][0]) for n in ids] == list(range(len(ids)))
    assert [p.name for p in tmp_path.iterdir()] == ["point"]
    assert len(list((tmp_path / "point" / "clients").iterdir())) == len(ids)


def test_saved_local_tensors_leave_memory(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.update({"ann": values(1.0), "bob": values(2.0)})
    assert "cid" not in kept
    assert kept.get("cid") is None
    checkpoint.save(tmp_path, point(1, kept))
    assert serialization.same(dict(Kept(tmp_path)), {"ann": values(1.0), "bob": values(2.0)})
    kept["ann"] = values(3.0)
    assert serialization.same(kept["ann"], values(3.0))
    assert serialization.same(Kept(tmp_path)["ann"], values(1.0))
    assert len(kept) == 2
    checkpoint.save(tmp_path, point(2, kept))
    for view in (kept, Kept(tmp_path), checkpoint.load(tmp_path, {})[0].locals):
        assert serialization.same(dict(view), {"ann": values(3.0), "bob": values(2.0)})
    # Nothing is left in memory: every access now reads a file.
    for file in (tmp_path / "clients").iterdir():
        file.unlink()
    with pytest.raises(Damaged, match="is missing"):
        kept["ann"]


# Generations


def commit(folder: Path, rounds: int, changes: Mapping[int, Iterable[str]]) -> Kept:
    """Save checkpoints 0 to ``rounds``; each client keeps the number of its last round."""
    kept = Kept(folder)
    for done in range(rounds + 1):
        for client in changes.get(done, ()):
            kept[client] = values(float(done))
        checkpoint.save(folder, point(done, kept, {"done": done}))
    return kept


CHANGES = {1: ("ann", "bob"), 2: ("ann",), 3: ("ann", "cid"), 4: ("ann", "dee")}


def test_only_two_generations_are_kept(tmp_path: Path) -> None:
    for rounds in range(6):
        folder = tmp_path / str(rounds)
        commit(folder, rounds, CHANGES)
        generations = {f"round-{r:06}" for r in (rounds - 1, rounds) if r >= 0}
        clients = folder / "clients"
        assert {p.name for p in folder.iterdir()} == generations | ({"clients"} if rounds else set())
        for generation in generations:
            assert sorted(os.listdir(folder / generation)) == ["ledger.json", "manifest.json", "state.safetensors"]
        files = sorted(p.name.split(".")[:2] for p in clients.iterdir()) if rounds else []
        expected = {
            0: [],
            1: [["ann", "1"], ["bob", "1"]],
            2: [["ann", "1"], ["ann", "2"], ["bob", "1"]],
            3: [["ann", "2"], ["ann", "3"], ["bob", "1"], ["cid", "3"]],
            4: [["ann", "3"], ["ann", "4"], ["bob", "1"], ["cid", "3"], ["dee", "4"]],
            5: [["ann", "4"], ["bob", "1"], ["cid", "3"], ["dee", "4"]],
        }
        assert files == expected[rounds]


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_cleaning_ends_an_interrupted_save(tmp_path: Path) -> None:
    """A process that stops while it removes the oldest generation leaves it, and files of clients that are too old."""
    folders = whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    kept = [commit(folder, 3, CHANGES) for folder in folders]
    for one in kept:
        one.update({client: values(4.0) for client in CHANGES[4]})
    checkpoint.save(whole, point(4, kept[0], {"done": 4}))
    with failing(shutil, "rmtree", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        checkpoint.save(stopped, point(4, kept[1], {"done": 4}))
    assert len(listing(stopped)) > len(listing(whole))
    restored, _ = checkpoint.load(stopped, {}, Journal(tmp_path / "none"))
    checkpoint.clean(stopped, restored)
    assert listing(stopped) == listing(whole)
    # And the next save removes what one without a stop would have removed.
    again = checkpoint.load(stopped, {})[0].locals
    for folder, one in zip(folders, (kept[0], again), strict=True):
        checkpoint.save(folder, point(5, one, {"done": 5}))
    assert listing(stopped) == listing(whole)
    assert len(list((whole / "clients").iterdir())) == 4


def test_generations_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Also where a name has more digits than usual."""
    kept = Kept(tmp_path)
    for rounds in (999_999, 1_000_000):
        checkpoint.save(tmp_path, point(rounds, kept))
    assert checkpoint.load(tmp_path, {})[0].rounds == 1_000_000
    checkpoint.save(tmp_path, point(1_000_001, kept))
    assert listing(tmp_path)[::4] == ["round-1000000", "round-1000001"]


def last(kept: Mapping[str, Params]) -> dict[str, float]:
    return {name: float(params["a"][0, 0]) for name, params in kept.items()}


BEFORE = {"ann": 3.0, "bob": 1.0, "cid": 3.0}


def test_previous_generation_replaces_a_damaged_one(tmp_path: Path) -> None:
    """Cleaning then removes the damaged generation and the leftovers of an interrupted write."""
    commit(tmp_path, 4, CHANGES)
    (tmp_path / "round-000004" / "state.safetensors").write_bytes(b"")
    restored, (reason,) = checkpoint.load(tmp_path, {}, Journal(tmp_path / "none"))
    assert reason == "round-000004: state.safetensors is not as it was written (length or SHA-256)"
    assert (restored.rounds, restored.state, last(restored.locals)) == (3, {"done": 3}, BEFORE)
    # Leftovers of a process that stopped while writing.
    (tmp_path / "round-000003" / "state.safetensors.tmp").write_bytes(b"half")
    (tmp_path / "clients" / "ann.4.safetensors.tmp").write_bytes(b"half")
    (tmp_path / "round-000005").mkdir()
    (tmp_path / "round-000005" / "ledger.json").write_bytes(b"{}")
    checkpoint.clean(tmp_path, restored)
    assert not list(tmp_path.rglob("*.tmp"))
    names = {str(p.relative_to(tmp_path)).split(".")[0] for p in tmp_path.rglob("*")}
    files = {f"round-000003/{n}" for n in ("state", "ledger", "manifest")}
    assert names == {"clients", "clients/ann", "clients/bob", "clients/cid", "round-000003"} | files
    restored.locals["ann"] = values(9.0)
    checkpoint.save(tmp_path, point(4, restored.locals, {"done": 4}))
    again, passed_over = checkpoint.load(tmp_path, {}, Journal(tmp_path / "none"))
    assert (again.rounds, last(again.locals), passed_over) == (4, {**BEFORE, "ann": 9.0}, [])


@pytest.mark.parametrize("client", ["ann", "dee"])
def test_missing_client_file_is_damage(client: str, tmp_path: Path) -> None:
    """Whether the client has an older file, which would be taken for the newest, or none."""
    commit(tmp_path, 4, CHANGES)
    (newest,) = (tmp_path / "clients").glob(f"{client}.4.*")
    newest.unlink()
    restored, reasons = checkpoint.load(tmp_path, {}, Journal(tmp_path / "none"))
    assert reasons == ["round-000004: clients/ has other files than were written"]
    assert (restored.rounds, last(restored.locals)) == (3, BEFORE)


def test_changed_manifest_is_noticed(tmp_path: Path) -> None:
    commit(tmp_path, 4, CHANGES)
    path = tmp_path / "round-000004" / "manifest.json"
    path.write_text(path.read_text().replace('"rounds": 4', '"rounds": 5'))
    restored, reasons = checkpoint.load(tmp_path, {}, Journal(tmp_path / "none"))
    assert (restored.rounds, reasons) == (3, ["round-000004: manifest.json is not as it was written (SHA-256)"])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"content": 1}', b"[" * 100_000], ids=len)
def test_manifest_of_another_shape_is_noticed(content: bytes, tmp_path: Path) -> None:
    commit(tmp_path, 0, {})
    (tmp_path / "round-000000" / "manifest.json").write_bytes(content)
    with pytest.raises(Damaged) as error:
        checkpoint.load(tmp_path, {})
    assert str(error.value) == "round-000000: manifest.json is not as it was written (SHA-256)"


def test_manifest_has_the_same_bytes_in_every_version() -> None:
    """They are compared with those that its content gives, so another layout would refuse every older checkpoint."""
    body = '{\n "a": {\n  "c": null\n },\n "b": 1\n}'
    digest = "eb3314512f8b7304402bf335f003a4a32f81132cd7ade9bed6ad8f941078a62e"
    expected = f'{{"content": {body},\n "sha256": "{digest}"}}\n'.encode()
    for content in ({"b": 1, "a": {"c": None}}, {"a": {"c": None}, "b": 1}):
        assert checkpoint._sealed(content) == expected


def test_unfinished_generation_is_ignored(tmp_path: Path) -> None:
    commit(tmp_path, 4, CHANGES)
    (tmp_path / "round-000004" / "manifest.json").unlink()
    restored, passed_over = checkpoint.load(tmp_path, {}, Journal(tmp_path / "none"))
    assert (restored.rounds, last(restored.locals), passed_over) == (3, BEFORE, [])


def test_missing_or_damaged_generations_raise(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no checkpoint in {tmp_path}"):
        checkpoint.load(tmp_path, {})
    commit(tmp_path, 4, CHANGES)
    for generation in ("round-000003", "round-000004"):
        (tmp_path / generation / "ledger.json").unlink()
    with pytest.raises(Damaged, match=r"round-000004: .*ledger\.json.*; round-000003: .*ledger\.json"):
        checkpoint.load(tmp_path, {})


def test_later_format_is_refused(tmp_path: Path) -> None:
    with planted(checkpoint, "FORMAT", 3):
        checkpoint.save(tmp_path, point(0, Kept(tmp_path)))
    with pytest.raises(Damaged, match="has format 3, this version of Rondo knows 2"):
        checkpoint.load(tmp_path, {})


def test_any_damage_falls_back_one_generation(tmp_path: Path) -> None:
    """200 truncations and 500 flipped bits, over all files that only the newest generation has."""
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
            bit = draw.randrange(len(whole) * 8)
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
        restored, reasons = checkpoint.load(folder, {}, Journal(tmp_path / "metrics.jsonl"))
        assert (restored.rounds, restored.state["done"], last({"ann": restored.locals["ann"]})) == (1, 1, {"ann": 1.0})
        assert len(reasons) == 1
        assert reasons[0].startswith("round-000002: ")
        path.write_bytes(whole)
    assert checkpoint.load(folder, {}, Journal(tmp_path / "metrics.jsonl"))[1] == []


def test_shortened_journal_falls_back_one_generation(tmp_path: Path) -> None:
    """A journal with another beginning is damage."""
    folder, journal = tmp_path / "checkpoint", Journal(tmp_path / "metrics.jsonl")
    kept = Kept(folder)
    for done in range(3):
        journal.append(json.dumps({"round": done}).encode())
        checkpoint.save(folder, point(done, kept, journal=journal.position))
    content = journal.path.read_bytes()
    journal.path.write_bytes(content[:-4])
    restored, (reason,) = checkpoint.load(folder, {}, Journal(journal.path))
    assert restored.rounds == 1
    assert "metrics.jsonl has" in reason
    journal.path.write_bytes(content[4:])
    with pytest.raises(Damaged, match="SHA-256"):
        checkpoint.load(folder, {}, Journal(journal.path))
