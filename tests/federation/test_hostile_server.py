"""A server that lies to a site: nothing on the site's disk is read or written because a plan says so, and no letter
ends the site's program."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from desks import Make, asked, with_
from hypothesis import given
from hypothesis import strategies as st
from parties import ROWS

from rondo.algorithm import Client, Round, Shared
from rondo.engine.wire import parcel, serialization
from rondo.engine.wire.envelope import Identity
from rondo.engine.wire.letters import Reply, Request
from rondo.engine.wire.parcel import Parcel
from rondo.federation.plan import Plan
from rondo.federation.site import seat
from rondo.federation.site.audit.audit import Audit
from rondo.federation.site.desk import Exhausted
from rondo.process import on_threads


def test_honest_plan_and_request(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    here = desk(tmp_path)
    assert asked(here, plan).clients == {"ann": 15}
    assert Reply.decode(here.answer("round", request_.encode())).upload


@pytest.mark.parametrize(("threads", "used"), [(2, 2), (3, 1), (10**9, 1)])
def test_start_is_made_on_the_servers_threads(
    plan: Plan, request_: Request, tmp_path: Path, desk: Make, monkeypatch: pytest.MonkeyPatch, threads: int, used: int
) -> None:
    """Unless the site has fewer cores. Training is on the site's own."""
    before, seen = torch.get_num_threads(), []

    def start_of(*args: Any) -> Shared:
        seen.append(torch.get_num_threads())
        return parcel.start_of(*args)

    monkeypatch.setattr(seat, "start_of", start_of)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with on_threads(1):
        here = desk(tmp_path)
        assert asked(here, replace(plan, threads=threads)).clients
        assert Reply.decode(here.answer("round", request_.encode())).upload
        assert (seen, torch.get_num_threads()) == ([used], 1)
    assert torch.get_num_threads() == before


# --- plans --------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": 2},
        {"protocol": "1"},
        {"protocol": None},
        {"rondo": None},
        {"run": 5},
        {"run": None},
        {"run": "a" * 10**6},
        {"config": []},
        {"config": "algorithm"},
        {"config": None},
        {"config": {}},
        {"config": {"algorithm": 5}},
        {"config": {"algorithm": {"name": 5}}},
        {"config": {"model": "a"}},
        {"config": {"data": 5, "simulation": [], "model": []}},
        {"clients": "ann"},
        {"clients": 5},
        {"clients": []},
        {"clients": [["ann"]]},
        {"labels": 5},
        {"labels": "ab"},
        {"labels": []},
        {"labels": [None, {}]},
        {"labels": ["no", "no"]},
        {"model": 5},
        {"model": "0" * 64},
        {"threads": 0},
        {"threads": True},
        {"threads": "2"},
        {"surplus": 1},
    ],
    ids=lambda c: repr(c)[:50],
)
def test_plan_that_is_none(plan: Plan, tmp_path: Path, desk: Make, changes: dict[str, Any]) -> None:
    told: list[str] = []
    for options in ({}, {"model": str(tmp_path)}):
        here = desk(tmp_path, told=told, **options)
        answer = asked(here, json.dumps({**json.loads(plan.encode()), **changes}).encode())
        assert answer.refused
        assert not answer.clients
        assert len(answer.refused) < 2000
    assert not list((tmp_path / "state").glob("*/*"))


@given(data=st.binary(max_size=100))
def test_bytes_that_are_no_plan(data: bytes) -> None:
    with pytest.raises(ValueError, match="invalid plan"):
        Plan.decode(data)


def test_code_is_refused(plan: Plan, tmp_path: Path, desk: Make) -> None:
    for section, key in (("algorithm", "name"), ("task", "kind"), ("model", "name")):
        for name in ("os.path:join", "antigravity:fly", "small_runs:settings"):
            answer = asked(
                desk(tmp_path, model=None), with_(with_(plan, model={"name": "builtin:cnn"}), **{section: {key: name}})
            )
            assert "training.allow_code" in answer.refused, (section, name, answer)
    assert "antigravity" not in sys.modules, "it was imported before it was refused"


def test_site_reads_no_file_that_the_server_names(plan: Plan, letters: Any, tmp_path: Path, desk: Make) -> None:
    """Neither its content nor whether it is there may reach the server."""
    secret = tmp_path / "secret.jinja"
    secret.write_text("the {{ secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    for section, key, there in (
        ("task", "chat_template", secret),
        ("model", "vectors", secret),
        ("adapter", "start_from", folder),
        ("model", "name", folder),
        ("model", "name", secret),
    ):
        gone = tmp_path / "gone"
        refusals = [
            asked(desk(tmp_path, model=None), with_(plan, **{section: {key: str(path)}})).refused.replace(
                str(path), "PATH"
            )
            for path in (there, gone)
        ]
        assert refusals[0] == refusals[1] != "", (key, refusals)
        assert "the server" in refusals[0]


