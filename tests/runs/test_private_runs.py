"""Runs with client-level differential privacy: what they publish, write down and refuse."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rondo
from kinds_of_runs import outcome
from rondo.config import ConfigError, load
from rondo.errors import DiskFailed
from rondo.privacy.accounts.account import read
from rondo.records.directory import RunDirectory
from rondo.runs.assembling.private import account_of_shares, private_sum
from small_runs import settings, stopped

pytest.importorskip("dp_accounting")


def configured(sources: Path, name: str = "rolora", **changes: Any) -> dict[str, Any]:
    privacy = {"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 2.0, "delta": 1e-2}
    base: dict[str, Any] = {
        "rounds": 3,
        "algorithm": {"name": name},
        "data": {
            "source": str(sources / "rows.csv"),
            "test_source": str(sources / "rows.csv"),
            "validation_fraction": 0.25,
        },
        "partition": {"kind": "iid", "clients": 6},
        "clients": {"sampling": "poisson", "per_round": 3, "weighting": "uniform"},
        "train": {"batch_size": 4, "local_epochs": 1, "lr": 0.01},
        "task": {"labels": ["neg", "pos"]},
        "privacy": {**privacy, "debug_seed": 3},
    }
    for section, keys in changes.items():
        base[section] = {**base.get(section, {}), **keys} if isinstance(keys, dict) else keys
    base["data"]["test_source"] = str(sources / "test.csv")
    base["privacy"] = {k: v for k, v in base["privacy"].items() if v is not None}
    return settings(sources / "bert", **base)


@pytest.fixture(scope="module", autouse=True)
def test_rows(sources: Path) -> None:
    from small_runs import reviews, write_rows

    write_rows(sources / "test.csv", reviews(20, seed=5))


def test_every_output_has_epsilon_and_nothing_of_single_clients(sources: Path, tmp_path: Path) -> None:
    result = rondo.run(configured(sources, privacy={"debug_seed": None}), run_dir=tmp_path / "run", device="cpu")
    spent = [record["epsilon"] for record in result.history]
    assert spent == sorted(spent)
    assert spent[0] > 0
    assert [(r["loss"], r["client_flops"], r["epsilon_valid"]) for r in result.history] == [(None, None, True)] * 3
    assert {kind for record in result.history for kind in record["scores"]} == {"global"}
    assert [record for record in result.history if "diagnostics" in record] == []
    assert result.summary["privacy"]["epsilon"] == spent[-1]
    card = (result.run_dir / "adapter" / "README.md").read_text()
    assert f"epsilon {spent[-1]:.3g} at delta 0.01" in card
    assert "- rows: not told; 20 in the test set" in card.replace("**", "")
    key = result.run_dir / "privacy.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    published = [p for p in result.run_dir.rglob("*") if p.is_file() and p != key]
    assert [p for p in published if key.read_bytes() in p.read_bytes()] == []


@pytest.mark.slow
def test_debug_seed_repeats_a_run_and_is_told_everywhere(sources: Path, tmp_path: Path) -> None:
    one, two = (rondo.run(configured(sources), run_dir=tmp_path / n, device="cpu") for n in ("one", "two"))
    assert outcome(one.run_dir) == outcome(two.run_dir)
    assert not (one.run_dir / "privacy.key").exists()
    assert one.summary["privacy"]["epsilon_valid"] is False
    assert "NOT VALID" in (one.run_dir / "adapter" / "README.md").read_text()
    assert "(not valid)" in (one.run_dir / "run.log").read_text()


@pytest.mark.slow
def test_two_runs_of_one_seed_have_other_noise(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, rounds=1, privacy={"debug_seed": None})
    one, two = (rondo.run(config, run_dir=tmp_path / n, device="cpu") for n in ("one", "two"))
    assert outcome(one.run_dir)["tensors"] != outcome(two.run_dir)["tensors"]


@pytest.mark.slow
def test_stopped_run_has_the_clips_of_a_whole_one(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, privacy={"clip": "adaptive"})
    whole = rondo.run(config, run_dir=tmp_path / "whole", device="cpu")
    stopped(config, tmp_path / "cut")
    resumed = rondo.resume(tmp_path / "cut", device="cpu")
    assert outcome(resumed.run_dir) == outcome(whole.run_dir)
    clips = [record["clip"] for record in whole.history]
    assert clips[0] == 0.1
    assert len(set(clips)) == 3


def attempts(folder: Path) -> list[int]:
    """Those of the sums in a run's account."""
    return [entry.attempt for entry in read((folder / "privacy.jsonl").read_bytes().splitlines())]


