"""Numbers that a site tells of itself: uploads are held to its consent, and its consent to the server's limits."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
from liars import lying
from parties import LABELS, SITES, Parties, configuration

import rondo
from rondo.engine.wire.envelope import decode_upload
from rondo.engine.wire.letters import Reply, Request
from rondo.engine.wire.strict import PROTOCOL
from rondo.federation.plan import Consent
from small_runs import Watch, reviews, write_rows

config = partial(configuration, task=LABELS, clients={"min_clients": 1})


def claiming(data: bytes, examples: int) -> bytes:
    """The reply ``data``, whose upload claims so many examples and their weight."""
    reply = Reply.decode(data)
    received = decode_upload(reply.upload, 2**30, 2**20)
    envelope = asdict(replace(received.envelope, examples=examples, weight=float(examples)))
    text = json.dumps({"protocol": PROTOCOL, **envelope})
    content = safetensors.torch.save(dict(received.tensors()), metadata={"rondo": text})
    return replace(reply, upload=hashlib.sha256(content).digest() + content).encode()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("claimed", [2**50, 16])
def test_upload_is_held_to_its_consent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claimed: int
) -> None:
    """The site consents with 15 examples, and its second upload claims others."""

    def lie(desk: Any, kind: str | None, letter: bytes) -> bytes:
        data: bytes = desk.answer(kind, letter)
        later = kind == "round" and Request.decode(letter).round.attempt == 1
        return claiming(data, claimed) if later else data

    lying(monkeypatch, lie)
    result = Parties(folder, state=tmp_path).run(config(folder), tmp_path / "run")
    assert [r["clients"] for r in result.history] == [3, 2]
    (failure,) = result.history[1]["failed"]
    assert (failure["client"], failure["reason"]) == ("ann", "bad_examples")
    assert failure["detail"] == f"{claimed}, and its client has 15"
    assert result.history[1]["rejected"] == {"bad_examples": 1}


def test_consent_beyond_the_limit_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(desk: Any, kind: str | None, letter: bytes) -> bytes:
        return Consent({"ann": 2**50}).encode() if kind == "plan" else desk.answer(kind, letter)

    lying(monkeypatch, lie)
    run = config(folder, rounds=1, admission={"max_examples": 1000})
    parties = Parties(folder, state=tmp_path)
    result = parties.run(run, tmp_path / "run", answered=("north", "south"))
    assert [r["clients"] for r in result.history] == [2]
    assert (
        "north takes no part: it claims 1125899906842624 examples for 'ann', and admission.max_examples is 1000"
        in parties.told
    )


@pytest.mark.slow
def test_site_that_comes_back_with_more_rows_is_told_of(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "own")
    parties = Parties(tmp_path / "own", state=tmp_path)

    def act(done: int) -> None:
        if done == 1:
            parties.stop("north")
            write_rows(tmp_path / "own" / "data" / "north" / "ann.csv", reviews(32))
            parties.start("north")
            parties.until("north: 'ann' has 24 examples from now on, and had 15")

    result = parties.run(config(folder, rounds=3), tmp_path / "run", observer=Watch(done=act), patience=60.0)
    assert not parties.errors
    assert [r["rejected"] for r in result.history] == [{}] * 3
    assert [line for line in parties.told if "from now on" in line] == [
        "north: 'ann' has 24 examples from now on, and had 15"
    ]
    assert result.history[2]["clients"] == len(SITES["north"]) + len(SITES["south"])


def test_simulation_and_federation_know_the_same_counts(folder: Path, tmp_path: Path) -> None:
    """The check does not turn away an honest upload, whatever weight its method gives it."""
    run = config(folder, rounds=1, algorithm={"name": "hetlora"}, clients={"ranks": [1, 2, 2]})
    result = Parties(folder, state=tmp_path).run(run, tmp_path / "run")
    assert isinstance(result, rondo.RunResult)
    assert [r["clients"] for r in result.history] == [3]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("lie", [{"accuracy": 1e90}, {"accuracy": 1.1}, {"accuracy": 0.5, "loss": -1e90}])
def test_scores_better_than_perfect_do_not_count(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: dict[str, float]
) -> None:
    """They would choose the round whose adapter is the best."""

    def lied(desk: Any, kind: str | None, letter: bytes) -> bytes:
        if kind == "round" and Request.decode(letter).scores:
            return Reply(scores={"clients": lie}).encode()
        return bytes(desk.answer(kind, letter))

    lying(monkeypatch, lied)
    data = {"test_source": str(folder / "data" / "test.csv"), "validation_fraction": 0.25}
    run = config(folder, rounds=1, data=data, evaluation={"clients_every": 1})
    result = Parties(folder, state=tmp_path).run(run, tmp_path / "run")
    assert result.history[0]["scores"]["clients"]["per_client"].keys() == {"bob", "cid"}


@pytest.mark.slow
def test_weight_that_a_client_gives_itself_is_computed_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of HetLoRA weigh their own uploads, by the norm of what is in them."""

    def lie(desk: Any, kind: str | None, letter: bytes) -> bytes:
        data: bytes = desk.answer(kind, letter)
        return claiming(data, 15) if kind == "round" else data

    lying(monkeypatch, lie)
    result = Parties(folder, state=tmp_path).run(
        config(folder, rounds=1, algorithm={"name": "hetlora"}), tmp_path / "r"
    )
    assert result.history[0]["rejected"] == {"bad_weight": 1}
    (failure,) = result.history[0]["failed"]
    assert failure["detail"].startswith("15.0, by its tensors it is ")