def test_base_model_is_the_owners(plan: Plan, letters: Any, tmp_path: Path, desk: Make) -> None:
    """A path in the plan is of the server's disk: the site's owner names the copy here."""
    folder = letters[0] / "bert"
    assert "--model" in asked(desk(tmp_path, model=None), with_(plan, model={"name": str(tmp_path / "x")})).refused
    assert asked(desk(tmp_path, model=str(folder)), with_(plan, model={"name": str(tmp_path / "x")})).clients


def test_rows_of_the_plan_are_left_alone(plan: Plan, tmp_path: Path, desk: Make) -> None:
    sections = {"data": {"source": "/etc/passwd", "test_source": "/etc/passwd", "clients_from": "/etc/*"}}
    answer = asked(desk(tmp_path), with_(plan, **sections, partition={"kind": "iid", "clients": 7}))
    assert answer.clients == {"ann": 15}


def test_memory_and_processes_are_the_sites_own(plan: Plan, tmp_path: Path, desk: Make) -> None:
    greedy = {"engine": "ray", "workers": 64, "memory_mb": 10**9, "prefix_memory_mb": 10**9, "prefix_disk_mb": 10**9}
    here = desk(tmp_path)
    assert asked(here, with_(plan, simulation=greedy)).clients == {"ann": 15}
    simulation = here.parties["ann"].local.config.simulation
    assert (simulation.engine, simulation.workers, simulation.memory_mb) == ("process", None, "auto")
    assert simulation.prefix_disk_mb == 4096


def test_rows_do_not_travel_in_a_refusal(plan: Plan, tmp_path: Path, desk: Make) -> None:
    private = {row[key] for row in ROWS["ann"] for key in row}
    for changed in (
        with_(plan, task={"label": "nothing"}),
        with_(plan, task={"text": "nothing"}),
        with_(plan, data={"bad_rows": "stop"}, task={"kind": "regression", "target": "text"}),
        replace(plan, labels=("something", "else")),
        replace(with_(plan, data={"bad_rows": "stop"}), labels=("something", "else")),
    ):
        refused = asked(desk(tmp_path), changed).refused
        assert refused
        assert [text for text in private if len(str(text)) > 3 and str(text) in refused] == [], refused


@pytest.mark.slow
def test_other_base_model(plan: Plan, tmp_path: Path, desk: Make) -> None:
    refused = asked(desk(tmp_path), replace(plan, model="0" * 64)).refused
    assert "0" * 64 in refused
    assert plan.model in refused


# --- requests -----------------------------------------------------------------------------------------------------