@pytest.mark.parametrize("sites", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_stopped_run_goes_on_to_the_same_bits_and_never_forgets(sites: bool, sources: Path, tmp_path: Path) -> None:
    """With noise of the ``sites``, a debug seed gives the same sum, which spends once; the system's bits give another
    one."""
    full = {"sampling": "full", "per_round": None}
    config = with_shares(sources) if sites else configured(sources, clients=full)
    whole = rondo.run(config, run_dir=tmp_path / "whole", device="cpu")
    stopped(config, tmp_path / "cut")
    account = tmp_path / "cut" / "privacy.jsonl"
    (first,) = read(account.read_bytes().splitlines())
    with account.open("ab") as file:
        file.write(replace(first, attempt=1, sum="another sum of this attempt").line())
    resumed = rondo.resume(tmp_path / "cut", device="cpu")
    assert outcome(resumed.run_dir)["tensors"] == outcome(whole.run_dir)["tensors"]
    assert attempts(resumed.run_dir) == [0, 1, 1, 2]
    assert attempts(whole.run_dir) == [0, 1, 2]
    assert not (sites and (whole.run_dir / "privacy.key").exists())


@pytest.mark.sweep(3)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("at", range(3))
def test_run_that_dies_at_a_write_of_its_account_spends_each_sum_once(
    at: int, whole: bool, sources: Path, tmp_path: Path, killed_at: Any
) -> None:
    """A sum of which the account has half a line was not used. One that it has is published again, as it was."""
    folder = tmp_path / "run"
    config = configured(sources, clients={"sampling": "full", "per_round": None}, evaluation={"every": 0})
    with pytest.raises(KeyboardInterrupt), killed_at("privacy.jsonl", at, whole=whole):
        rondo.run(config, run_dir=folder, device="cpu")
    before = (folder / "privacy.jsonl").read_bytes()
    rondo.resume(folder, device="cpu")
    assert attempts(folder) == [0, 1, 2]
    assert (folder / "privacy.jsonl").read_bytes().startswith(before[: before.rfind(b"\n") + 1])


def test_lost_key_or_account_ends_the_run(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, privacy={"debug_seed": None})
    stopped(config, tmp_path / "cut")
    key = (tmp_path / "cut" / "privacy.key").read_bytes()
    (tmp_path / "cut" / "privacy.key").unlink()
    with pytest.raises(ConfigError, match=r"privacy\.key is missing or damaged"):
        rondo.resume(tmp_path / "cut", device="cpu")
    (tmp_path / "cut" / "privacy.key").write_bytes(key)
    (tmp_path / "cut" / "privacy.jsonl").write_text('{"sums": 3}\n')
    with pytest.raises(ConfigError, match=r"privacy\.jsonl is damaged, so nobody knows what was spent"):
        rondo.resume(tmp_path / "cut", device="cpu")
    (tmp_path / "cut" / "privacy.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"privacy\.jsonl is missing: nobody knows what was spent"):
        rondo.resume(tmp_path / "cut", device="cpu")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("at", [0, 2, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 3))])
def test_full_disk_stops_a_private_run_and_forgets_nothing(
    at: int, sources: Path, tmp_path: Path, full_at: Any
) -> None:
    """Before the first round, and after each: a sum that could not be written down is not used."""
    config = configured(sources, clients={"sampling": "full", "per_round": None})
    whole, folder = rondo.run(config, run_dir=tmp_path / "whole", device="cpu"), tmp_path / "full"
    with (
        full_at("privacy.jsonl", at),
        pytest.raises(DiskFailed, match=r"privacy\.jsonl cannot be written: No space left"),
    ):
        rondo.run(config, run_dir=folder, device="cpu")
    assert (attempts(folder) if at else []) == list(range(at - 1))
    resumed = rondo.resume(folder, device="cpu")
    assert outcome(folder) == outcome(whole.run_dir)
    assert (folder / "privacy.jsonl").read_text() == (tmp_path / "whole" / "privacy.jsonl").read_text()
    assert resumed.summary["privacy"] == whole.summary["privacy"]


