"""Every cell of the table of options: an allowed one runs two rounds, a refused one is refused with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

import rondo
from rondo import algorithms
from rondo.algorithms.compatible import OPTIONS, Option, refused
from rondo.algorithms.table import TABLE
from rondo.cli import app
from rondo.errors import ConfigError
from rondo.runs.assembling import assemble
from small_runs import settings

_DP = {"clip": 1.0, "noise": 1.0, "delta": 1e-5, "debug_seed": 0}
_UNIFORM = {"weighting": "uniform"}

SECTIONS: Mapping[Option, dict[str, Any]] = {
    "secure aggregation": {"privacy": {"adversary": "server", "secure_aggregation": True, "clip": 10.0}},
    "client DP": {
        "privacy": {"adversary": "reader", "unit": "client", **_DP},
        "clients": {"sampling": "full", **_UNIFORM},
    },
    "client DP, masked": {
        "privacy": {"adversary": "server", "secure_aggregation": True, "unit": "client", **_DP},
        "clients": _UNIFORM,
    },
    "example DP": {"privacy": {"adversary": "server", "unit": "example", **_DP}, "clients": _UNIFORM},
    "robust choice": {"robust": {"rule": "krum", "byzantine": 1}, "clients": {"min_clients": 3}},
    "robust mean": {"robust": {"rule": "median", "byzantine": 1}, "clients": {"min_clients": 3}},
    "server optimizer": {"server": {"optimizer": "adam"}},
    "own ranks": {"clients": {"ranks": [1, 2, 1, 2]}},
    "magnitudes": {"adapter": {"use_dora": True}},
    "local head": {"model": {"head": "local"}},
    "diagnostics": {"evaluation": {"diagnostics_every": 1}},
    "client scores": {"evaluation": {"clients_every": 1}},
    "rounding": {"compression": {"kind": "rounding", "bits": 4}},
    "top-k": {"compression": {"kind": "top-k"}},
    "buffered rounds": {"clients": {"mode": "buffered", "buffer": 2}},
}
"""The sections that ask for each option."""

OF_SUMS: tuple[Option, ...] = (
    "secure aggregation",
    "client DP",
    "client DP, masked",
    "robust mean",
    "server optimizer",
    "rounding",
    "top-k",
    "buffered rounds",
)


def configured(name: str, option: Option, sources: Path, **fields: Any) -> dict[str, Any]:
    """Two rounds of four clients with ``option``."""
    base: dict[str, Any] = {
        "rounds": 2,
        "algorithm": {"name": name, **fields},
        "adapter": {"r": 2, "target_modules": ["query", "value"]},
        "data": {"source": str(sources / "rows.csv"), "test_split": "", "validation_fraction": 0.25},
        "partition": {"kind": "iid", "clients": 4},
        "train": {"batch_size": 4, "local_epochs": 1, "lr": 0.01},
        "evaluation": {"diagnostics_every": 0},
    }
    traits = TABLE[name].traits
    if traits.least_squares:
        del base["adapter"]
        base |= {
            "model": {"name": "builtin:linear"},
            "task": {"kind": "linear"},
            "data": {"source": "builtin:linear"},
            "problem": {
                "clients": 4,
                "rows": 8,
                "inputs": 4,
                "noise": 0.1,
                "kind": "heads" if traits.personal else "factors",
            },
            "partition": {},
            "train": {"optimizer": "sgd", "lr": 0.1, "max_grad_norm": 0.0, "batch_size": 8},
        }
    elif traits.plain_sgd or name == "scaffold":
        base["train"] |= {"optimizer": "sgd", "max_grad_norm": 0.0}
    for section, keys in SECTIONS[option].items():
        base[section] = {**base.get(section, {}), **keys}
    if traits.least_squares:
        return base
    base["task"] = {"labels": ["neg", "pos"]}
    folder = base.pop("model", {})
    return settings(sources / "bert", **base, **({"model": folder} if folder else {}))


CELLS = [(name, option) for name in TABLE for option in OPTIONS]


def reason(name: str, option: Option) -> str | None:
    return refused(TABLE[name].traits, linear=TABLE[name].linear).get(option)


@pytest.mark.parametrize(("name", "option"), [c for c in CELLS if reason(*c) is not None])
def test_refused_option_gives_its_reason_before_a_model_is_loaded(
    name: str, option: Option, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "look", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(ConfigError) as caught:
        rondo.run(configured(name, option, sources), run_dir=tmp_path / "run", device="cpu")
    message = "; ".join(problem.message for problem in caught.value.problems)
    assert f"{name}: {reason(name, option)}; " in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", OPTIONS)
def test_command_refuses_an_option_with_exit_code_2(option: Option, sources: Path, tmp_path: Path) -> None:
    name = next((name for name, of in CELLS if of == option and reason(name, of) is not None), None)
    if name is None:
        assert option in ("diagnostics", "client scores", "robust choice")
        return
    file = tmp_path / "run.toml"
    file.write_text(tomli_w.dumps(configured(name, option, sources)))
    result = CliRunner().invoke(app, ["run", str(file), "--run-dir", str(tmp_path / "run")])
    assert (result.exit_code, (tmp_path / "run").exists()) == (2, False)
    assert f"{name}: {reason(name, option)}; " in " ".join(result.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), [c for c in CELLS if reason(*c) is None])
def test_allowed_option_runs(name: str, option: Option, sources: Path, tmp_path: Path) -> None:
    result = rondo.run(configured(name, option, sources), run_dir=tmp_path / "run", device="cpu")
    assert [record["skipped"] for record in result.history] == [None, None]


SKETCHED = [(name, option) for name in ("flexlora", "fedex-lora") for option in OPTIONS]


def reason_sketched(name: str, option: Option) -> str | None:
    algorithm = algorithms.get(name, sketch=4)
    return refused(algorithm.traits, linear=algorithm.linear).get(option)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param(n, o, marks=() if o == "secure aggregation" or reason_sketched(n, o) else pytest.mark.slow)
        for n, o in SKETCHED
    ],
)
def test_cell_of_a_method_that_sketches_its_products(name: str, option: Option, sources: Path, tmp_path: Path) -> None:
    run = configured(name, option, sources, sketch=4)
    if (why := reason_sketched(name, option)) is not None:
        with pytest.raises(ConfigError, match=re.escape(f"{name}: {why}; ")):
            rondo.run(run, run_dir=tmp_path / "run", device="cpu")
        return
    result = rondo.run(run, run_dir=tmp_path / "run", device="cpu")
    assert [record["skipped"] for record in result.history] == [None, None]
    assert [list(record["measures"]) for record in result.history] == [["sketch_error"]] * 2
    assert result.summary["measures"] == {"before": {}, "after": result.history[-1]["measures"]}


def test_command_prints_every_cell() -> None:
    printed = json.loads(CliRunner().invoke(app, ["list", "--compat", "--json"]).output)
    assert printed == {n: {o: reason(n, o) for o in OPTIONS} for n in TABLE}
    table = CliRunner().invoke(app, ["list", "--compat"]).output
    assert [name for name in TABLE if f"\n{name} " not in table] == []
    assert {r for c in CELLS if (r := reason(*c))} == {
        line.split(": ")[1] for line in table.splitlines() if line[:1].isdigit()
    }


def test_methods_of_sums_are_those_that_are_linear() -> None:
    """Masks take all linear ones but HetLoRA, whose weights the server would not see, and one that sends nothing."""
    for name, entry in TABLE.items():
        if not entry.linear:
            assert [(name, option) for option in OF_SUMS if not reason(name, option)] == []
    masked = {name for name in TABLE if reason(name, "secure aggregation") is None}
    assert masked == {name for name, entry in TABLE.items() if entry.linear} - {"hetlora", "local"}
    assert sum(entry.linear for entry in TABLE.values()) == 34


def test_method_of_ones_own_has_its_row() -> None:
    result = CliRunner().invoke(app, ["list", "--compat", "--json", "rondo.algorithms.factors.flora:FLoRA"])
    assert json.loads(result.output) == {
        "rondo.algorithms.factors.flora:FLoRA": {option: reason("flora", option) for option in OPTIONS}
    }


@pytest.mark.parametrize("arguments", [["list", "--json"], ["list", "rolora"], ["list", "--compat", "rolara"]])
def test_bad_arguments_are_told(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
