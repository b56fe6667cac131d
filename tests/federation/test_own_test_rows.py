"""Sites with test rows of their own: clients are scored on them, within the contract, as in the simulation."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from parties import OPEN, Parties, configuration, write_sites

import rondo
from rondo.federation.site.contract.document import Contract
from small_runs import reviews, save_tiny_bert, write_rows

OWN = {"ann": reviews(4, seed=7), "bob": reviews(9, seed=8), "cid": reviews(6, seed=9)}
config = partial(configuration, rounds=2, evaluation={"clients_every": 1})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tested")
    save_tiny_bert(path / "bert")
    write_sites(path)
    for client, rows in OWN.items():
        write_rows(path / "own" / f"{client}.csv", rows)
    return path


def scored(result: rondo.RunResult) -> list[dict[str, Any]]:
    return [
        {kind: record["scores"][kind]["per_client"] for kind in ("clients", "validation")} for record in result.history
    ]


@pytest.mark.slow
def test_scores_on_own_test_rows_are_those_of_the_simulation(folder: Path, tmp_path: Path) -> None:
    run = config(folder)
    common = {"validation_fraction": 0.25}
    run["data"] |= common
    result = Parties(folder, state=tmp_path, options={"test": folder / "own"}).run(run, tmp_path / "far")
    alone = {**common, "clients_from": str(folder / "data" / "all"), "test_source": str(folder / "own")}
    expected = rondo.run({**run, "data": alone}, run_dir=tmp_path / "near", device="cpu")
    assert scored(result) == scored(expected)
    last = scored(result)[-1]["clients"]
    assert {client: last[client]["examples"] for client in OWN} == {client: len(rows) for client, rows in OWN.items()}


@pytest.mark.slow
def test_few_test_rows_are_not_told(folder: Path, tmp_path: Path) -> None:
    """Ann has four test rows; bob has nine, and holds four rows back."""
    contract = Contract.model_validate({**OPEN.model_dump(exclude_none=True), "outgoing": {"least_rows_scored": 5}})
    run = config(folder, rounds=1)
    run["data"]["validation_fraction"] = 0.25
    options = {"test": folder / "own", "contract": contract}
    result = Parties(folder, state=tmp_path, options=options).run(run, tmp_path / "run")
    (scores,) = scored(result)
    assert scores["clients"].keys() == {"bob", "cid"}
    assert scores["validation"].keys() == {"cid"}