def test_full_disk_leaves_no_part_of_a_key(sources: Path, tmp_path: Path, full_at: Any) -> None:
    config, key = configured(sources, privacy={"debug_seed": None}), tmp_path / "run" / "privacy.key"
    with full_at("privacy.key"), pytest.raises(DiskFailed, match=r"privacy\.key cannot be written: No space left"):
        rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert not key.exists()
    rondo.resume(tmp_path / "run", device="cpu")
    assert (len(key.read_bytes()), stat.S_IMODE(key.stat().st_mode)) == (32, 0o600)


def test_damaged_account_of_sums_is_refused(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "privacy.jsonl").write_text('{"sum": "ab"}\n')
    (tmp_path / "privacy.key").write_bytes(bytes(32))
    for config in (configured(sources), with_shares(sources)):
        with pytest.raises(ConfigError, match=r"privacy\.jsonl is damaged, .* \(line 1 is not as it was written"):
            account_of_shares(load(config), RunDirectory(tmp_path)) or private_sum(
                load(config), 6, RunDirectory(tmp_path)
            )


def test_account_of_a_copy_that_is_older_is_refused(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, privacy={"debug_seed": None}, evaluation={"every": 0})
    rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    file = tmp_path / "run" / "privacy.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    with pytest.raises(ConfigError, match=r"privacy\.jsonl lacks what metrics\.jsonl tells of"):
        rondo.resume(tmp_path / "run", rounds=4, device="cpu")


def with_shares(sources: Path, **privacy: Any) -> dict[str, Any]:
    """Each of six clients adds a share of the noise to its masked upload."""
    shares = {"adversary": "server", "secure_aggregation": True, **privacy}
    return configured(sources, privacy=shares, clients={"sampling": "full", "per_round": None})


