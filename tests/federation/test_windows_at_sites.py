"""A long row is several windows, and one row: sites count rows behind uploads, losses and scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from desks import contract
from parties import OPEN, Parties, write_sites

import rondo
from asked_rows import TASK, asked
from rondo.algorithm import Client, Upload
from rondo.engine.transport import Answer
from rondo.federation.site.contract import terms
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.seat import Withheld
from small_runs import save_tiny_bert, settings, write_rows

pytestmark = pytest.mark.usefixtures("refusals_at_once")


def questions(count: int, seed: int, *, long: int = 0) -> list[dict[str, Any]]:
    """Questions whose context is one window, and ``long`` ones whose context is more than ten."""
    short = [row for row in asked(40 * count, seed) if len(row["context"].split()) < 20][:count]
    for row in short[:long]:
        row["context"] += " the film was" * 100
    return [{**row, "answers": json.dumps(row["answers"])} for row in short]


def test_rows_that_no_window_teaches_are_left_out(tmp_path: Path) -> None:
    """The server sets the length of windows. Rows whose answer is longer are scored and not learned."""
    rows = {"ann": questions(12, 1), "bob": questions(12, 2), "cid": questions(12, 3)}
    for row in rows["bob"][:4]:
        row["context"] += " the film was" * 20
        row["answers"] = json.dumps({"text": [row["context"]], "answer_start": [0]})
    write_sites(tmp_path, rows=rows)
    save_tiny_bert(tmp_path / "bert")
    config = settings(tmp_path / "bert", rounds=1, task=TASK, data={}, partition={"kind": None, "clients": None})
    with pytest.raises(rondo.ConfigError, match=r"south.*rows left out of bob, cid: many, and its owner allows 10% at"):
        Parties(tmp_path, state=tmp_path / "state").run(config, tmp_path / "run", answered=("north", "south"))


@pytest.mark.slow
def test_few_rows_are_few_in_many_windows(tmp_path: Path) -> None:
    """Ann has enough rows. Eight steps on a window each can be of a single one, and her test rows are two."""
    rows = {"ann": questions(12, 1, long=1), "bob": questions(12, 2), "cid": questions(12, 3)}
    write_sites(tmp_path, rows=rows)
    save_tiny_bert(tmp_path / "bert")
    for client, own in {"ann": questions(2, 4, long=2), "bob": questions(9, 5), "cid": questions(9, 6)}.items():
        write_rows(tmp_path / "own" / f"{client}.csv", own)
    open_ = OPEN.model_dump(exclude_none=True)
    least = {"training": {**open_["training"], "least_rows": 8}, "outgoing": {"least_rows_scored": 5}}
    options = {"test": tmp_path / "own", "contract": Contract.model_validate({**open_, **least})}
    config = settings(
        tmp_path / "bert",
        rounds=1,
        task=TASK,
        data={"validation_fraction": 0.0},
        partition={"kind": None, "clients": None},
        train={"local_steps": 8, "local_epochs": None, "batch_size": 1},
        simulation={"cohort": 1},
        evaluation={"clients_every": 1},
    )
    result = Parties(tmp_path, state=tmp_path / "state", options=options).run(config, tmp_path / "run")
    (record,) = result.history
    assert [f["client"] for f in record["failed"]] == ["ann"]
    assert "less is behind it" in record["failed"][0]["detail"]
    assert record["scores"]["clients"]["per_client"].keys() == {"bob", "cid"}


def test_fewest_rows_of_some_examples() -> None:
    assert [terms.rows_behind([1, 5, 2], examples) for examples in (0, 1, 5, 6, 7, 8, 99)] == [0, 1, 1, 2, 2, 3, 3]
    assert terms.rows_behind([], 3) == 0


def test_pass_over_all_windows_is_one_over_all_rows() -> None:
    sizes = [9, *[1] * 7]
    for work, leaves in (((1, 16),), True), (((1, 15),), False), (((8, 15),), False), (((9, 16),), True):
        answer = Answer(Client("ann", 16), Upload(Client("ann", 16), {}, 1.0), work=work)
        assert (Withheld(contract(), sizes, frozenset(), lambda: None)(answer) is None) == leaves