BAD: dict[str, dict[str, Any]] = {
    "no identity": {"identity": None},
    "identity of numbers": {"identity": Identity(1, 2)},  # type: ignore[arg-type]
    "no client": {"client": None},
    "client is a name": {"client": "ann"},
    "client's id is a number": {"client": Client(5, 5)},  # type: ignore[arg-type]
    "id with a surrogate": {"client": Client("\ud800", 5)},
    "another's client": {"client": Client("bob", 5)},
    "long id": {"client": Client("a" * 10**6, 5)},
    "examples are a text": {"client": Client("ann", "many")},  # type: ignore[arg-type]
    "rank is a text": {"client": Client("ann", 15, "x")},  # type: ignore[arg-type]
    "no round": {"round": None},
    "round of texts": {"round": Round("0", "1", "2", "3")},  # type: ignore[arg-type]
    "no parcel": {"parcel": None},
    "parcel of numbers": {"parcel": Parcel(1, 2, 3)},  # type: ignore[arg-type]
    "empty parcel": {"parcel": Parcel({}, {}, {})},
    "versions are numbers": {"parcel": Parcel({"a": 1}, {}, {})},  # type: ignore[dict-item]
    "tensor without version": {"parcel": Parcel({}, {"a": torch.zeros(3)}, {})},
    "tensor of another version": {"parcel": Parcel({"a": "0" * 32}, {"a": torch.zeros(3)}, {})},
    "tensors are texts": {"parcel": Parcel({"a": "0" * 32}, {"a": "x"}, {})},  # type: ignore[dict-item]
    "base is a text": {"parcel": Parcel({}, {}, {"a": "x"})},  # type: ignore[dict-item]
    "digest is a number": {"parcel": Parcel({}, {}, {}, {"a": 1})},  # type: ignore[dict-item]
    "digests are a text": {"parcel": Parcel({}, {}, {}, "a")},  # type: ignore[arg-type]
    "counted is a text": {"counted": "x"},
    "asked is a text": {"asked": "many"},
    "scores is a text": {"scores": "yes"},
    "another protocol": {"protocol": 2},
    "protocol is none": {"protocol": None},
    "other base model": {"identity": Identity("run", "0" * 64)},
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("fault", BAD)
def test_request_that_is_none(plan: Plan, request_: Request, tmp_path: Path, desk: Make, fault: str) -> None:
    here = desk(tmp_path)
    assert asked(here, plan).clients
    for scores in (False, True):
        changed = replace(replace(request_, scores=scores), **BAD[fault])
        reply = Reply.decode(here.answer("round", changed.encode()))
        assert not reply.upload, fault
        assert not reply.scores, fault
        assert reply.reason
        assert len(reply.detail) < 2000
    assert Reply.decode(here.answer("round", request_.encode())).upload, "the honest request is answered still"


def test_tensors_of_other_shapes(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """Versions that are right, of tensors that do not fit the model."""
    from rondo.engine.wire.parcel import version

    here = desk(tmp_path)
    assert asked(here, plan).clients
    for change in (
        lambda t: t[:1] if t.dim() else t,
        lambda t: t.reshape(-1),
        lambda t: t.double(),
        lambda t: t.to(torch.int64),
        lambda t: torch.full_like(t, float("nan")),
        lambda t: torch.full_like(t, 1e38),
        lambda t: torch.zeros(0),
        lambda t: t.to(torch.complex64),
    ):
        params = {name: change(t).contiguous() for name, t in request_.parcel.params.items()}
        versions = {**request_.parcel.versions, **{n: version(t) for n, t in params.items()}}
        changed = replace(request_, parcel=replace(request_.parcel, params=params, versions=versions))
        for scores in (False, True):
            Reply.decode(here.answer("round", replace(changed, scores=scores).encode()))
    assert Reply.decode(here.answer("round", request_.encode())).upload


def test_bytes_that_are_no_request(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    here = desk(tmp_path)
    assert asked(here, plan).clients
    good = request_.encode()
    content = serialization.pack({"a": torch.zeros(2)})
    import hashlib

    for data in (b"", b"x", good[:-1], good[:40], bytes(1000), hashlib.sha256(content).digest() + content):
        reply = Reply.decode(here.answer("round", data))
        assert reply.reason == "refused"
        assert not reply.upload


def test_request_before_a_plan(request_: Request, tmp_path: Path, desk: Make) -> None:
    reply = Reply.decode(desk(tmp_path).answer("round", request_.encode()))
    assert reply.reason == "refused"


def test_request_after_a_plan_that_was_refused(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """What the owner refuses now must not go on by letters of before."""
    here = desk(tmp_path)
    assert asked(here, plan).clients
    assert asked(here, with_(plan, algorithm={"name": "os.path:join"})).refused
    assert not Reply.decode(here.answer("round", request_.encode())).upload


def test_request_of_another_run(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    here = desk(tmp_path)
    assert asked(here, plan).clients
    other = replace(request_, identity=replace(request_.identity, run="another"))
    assert Reply.decode(here.answer("round", other.encode())).reason


def test_letters_of_no_kind(tmp_path: Path, desk: Make) -> None:
    here = desk(tmp_path)
    for kind in (None, "end", "query.other"):
        assert here.answer(kind, b"anything") == b""


# --- the disk -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_is_written_but_in_the_sites_folder(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    before = set(tmp_path.rglob("*"))
    for run in ("../../escape", "/tmp/escape", "a/b", "\x00", "..", "con", "a" * 5000):
        here = desk(tmp_path)
        if asked(here, replace(plan, run=run)).clients:
            request = replace(request_, identity=replace(request_.identity, run=run))
            here.answer("round", request.encode())
    new = set(tmp_path.rglob("*")) - before
    assert [p for p in new if not (p == tmp_path / "ann.csv" or (tmp_path / "state") in (p, *p.parents))] == []


def test_damaged_log(plan: Plan, tmp_path: Path, desk: Make) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "letters.jsonl").write_bytes(b'\xff\xfe{"kind"\n[]\n5\n{"kind": "upload"}\n')
    file = tmp_path / "state" / "letters.jsonl"
    with pytest.raises(Exhausted, match="what left before is not known"):
        asked(desk(tmp_path), plan)
    Audit(file).rotate()
    assert asked(desk(tmp_path), plan).clients
    assert Audit(file).left("upload") == 0