@pytest.mark.slow
def test_lost_account_of_noisy_sums_ends_the_run(sources: Path, tmp_path: Path) -> None:
    stopped(with_shares(sources, debug_seed=None), tmp_path / "cut")
    (tmp_path / "cut" / "privacy.jsonl").write_text('{"sums": 3}\n')
    with pytest.raises(ConfigError, match=r"privacy\.jsonl is damaged, so nobody knows what was spent"):
        rondo.resume(tmp_path / "cut", device="cpu")
    (tmp_path / "cut" / "privacy.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"privacy\.jsonl is missing"):
        rondo.resume(tmp_path / "cut", device="cpu")


def test_budget_ends_the_run_before_it_is_exceeded(sources: Path, tmp_path: Path) -> None:
    free = rondo.run(configured(sources, privacy={"debug_seed": None}), run_dir=tmp_path / "free", device="cpu")
    budget = (free.history[0]["epsilon"] + free.history[1]["epsilon"]) / 2
    bounded = configured(sources, privacy={"budget": budget, "debug_seed": None})
    bound = rondo.run(bounded, run_dir=tmp_path / "bound", device="cpu")
    assert len(bound.history) == 1
    assert bound.summary["stopped_early"]
    assert bound.summary["privacy"]["epsilon"] <= budget
    assert bound.history[-1]["scores"]["global"]
    with pytest.raises(ConfigError, match=r"privacy\.budget: .* the first round takes"):
        rondo.run(bounded, sets=[f"privacy.budget={budget / 100}"], run_dir=tmp_path / "none", device="cpu")


@pytest.mark.slow
def test_round_without_clients_steps_and_spends(sources: Path, tmp_path: Path) -> None:
    """With one of six clients in a round by chance, some rounds of ten are empty."""
    config = configured(sources, rounds=10, clients={"per_round": 1}, evaluation={"every": 0})
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    empty = [record for record in result.history if record["sampled"] == 0]
    assert empty
    assert {record["skipped"] for record in result.history} == {None}
    assert [record["aggregated"] for record in result.history] == list(range(1, 11))
    assert attempts(result.run_dir) == list(range(10))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("gone", [2, 6])
def test_client_that_fails_counts_as_zero(gone: int, sources: Path, tmp_path: Path) -> None:
    """Clients crash in every round: some of six or all. No round is skipped, and the noise and epsilon are the same."""
    full: dict[str, Any] = {"clients": {"sampling": "full", "per_round": None}, "rounds": 2}
    full["privacy"] = {"debug_seed": None}
    whole = rondo.run(configured(sources, **full), run_dir=tmp_path / "whole", device="cpu")
    faults = {"crash": [f"client-{n}" for n in range(gone)]}
    result = rondo.run(configured(sources, faults=faults, **full), run_dir=tmp_path / "run", device="cpu")
    assert [(len(r["failed"]), r["skipped"], r["aggregated"]) for r in result.history] == [
        (gone, None, 1),
        (gone, None, 2),
    ]
    assert [r["epsilon"] for r in result.history] == [r["epsilon"] for r in whole.history]
    assert outcome(result.run_dir)["tensors"] != outcome(whole.run_dir)["tensors"]


def test_run_ends_early_by_the_servers_own_test_set_alone(sources: Path, tmp_path: Path) -> None:
    """Rates of nearly zero leave the score as it is; scores at clients are refused, so without a test set no patience
    is possible."""
    patient: dict[str, Any] = {"rounds": 6, "evaluation": {"every": 1, "patience": 2}}
    calm = {"train": {"lr": 1e-12}, "privacy": {"noise": 0.2, "clip": 1e-9}}
    result = rondo.run(configured(sources, **patient, **calm), run_dir=tmp_path / "run", device="cpu")
    assert (len(result.history), result.summary["stopped_early"]) == (3, True)
    of_rows = {"adversary": "server", "unit": "example"}
    for privacy in ({}, of_rows, {**of_rows, "adversary": "reader"}):
        config = configured(sources, **patient, privacy=privacy, clients={"sampling": "full", "per_round": None})
        del config["data"]["test_source"]
        config["data"]["test_split"] = ""
        with pytest.raises(ConfigError, match=r"evaluation\.patience: no round is scored without test rows"):
            rondo.run(config, run_dir=tmp_path / "none", device="cpu")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"privacy": {"clip": "adaptive", "secure_aggregation": True, "adversary": "server"}},
            "privacy.clip: it follows bits of clients",
        ),
        ({"privacy": {"adversary": None}}, "privacy.adversary: say from whom"),
        ({"privacy": {"noise": None}}, "privacy.noise: differential privacy needs it"),
        ({"privacy": {"unit": None, "noise": None, "delta": None, "debug_seed": None}}, "privacy.unit: nothing is"),
        ({"clients": {"sampling": "uniform"}}, "clients.sampling: the guarantee is for"),
        ({"clients": {"weighting": "examples"}}, "clients.weighting: a client with many rows"),
        ({"clients": {"min_clients": 2}}, "clients.min_clients: a round skipped"),
        ({"evaluation": {"clients_every": 1}}, "evaluation.clients_every: it shows what single clients learned"),
        ({"evaluation": {"diagnostics_every": 1}}, "evaluation.diagnostics_every: it looks at single uploads"),
        ({"robust": {"rule": "krum"}, "clients": {"min_clients": 3}}, "robust.rule: it looks at single uploads"),
        ({"admission": {"max_norm": 1.0}}, "admission.max_norm: privacy.clip bounds"),
    ],
)
def test_option_that_breaks_the_guarantee_is_refused(sections: dict[str, Any], message: str, sources: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(configured(sources, **sections))
    assert message in str(caught.value)


@pytest.mark.slow
def test_delta_that_protects_no_row_is_refused(sources: Path, tmp_path: Path) -> None:
    of_rows = {"adversary": "server", "unit": "example", "delta": 0.5}
    config = configured(sources, privacy=of_rows, clients={"sampling": "full", "per_round": None})
    with pytest.raises(
        ConfigError, match=r"privacy\.delta: 0\.5 is not below 1 over the \d+ rows of client-"
    ) as caught:
        rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    # One that a former version began is scored, and what the message says is enough for all clients.
    remedy = re.search(r"set it to (\S+) or so", str(caught.value))
    assert remedy is not None
    result = rondo.run(config, sets=[f"privacy.delta={remedy[1]}"], run_dir=tmp_path / "run", device="cpu")
    for file in (result.run_dir / "config.toml", result.run_dir / "manifest.json"):
        text = file.read_text(encoding="utf-8")
        file.write_text(re.sub(r'("?delta"?\s*[=:]\s*)[0-9.e-]+', r"\g<1>0.5", text), encoding="utf-8")
    assert "delta = 0.5" in (result.run_dir / "config.toml").read_text(encoding="utf-8")
    assert rondo.evaluate(result.run_dir, device="cpu")["test"]["loss"] is not None


def test_classes_must_be_named(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.labels: the classes would be those of the clients' rows"):
        rondo.run(configured(sources, task={"labels": None}), run_dir=tmp_path / "run", device="cpu")
