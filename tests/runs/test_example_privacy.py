"""Runs whose clients take private steps: every kind of method, and what is refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

import rondo
from methods import KINDS, every_method
from outcomes import adapter
from records import timeless
from rondo import algorithms
from rondo.algorithm import Client, Round, ServerState, Upload
from rondo.algorithms.compatible import refused
from rondo.algorithms.table import TABLE
from rondo.config import load
from rondo.engine.server.exchange import Exchange
from rondo.engine.server.rounds import Server
from rondo.engine.simulation import Simulation, decode_answers, encode_answers
from rondo.engine.transport import Answer
from rondo.errors import ConfigError, DiskFailed, RunStopped
from rondo.models.loading.peft import read_tensors
from rondo.privacy.accounts.account import Account, RowAccount, read
from rondo.privacy.accounts.accountant import epsilon, epsilon_of_steps
from rondo.records.directory import RunDirectory
from rondo.runs import runner
from rondo.runs.assembling.private import row_account
from rondo.runs.runner import RunResult
from small_runs import settings
from watched import failing, planted

pytest.importorskip("dp_accounting")

PRIVACY = {"adversary": "server", "unit": "example", "clip": 0.5, "noise": 0.5, "delta": 1e-5, "debug_seed": 1}
SECRET = {"debug_seed": None}
"""Noise that counts."""


def configured(sources: Path, name: str = "fedit", **changes: Any) -> dict[str, Any]:
    """Two rounds of two clients; SGD, so that a difference of bits does not grow into one of signs."""
    sections: dict[str, Any] = {
        "algorithm": {"name": name, **({"option": "II"} if name == "scaffold" else {})},
        "data": {"source": str(sources / "rows.csv"), "test_split": "", "validation_fraction": 0.25},
        "partition": {"clients": 2},
        "clients": {"weighting": "uniform"},
        "train": {"optimizer": "sgd", "lr": 0.05, "batch_size": 6, "local_epochs": 1, "max_grad_norm": 0.0},
        "evaluation": {"diagnostics_every": 0},
        "task": {"labels": ["neg", "pos"]},
        "privacy": PRIVACY,
    }
    for section, keys in changes.items():
        sections[section] = {**sections.get(section, {}), **keys} if isinstance(keys, dict) else keys
    return settings(sources / "bert", **sections)


def run(config: dict[str, Any], folder: Path) -> RunResult:
    return rondo.run(config, run_dir=folder, device="cpu")


NAMES = [n for n in TABLE if n == "scaffold" or "example DP" not in refused(TABLE[n].traits, linear=TABLE[n].linear)]


@pytest.mark.parametrize("name", every_method(NAMES, KINDS))
@pytest.mark.sweep(3)
def test_every_method_runs_and_a_row_does_not_see_the_others(name: str, sources: Path, tmp_path: Path) -> None:
    """A pass of one row leaves nothing that an objective could mix."""
    together = run(configured(sources, name), tmp_path / "together")
    assert [(r["skipped"], r["failed"], r["loss"]) for r in together.history] == [(None, [], None)] * 2
    alone = run(configured(sources, name, train={"micro_batch": 1}), tmp_path / "alone")
    expected = read_tensors(alone.run_dir / "adapter")
    for key, tensor in read_tensors(together.run_dir / "adapter").items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-3, atol=1e-5)


def test_kept_states_below_the_adapters_change_nothing(sources: Path, tmp_path: Path) -> None:
    upper = {"layers_to_transform": [1]}
    with_, without = (
        run(configured(sources, adapter=upper, simulation={"reuse_prefix": kept}), tmp_path / f"{kept}")
        for kept in (True, False)
    )
    expected = read_tensors(without.run_dir / "adapter")
    for key, tensor in read_tensors(with_.run_dir / "adapter").items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_debug_seed_repeats_a_run_and_no_seed_does_not(sources: Path, tmp_path: Path) -> None:
    results = [run(configured(sources), tmp_path / n) for n in ("one", "two")]
    results += [run(configured(sources, privacy=SECRET), tmp_path / n) for n in ("three", "four")]
    first, same, third, other = (adapter(r.run_dir) for r in results)
    assert first == same
    assert third != other


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("privacy", "group", "nobody"),
        ("privacy", "budget", 0.1),
        ("task", "labels", None),
        ("privacy", "clip", "adaptive"),
        ("train", "max_grad_norm", 1.0),
        ("train", "packing", True),
        ("train", "length_grouping", True),
        ("clients", "weighting", "examples"),
        ("evaluation", "local_only", True),
        ("evaluation", "fine_tune_epochs", 1),
    ],
)
def test_what_breaks_the_guarantee_is_refused(
    section: str, key: str, value: Any, sources: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"{section}\.{key}: ") as caught:
        run(configured(sources, **{section: {key: value}}), tmp_path / "run")
    assert len(caught.value.problems) == 1


def test_records_and_summary_have_the_epsilon_of_all_steps_so_far(sources: Path, tmp_path: Path) -> None:
    """Ditto has two fits per round: of the shared model, and of the client's own."""
    config = configured(sources, "ditto", clients={"per_round": 1}, rounds=3, privacy=SECRET)
    result = run(config, tmp_path / "run")
    rows = {c: n["train"] for c, n in partition(result).items()}
    taken = dict.fromkeys(rows, 0)
    for record in result.history:
        (client,) = record["client_epsilon"]
        taken[client] += 2 * -(-rows[client] // 6)
        spent = {c: epsilon(0.5, min(1.0, 6 / rows[c]), n, 1e-5) for c, n in taken.items()}
        assert record["client_epsilon"] == {client: spent[client]}
        assert record["epsilon"] == max(spent.values()) > 1
        assert record["epsilon_valid"] is True
        assert record["client_flops"] is None
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert (summary["privacy"]["epsilon"], summary["privacy"]["epsilon_valid"]) == (result.history[-1]["epsilon"], True)


@pytest.mark.slow
def test_client_takes_no_further_part_before_it_exceeds_the_budget(sources: Path, tmp_path: Path) -> None:
    """The smaller client spends more per round, since each row is in more of its steps."""
    config = configured(
        sources,
        rounds=6,
        partition={"kind": "dirichlet", "alpha": 0.5},
        privacy={"noise": 2.0, **SECRET},
        evaluation={"every": 0},
    )
    free = run(config, tmp_path / "free")
    one, other = free.history[1]["client_epsilon"].items()
    small, large = sorted((one, other), key=lambda spent: -spent[1])
    assert small[1] > 1.1 * large[1]
    budget = free.history[2]["client_epsilon"][large[0]]
    bound = run({**config, "privacy": {**config["privacy"], "budget": budget}}, tmp_path / "bound")
    asked = [sorted(record["client_epsilon"]) for record in bound.history]
    assert asked[0] == sorted([small[0], large[0]])
    assert asked[-1] == [large[0]]
    assert len(asked) == 3
    assert bound.summary["stopped_early"]
    assert max(record["epsilon"] for record in bound.history) <= budget
    assert bound.history[0]["client_epsilon"] == free.history[0]["client_epsilon"]


def test_persons_rows_are_one_unit_in_a_run(sources: Path, tmp_path: Path) -> None:
    """The step of a client with one person draws all of its rows or none, and moves nothing then."""
    with (sources / "rows.csv").open(encoding="utf-8") as file:
        header, *lines = file.read().splitlines()
    table = sources / "persons.csv"
    table.write_text("\n".join([f"{header},person", *(f"{line},ann" for line in lines)]) + "\n", encoding="utf-8")
    train = {"batch_size": 30, "local_steps": 1, "local_epochs": None}
    moved = []
    for seed in range(4):
        privacy = {"group": "person", "noise": 0.0, "debug_seed": seed}
        data = {"source": str(table), "validation_fraction": 0.0}
        one = {"rounds": 1, "data": data, "partition": {"clients": 1}, "evaluation": {"every": 0}}
        result = run(configured(sources, train=train, privacy=privacy, **one), tmp_path / f"{seed}")
        moved.append(any(t.any() for n, t in read_tensors(result.run_dir / "adapter").items() if n.endswith(".B")))
    assert len(set(moved)) == 2


def partition(result: RunResult) -> dict[str, Any]:
    clients: dict[str, Any] = json.loads((result.run_dir / "partition.json").read_text())["clients"]
    return clients


def test_without_noise_there_is_no_epsilon(sources: Path, tmp_path: Path) -> None:
    result = run(configured(sources, privacy={"noise": 0.0, **SECRET}), tmp_path / "run")
    assert [(r["epsilon"], r["epsilon_valid"]) for r in result.history] == [(None, False)] * 2


def test_run_without_privacy_tells_no_epsilon(sources: Path, tmp_path: Path) -> None:
    config = configured(sources)
    del config["privacy"]
    assert "epsilon" not in run(config, tmp_path / "run").history[-1]


def test_stopped_run_resumes_to_the_same_bits_and_the_same_epsilon(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, "fedsa-lora", clients={"per_round": 1}, rounds=3)
    whole = run(config, tmp_path / "whole")
    with failing(Server, "run_round", RunStopped("stopped here"), at=2), pytest.raises(RunStopped):
        run(config, tmp_path / "stopped")
    resumed = runner.resume(tmp_path / "stopped", device="cpu")
    assert [timeless(r) for r in resumed.history] == [timeless(r) for r in whole.history]
    assert adapter(resumed.run_dir) == adapter(whole.run_dir)


def test_answers_of_workers_count_their_steps() -> None:
    answer = Answer(Client("a", 4), Upload(Client("a", 4), {"m.A": torch.ones(1)}, 1.0), work=((3, 18), (4, 24)))
    assert [a.work for a in decode_answers(encode_answers([answer]))] == [((3, 18), (4, 24))]


def killed(config: dict[str, Any], folder: Path, attempt: int) -> None:
    """Run until it is killed in ``attempt``, once its answers are there."""
    original = Server._added_up

    def dies(self: Server, exchange: Exchange) -> Any:
        result = original(self, exchange)
        if exchange.setting.round.attempt == attempt:
            raise KeyboardInterrupt
        return result

    with planted(Server, "_added_up", dies), pytest.raises(KeyboardInterrupt):
        run(config, folder)


def test_round_that_was_killed_counts(sources: Path, tmp_path: Path) -> None:
    """Its answers came, and the round is done again with other noise."""
    config = configured(sources, rounds=3, privacy=SECRET)
    whole, folder = run(config, tmp_path / "whole"), tmp_path / "killed"
    killed(config, folder, 1)
    resumed = runner.resume(folder, device="cpu")
    four = run({**config, "rounds": 4}, tmp_path / "four")
    assert resumed.history[0] == {**resumed.history[0], "epsilon": whole.history[0]["epsilon"]}
    assert resumed.summary["privacy"]["epsilon"] == four.summary["privacy"]["epsilon"]
    assert resumed.summary["privacy"]["epsilon"] > whole.summary["privacy"]["epsilon"]


def test_round_that_was_asked_for_counts_though_no_answer_came(sources: Path, tmp_path: Path) -> None:
    """The server cannot know whether a site has trained and its answer was on its way."""
    config, folder = configured(sources, privacy=SECRET), tmp_path / "killed"
    with failing(Simulation, "exchange", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        run(config, folder)
    three = run({**config, "rounds": 3}, tmp_path / "three")
    assert runner.resume(folder, device="cpu").summary["privacy"] == three.summary["privacy"]


def test_older_checkpoint_forgets_no_step(sources: Path, tmp_path: Path) -> None:
    config, folder = configured(sources, rounds=3, privacy=SECRET), tmp_path / "damaged"
    killed(config, folder, 2)
    (folder / "checkpoint" / "round-000002" / "state.safetensors").write_bytes(b"")
    resumed = runner.resume(folder, device="cpu")
    five = run({**config, "rounds": 5}, tmp_path / "five")
    assert resumed.summary["privacy"] == five.summary["privacy"]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_full_disk_forgets_no_step(at: int, sources: Path, tmp_path: Path, full_at: Any) -> None:
    """At the start, and before each round is asked for."""
    config, folder = configured(sources, privacy=SECRET), tmp_path / "full"
    with (
        full_at("privacy.jsonl", at),
        pytest.raises(DiskFailed, match=r"privacy\.jsonl cannot be written: No space left"),
    ):
        run(config, folder)
    resumed = runner.resume(folder, device="cpu")
    expected = run(config, tmp_path / "expected")
    assert len(resumed.history) == 2
    assert resumed.summary["privacy"] == expected.summary["privacy"]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("at", range(2))
def test_run_that_dies_at_a_write_of_its_account_forgets_no_step(
    at: int, whole: bool, sources: Path, tmp_path: Path, killed_at: Any
) -> None:
    """A round is written down before it is asked for. One that may have been asked for counts, and is asked again."""
    folder, config = tmp_path / "run", configured(sources, evaluation={"every": 0})
    with pytest.raises(KeyboardInterrupt), killed_at("privacy.jsonl", at, whole=whole):
        run(config, folder)
    before = (folder / "privacy.jsonl").read_bytes()
    runner.resume(folder, device="cpu")
    after = (folder / "privacy.jsonl").read_bytes()
    assert after.startswith(before[: before.rfind(b"\n") + 1])
    rounds = sorted(entry.attempt for entry in read(after.splitlines()) if entry.who == "client-1")
    assert rounds == (sorted([0, 1, at]) if whole else [0, 1])  # its line is the last, so half of all is without it


def test_run_without_its_account_cannot_go_on(sources: Path, tmp_path: Path) -> None:
    killed(configured(sources), tmp_path / "run", 1)
    file, lacks = tmp_path / "run" / "privacy.jsonl", "lacks what metrics.jsonl tells of"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    damages = (
        ('{"steps": 3}\n', "is damaged"),
        ("", lacks),
        (lines[0][:-9], lacks),
        (None, "is missing: nobody knows"),
    )
    for content, message in damages:
        file.unlink() if content is None else file.write_text(content, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            runner.resume(tmp_path / "run", device="cpu")


def edited(folder: Path, key: str, value: Any, *, manifest: bool = False) -> None:
    """Another ``value`` of ``privacy.key`` in the configuration of a run, and in its manifest; None is none."""
    file = folder / "config.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    content["privacy"] = {k: v for k, v in {**content["privacy"], key: value}.items() if v is not None}
    file.write_text(tomli_w.dumps(content), encoding="utf-8")
    if manifest:
        recorded = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        recorded["config"]["privacy"][key] = value
        (folder / "manifest.json").write_text(json.dumps(recorded), encoding="utf-8")


CHANGES = {"noise": 5.0, "clip": 9.0, "delta": 0.01, "debug_seed": None, "adversary": "reader", "group": "label"}


@pytest.mark.parametrize("key", CHANGES)
def test_change_of_privacy_is_refused_under_every_flag(key: str, sources: Path, tmp_path: Path) -> None:
    """Beside another change, which the flag permits."""
    folder = tmp_path / "run"
    run(configured(sources, rounds=1, evaluation={"every": 0}), folder)
    edited(folder, key, CHANGES[key])
    file = folder / "config.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("batch_size = 6", "batch_size = 5"), encoding="utf-8")
    for whatever in (False, True):
        with pytest.raises(ConfigError, match=rf"config\.privacy\.{key}: was ") as caught:
            rondo.resume(folder, rounds=2, device="cpu", allow_nondeterministic=whatever)
        assert "--allow" not in str(caught.value)
        assert "config.train.batch_size: was 6, is 5" in str(caught.value)


def test_steps_have_the_noise_and_the_probability_that_they_had(sources: Path, tmp_path: Path) -> None:
    """Where a manifest was edited too, and where the flag permits another batch."""
    folder = tmp_path / "run"
    first = run(configured(sources, rounds=1, privacy=SECRET), folder)
    edited(folder, "noise", 5.0, manifest=True)
    file = folder / "config.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("batch_size = 6", "batch_size = 5"), encoding="utf-8")
    resumed = rondo.resume(folder, rounds=2, device="cpu", allow_nondeterministic=True)
    rows = {c: n["train"] for c, n in partition(first).items()}
    of_each = {c: {(0.5, 6 / n): -(-n // 6), (5.0, 5 / n): -(-n // 5)} for c, n in rows.items()}
    true = {c: epsilon_of_steps(steps, 1e-5) for c, steps in of_each.items()}
    assert resumed.history[-1]["client_epsilon"] == true


def test_known_noise_is_none_for_ever(sources: Path, tmp_path: Path) -> None:
    run(configured(sources, rounds=1), tmp_path / "run")
    edited(tmp_path / "run", "debug_seed", None, manifest=True)
    resumed = rondo.resume(tmp_path / "run", rounds=2, device="cpu", allow_nondeterministic=True)
    assert [(r["epsilon"], r["epsilon_valid"]) for r in resumed.history] == [(None, False)] * 2
    assert "none, NOT VALID" in (tmp_path / "run" / "adapter" / "README.md").read_text(encoding="utf-8")


def test_account_of_a_former_version_is_refused(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text('{"steps": {}}')
    with pytest.raises(ConfigError, match=r"privacy\.json is an account of a former version"):
        row_account(load(configured(sources)), RunDirectory(tmp_path))


def test_client_that_was_not_met_yet_has_spent_nothing_and_stops_nobody(sources: Path) -> None:
    """Its rows are not known, so a server cannot tell how many steps it will take."""
    config = load(
        configured(
            sources, privacy={"budget": 8.0, "noise": 1.0, **SECRET}, train={"local_steps": 5, "local_epochs": None}
        )
    )
    state = ServerState({"m.A": torch.zeros(2, 3), "m.B": torch.zeros(3, 2)})
    clients = [Client("ann", 20), Client("late", 0)]
    account = RowAccount(config, Account(lambda lines: None))
    assert list(account.able(algorithms.get("fedit"), state, clients, Round(0, 2, 0, 2))) == clients
    assert account.record(["late"])["client_epsilon"] == {"late": 0.0}


def test_rows_that_come_later_make_no_earlier_step_cheaper(sources: Path) -> None:
    config = load(configured(sources, privacy={"noise": 1.0, **SECRET}))
    account, few, many = RowAccount(config, Account(lambda lines: None)), Client("ann", 12), Client("ann", 12_000)
    account.count(few, 10)
    account.settle()
    before = account.record(["ann"])["epsilon"]
    assert account.record(["ann"])["epsilon"] == before
    account.count(many, 10)
    account.settle()
    assert account.account.steps == {"ann": {(1.0, 0.5): 10, (1.0, 5e-4): 10}}
    assert account.record(["ann"])["epsilon"] > before


def test_client_that_left_has_spent_what_it_did(sources: Path) -> None:
    account = RowAccount(load(configured(sources, privacy={"noise": 1.0, **SECRET})), Account(lambda lines: None))
    ann, bob = Client("ann", 12), Client("bob", 12)
    account.count(ann, 2)
    account.count(bob, 20)
    account.settle()
    both = account.record(["ann", "bob"])["epsilon"]
    assert account.record(["ann"])["epsilon"] == both


def test_training_without_an_answer_counts_whole(sources: Path) -> None:
    """Its upload may have left the client, and come too late."""
    train = {"local_steps": 5, "local_epochs": None}
    account = RowAccount(
        load(configured(sources, privacy={"noise": 1.0, **SECRET}, train=train)), Account(lambda lines: None)
    )
    ann, bob, cid = (Client(name, 12) for name in ("ann", "bob", "cid"))
    state = ServerState({"m.A": torch.zeros(2, 3), "m.B": torch.zeros(3, 2)})
    account.ask(algorithms.get("fedit"), state, [ann, bob, cid], Round(0, 2, 0, 3))
    account.count(ann, 5)
    account.count(cid, 0)  # it failed, and said so
    account.settle()
    steps = account.account.steps
    assert {client: sum(own.values()) for client, own in steps.items()} == {"ann": 5, "bob": 5, "cid": 0}
