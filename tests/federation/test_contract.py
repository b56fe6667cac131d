"""A site's contract: whatever a server asks, nothing leaves that the contract does not allow, and the reason is by
name."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from desks import Make, asked, contract, with_

from rondo.algorithm import Client, Upload
from rondo.data.files.room import TextForm
from rondo.engine.transport import Answer
from rondo.engine.wire.letters import Reply, Request
from rondo.errors import ConfigError
from rondo.federation.plan import Plan
from rondo.federation.site import desk as desks
from rondo.federation.site.audit import audit
from rondo.federation.site.contract.document import Contract, RowsTerms
from rondo.federation.site.desk import Exhausted
from rondo.federation.site.joining import Offer
from rondo.federation.site.run import clients_in
from rondo.federation.site.seat import Withheld
from small_runs import opinions, reviews, write_rows

SAFE = contract()
PATIENTS = [{**row, "patient": f"Patient {i}", "ward": f"W{i // 10}"} for i, row in enumerate(reviews(40))]


pytestmark = pytest.mark.usefixtures("refusals_at_once")


def answered(here: Any, request: Request) -> Reply:
    return Reply.decode(here.answer("round", request.encode()))


@pytest.mark.slow
def test_honest_run_is_within_the_defaults(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    here = desk(tmp_path, contract=contract(training={"repeats": False}))
    assert asked(here, plan).clients == {"ann": 20}
    assert answered(here, request_).upload
    entries = [line.entry for line in audit.lines(tmp_path / "state" / audit.FILE) if line.entry is not None]
    assert [(e["direction"], e["kind"]) for e in entries] == [
        ("in", "plan"), ("out", "consent"), ("in", "work"), ("out", "upload")
    ]  # fmt: skip
    assert entries[1]["content"]["clients"] == {"ann": 20}


# --- rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [None, ("neg", "pos")])
@pytest.mark.parametrize("column", ["patient", "ward", "text", "nothing"])
def test_label_column_that_the_contract_does_not_name(
    plan: Plan, tmp_path: Path, desk: Make, labels: Any, column: str
) -> None:
    here = desk(tmp_path, contract=SAFE, rows=PATIENTS)
    answer = here.answer("plan", replace(with_(plan, task={"label": column}), labels=labels).encode())
    assert b"label columns" in answer
    assert b"Patient" not in answer
    assert b"W1" not in answer


def test_no_column_is_read_that_the_contract_does_not_name(plan: Plan, tmp_path: Path, desk: Make) -> None:
    for section in ({"text": "patient"}, {"text": ["text", "patient"]}, {"text": "label"}):
        assert "input columns" in asked(desk(tmp_path, contract=SAFE, rows=PATIENTS), with_(plan, task=section)).refused
    here = desk(tmp_path, contract=SAFE, rows=PATIENTS)
    assert {tuple(row) for row in here.joining.rows["ann"]} == {("text", "label")}, "code of one's own sees no other"


def test_class_names_are_those_of_the_contract(plan: Plan, tmp_path: Path, desk: Make) -> None:
    unlabelled = with_(replace(plan, labels=None), task={"label": "ward"})
    wards = {"labels": ["ward"]}
    assert asked(desk(tmp_path, contract=contract(rows=wards), rows=PATIENTS), unlabelled).labels == (
        "W0",
        "W1",
        "W2",
        "W3",
    )
    for rows, reason in (
        ({**wards, "most_labels": 3}, "more distinct values than the 3"),
        ({**wards, "label_names": ["W0", "W1"]}, "others than those"),
    ):
        answer = asked(desk(tmp_path, contract=contract(rows=rows), rows=PATIENTS), unlabelled)
        assert reason in answer.refused
        assert not answer.labels


TAGGED = [{**row, "label": ("joy; fear", "joy", "")[i % 3], "joy": i % 2, "fear": 0} for i, row in enumerate(PATIENTS)]


def test_names_of_several_labels_are_those_of_the_contract(plan: Plan, tmp_path: Path, desk: Make) -> None:
    joined = with_(replace(plan, labels=None), task={"label_separator": ";", "multi_label": True})
    assert asked(desk(tmp_path, rows=TAGGED, contract=SAFE), joined).labels == ("fear", "joy")
    answer = asked(desk(tmp_path, rows=TAGGED, contract=contract(rows={"label_names": ["joy"]})), joined)
    assert "others than those" in answer.refused
    assert not answer.labels
    answer = asked(desk(tmp_path, rows=TAGGED, contract=contract(rows={"labels": ["joy"]})), joined)
    assert "label columns: label, split at ';'" in answer.refused


def test_columns_of_labels_are_those_of_the_contract(plan: Plan, tmp_path: Path, desk: Make) -> None:
    """Their names are the server's, so the site tells none of its own."""
    columns = with_(replace(plan, labels=None), task={"label": ["joy", "fear"], "multi_label": True})
    one = contract(rows={"labels": ["joy"]})
    assert "label columns: joy, fear" in asked(desk(tmp_path, rows=TAGGED, contract=one), columns).refused
    both = contract(rows={"labels": ["joy", "fear"]})
    assert asked(desk(tmp_path, rows=TAGGED, contract=both), columns).labels == ("joy", "fear")


def test_column_with_nearly_one_value_per_row_has_no_classes(plan: Plan, tmp_path: Path, desk: Make) -> None:
    """As ``rondo run`` refuses it, also where the owner has named the column."""
    told: list[str] = []
    here = desk(tmp_path, told, contract(rows={"labels": ["patient"], "most_labels": 1000}), PATIENTS)
    answer = here.answer("plan", with_(replace(plan, labels=None), task={"label": "patient"}).encode())
    assert b"Patient" not in answer
    assert "40 distinct labels in 40 rows" in told[-1], "its owner reads why"


def test_run_of_some_of_the_classes_counts_no_rows(plan: Plan, tmp_path: Path, desk: Make) -> None:
    here = desk(tmp_path, contract=contract(rows={"label_names": ["neg", "pos"]}))
    few = with_(replace(plan, labels=("neg", "other")), data={"bad_rows": "drop"})
    assert "class names" in asked(here, few).refused
    assert asked(here, replace(plan, labels=("neg", "pos"))).clients


def test_rows_held_back(plan: Plan, tmp_path: Path, desk: Make) -> None:
    assert (
        "rows held back: 97%"
        in asked(desk(tmp_path, contract=SAFE), with_(plan, data={"validation_fraction": 0.97})).refused
    )


# --- training -----------------------------------------------------------------------------------------------------


def test_one_step_on_one_row_is_refused(plan: Plan, tmp_path: Path, desk: Make) -> None:
    one = {"local_steps": 1, "local_epochs": None, "batch_size": 1}
    assert "steps of ann" in asked(desk(tmp_path, contract=SAFE), with_(plan, train=one)).refused
    whole = with_(plan, train={**one, "what": "all"}, algorithm={"name": "fedavg"})
    assert "trained tensors" in asked(desk(tmp_path, contract=SAFE), whole).refused
    few = desk(tmp_path, contract=SAFE, rows=reviews(9))
    answer = asked(few, plan)
    assert "rows of ann: too few" in answer.refused
    assert "7" not in answer.refused, "the number of rows stays here"


@pytest.mark.parametrize(
    ("work", "leaves"),
    [
        (((2, 15),), True),
        (((8, 8),), True),
        (((0, 0), (1, 15)), True),
        (((1, 1),), False),
        (((1, 14),), False),
        (((20, 7),), False),
        (((8, 15), (1, 4)), False),
    ],
)
def test_upload_stays_with_little_work_behind_it(work: Any, leaves: bool) -> None:
    """Whatever a method makes of its steps: each of its trainings must be of enough rows and steps."""
    answer = Answer(Client("ann", 15), Upload(Client("ann", 15), {}, 1.0), work=work)
    assert (Withheld(SAFE, [1] * 15, frozenset(), lambda: None)(answer) is None) == leaves


def test_work_behind_an_upload_is_counted(
    plan: Plan, request_: Request, tmp_path: Path, desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contract's word is held against the steps that were taken, and not against the plan."""
    monkeypatch.setattr(desks.terms, "of_training", lambda *_: iter(()))
    here = desk(tmp_path, contract=SAFE)
    assert asked(here, with_(plan, train={"local_steps": 1, "local_epochs": None, "batch_size": 2})).clients
    reply = answered(here, request_)
    assert not reply.upload
    assert "less is behind it" in reply.detail


def test_tensors_that_leave(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    for tensors, config, fits in (
        ("factors", plan, False),
        ("factors", with_(plan, model={"head": "frozen"}), True),
        ("factors+head", plan, True),
        ("factors+head", with_(plan, train={"what": "head"}, algorithm={"name": "fedavg"}), True),
        ("factors+head", with_(plan, algorithm={"name": "pfedlora"}), False),
        ("whole", with_(plan, algorithm={"name": "pfedlora"}), True),
    ):
        answer = asked(desk(tmp_path, contract=contract(training={"tensors": tensors})), config)
        assert bool(answer.clients) == fits, (tensors, answer)
        assert fits or "tensors that leave" in answer.refused


def test_embeddings_leave_by_name_only(plan: Plan, tmp_path: Path, desk: Make) -> None:
    embedding = "bert.embeddings.word_embeddings"
    whole = with_(plan, train={"what": [f"{embedding}.weight"]}, algorithm={"name": "fedavg"})
    assert (
        f"embeddings: {embedding}"
        in asked(desk(tmp_path, contract=contract(training={"tensors": "whole"})), whole).refused
    )
    named = contract(training={"tensors": "whole", "embeddings": [embedding]})
    assert asked(desk(tmp_path, contract=named), whole).clients


def test_rank_and_method_and_clients(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    for training, change, reason in (
        ({"largest_rank": 1}, {}, "rank: 2"),
        ({"methods": ["florg"]}, {}, "method: fedit, and its owner allows florg"),
        ({}, {"clients": {"per_round": 1}}, "clients per round: 1"),
    ):
        assert reason in asked(desk(tmp_path, contract=contract(training=training)), with_(plan, **change)).refused
    here = desk(tmp_path, contract=SAFE)
    assert asked(here, plan).clients
    assert "1 clients are asked" in answered(here, replace(request_, asked=1)).detail


def test_no_model_is_fetched(plan: Plan, tmp_path: Path, desk: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks.Joining, "_assembly", lambda *_: pytest.fail("it looks for the model"))
    hub = with_(plan, model={"name": "someone/model"})
    here = desk(tmp_path, contract=SAFE, model=None)
    assert "base model: someone/model" in asked(here, hub).refused
    offer = here.joining.offer(hub)  # as a look at the plan does
    assert (offer.leaving, offer.assembly) == ((), None)
    assert [term.subject for term in offer.terms if not term.kept] == ["base model"]


@pytest.mark.parametrize("key", ["target_modules", "exclude_modules", "rank_pattern"])
def test_pattern_that_never_ends(plan: Plan, tmp_path: Path, desk: Make, key: str) -> None:
    nested = ("(a+)+$", "(?:e|e.)*x", "(.{1,9}){1,9}x")
    for pattern in (*nested, ".*.*.*.*.*x", ".?" * 40 + "x", "(..?|.)" * 30, "a" * 1000):
        began = time.monotonic()
        value = {pattern: 2} if key.endswith("pattern") else pattern
        answer = asked(desk(tmp_path, contract=SAFE), with_(plan, adapter={key: value}))
        assert f"adapter.{key}" in answer.refused
        assert time.monotonic() - began < 2
    for pattern in (r".*\.(query|value)", r"bert\.encoder\.layer\.(0|1)\..*query"):
        value = {pattern: 2} if key.endswith("pattern") else pattern
        answer = asked(desk(tmp_path, contract=SAFE), with_(plan, adapter={key: value}))
        assert f"adapter.{key}" not in answer.refused, answer


@pytest.mark.sweep(2)
@pytest.mark.parametrize("train", [{"local_steps": 10**9, "local_epochs": None}, {"local_epochs": 10**7}])
def test_round_without_end(plan: Plan, request_: Request, tmp_path: Path, desk: Make, train: Any) -> None:
    here = desk(tmp_path, contract=contract(training={"minutes_per_round": 0.01}))
    assert asked(here, with_(plan, train=train)).clients
    began = time.monotonic()
    assert "longer than its owner allows" in answered(here, request_).detail
    assert time.monotonic() - began < 30


def test_minutes_of_a_run_are_counted_across_restarts(
    plan: Plan, request_: Request, tmp_path: Path, desk: Make
) -> None:
    little = contract(training={"minutes_per_run": 1e-6})
    reasons = []
    for _ in range(2):
        here = desk(tmp_path, contract=little)
        assert asked(here, plan).clients
        reasons.append(answered(here, request_).detail)
    assert "longer than its owner allows" in reasons[0]
    assert "minutes for this run" in reasons[1]


# --- letters ------------------------------------------------------------------------------------------------------


def test_losses_and_scores_are_kept_back_or_rounded(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    scores = replace(request_, scores=True)
    for outgoing, loss, score in (
        ({}, True, True),
        ({"losses": False, "scores": False}, False, False),
        ({"least_rows_scored": 6}, True, False),
        ({"least_rows_scored": 16}, False, False),
    ):
        here = desk(tmp_path / str(len(outgoing) + loss + score), contract=contract(outgoing=outgoing))
        (tmp_path / str(len(outgoing) + loss + score)).mkdir(exist_ok=True)
        assert asked(here, plan).clients
        assert (answered(here, request_).loss is not None) == loss
        assert bool(answered(here, scores).scores) == score
    here = desk(tmp_path, contract=contract(outgoing={"decimals": 1}))
    assert asked(here, plan).clients
    loss = answered(here, request_).loss
    assert loss is not None
    assert loss == round(loss, 1)
    told = [v for metrics in (answered(here, scores).scores or {}).values() for v in metrics.values()]
    assert told == [v if v is None else round(v, 1) for v in told]


def test_scores_by_class_do_not_rest_on_the_rows_of_a_rare_one(
    plan: Plan, request_: Request, tmp_path: Path, desk: Make
) -> None:
    """With one row of a class, its F1 says how this row is predicted, and so does their mean beside the accuracy."""
    rows = [
        {**row, "label": "pos" if n < rare else "neg"} for rare in (1, 5) for n, row in enumerate(reviews(20, rare))
    ]
    asks = with_(plan, evaluation={"per_class": True})
    names = ("f1", "matthews", "auc", "f1 of neg", "f1 of pos")
    for rare, own in ((1, rows[:20]), (5, rows[20:])):
        here = desk(tmp_path / str(rare), contract=contract(), tests={"ann": own})
        assert asked(here, asks).clients
        scores = (answered(here, replace(request_, scores=True)).scores or {})["clients"]
        assert None not in (scores["accuracy"], scores["loss"])
        assert scores["examples"] == 20
        assert [name for name in names if (scores[name] is None) != (rare < 5)] == []


def test_rows_held_back_are_within_the_contract_as_they_come(plan: Plan, tmp_path: Path, desk: Make) -> None:
    """A person's rows are held back together: the rows of one may be nearly all."""
    rows = [{**row, "who": f"person {min(n, 3)}"} for n, row in enumerate(reviews(40))]
    owner = contract(rows={"inputs": ["text", "who"], "largest_held_back": 0.3})
    answers = []
    for seed in range(12):
        asks = with_(plan, data={"validation_fraction": 0.25, "hold_out_by": "who"})
        here = desk(tmp_path, contract=owner, rows=rows)
        answer = asked(here, replace(asks, config={**asks.config, "seed": seed}))
        held = len(here.parties["ann"].scored) if here.parties else None
        answers.append("rows held back of ann" in answer.refused)
        assert held is None or held <= 12
    assert set(answers) == {True, False}


def test_words_about_a_training_that_failed_stay(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    told: list[str] = []
    here = desk(tmp_path, told, SAFE)
    assert asked(here, with_(plan, train={"lr": 1e30, "max_grad_norm": 0, "optimizer": "sgd"})).clients
    reply = answered(here, request_)
    assert (reply.reason, reply.detail) == ("nonfinite_loss", "its owner sees why")
    assert "step " in "\n".join(told)


def test_uploads_of_a_day_are_counted_across_restarts(
    plan: Plan, request_: Request, tmp_path: Path, desk: Make
) -> None:
    for number in range(3):
        here = desk(tmp_path, contract=contract(outgoing={"uploads_per_day": 2}))
        assert asked(here, plan).clients
        assert bool(answered(here, request_).upload) == (number < 2)


def test_scores_count_among_what_leaves(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """Scores of models of the server's choice tell about rows, one number at a time."""
    here = desk(tmp_path, contract=contract(outgoing={"uploads_per_day": 2}))
    assert asked(here, plan).clients
    replies = [answered(here, replace(request_, scores=True)) for _ in range(20)]
    assert sum(r.scores is not None for r in replies) == 2


def test_upload_that_is_too_large(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    assert "upload's tensors" in asked(desk(tmp_path, contract=contract(outgoing={"largest_mb": 1e-4})), plan).refused
    here = desk(tmp_path, contract=contract(outgoing={"largest_mb": 2.5e-3}))
    assert asked(here, plan).clients, "its tensors alone are smaller"
    assert "larger than" in answered(here, request_).detail


@pytest.mark.parametrize(
    ("section", "limits"),
    [("outgoing", {"letters_per_day": 6}), ("outgoing", {"mb_per_day": 3e-4}), ("incoming", {"mb_per_day": 2e-2})],
)
def test_letters_of_every_kind_are_counted(
    plan: Plan, request_: Request, tmp_path: Path, desk: Make, section: str, limits: Any
) -> None:
    """Refusals too: nothing leaves any more, whatever comes."""
    answers = 0

    def ask() -> None:
        nonlocal answers
        for answers in range(40):
            here = desk(tmp_path, contract=contract(**{section: limits}))
            here.answer("plan", with_(plan, task={"label": f"column {answers}"}).encode())

    with pytest.raises(Exhausted, match=next(iter(limits))):
        ask()
    assert answers > 0
    here = desk(tmp_path, contract=contract(**{section: limits}))
    for kind in ("plan", "round", "end"):
        with pytest.raises(Exhausted):
            here.answer(kind, request_.encode())


def test_megabyte_is_a_million_bytes(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """The limits of the file and of a day; 2**20 bytes are five per cent more."""
    size = len(desk_with(desk, tmp_path / "open", plan, {}).answer("round", request_.encode()))
    for share, fits in ((1.02, True), (0.98, False)):
        here = desk_with(desk, tmp_path / str(share), plan, {"largest_mb": share * size / 1e6})
        assert bool(answered(here, request_).upload) == fits
    day = contract(outgoing={"mb_per_day": 1.0}, incoming={"mb_per_day": 1.0})
    for direction, limit in (("out", "outgoing"), ("in", "incoming")):
        (tmp_path / direction).mkdir()
        here = desk(tmp_path / direction, contract=day)
        here.audit.note(direction, "upload", bytes(1_000_000), {})
        here._within_the_day(0)
        here.audit.note(direction, "upload", bytes(20_000), {})
        with pytest.raises(Exhausted, match=f"{limit}.mb_per_day = 1"):
            here._within_the_day(0)
    (tmp_path / "size").mkdir()
    here = desk(tmp_path / "size", contract=day)
    here._within_the_day(1_000_000)
    with pytest.raises(Exhausted, match=r"incoming\.mb_per_day = 1"):
        here._within_the_day(1_020_000)


def desk_with(desk: Make, folder: Path, plan: Plan, outgoing: dict[str, Any]) -> Any:
    """A desk that has consented to ``plan``, in a folder of its own."""
    folder.mkdir()
    here = desk(folder, contract=contract(outgoing=outgoing))
    assert asked(here, plan).clients
    return here


@pytest.mark.parametrize(("share", "fits"), [(1.02, True), (0.98, False)])
def test_megabyte_of_a_plans_uploads_is_a_million_bytes(
    plan: Plan, tmp_path: Path, desk: Make, monkeypatch: pytest.MonkeyPatch, share: float, fits: bool
) -> None:
    """Before any training, by an upload's tensors."""
    monkeypatch.setattr(desks.terms, "num_bytes", lambda params: 1_000_000)
    answer = asked(desk(tmp_path, contract=contract(outgoing={"largest_mb": share})), plan)
    assert bool(answer.clients) == fits
    assert fits or "an upload's tensors: 1.0 MB" in answer.refused


# --- consent ------------------------------------------------------------------------------------------------------


def test_owner_is_asked_once_for_a_configuration(plan: Plan, tmp_path: Path, desk: Make) -> None:
    offers: list[Offer] = []

    def consent(offer: Offer) -> bool:
        offers.append(offer)
        return True

    for _ in range(2):
        here = desk(tmp_path, contract=SAFE, consent=consent)
        assert asked(here, replace(plan, labels=None)).labels == ("neg", "pos")
        assert asked(here, plan).clients
        assert asked(here, replace(plan, run="a later run")).clients
    assert len(offers) == 1
    assert asked(here, with_(plan, train={"lr": 0.5})).clients
    assert len(offers) == 2
    text = "\n".join(offers[0].leaving)
    assert "ann (20)" in text
    assert "neg, pos" in text
    assert re.search(r"an upload of \d+ tensors of [\d,]+ bytes", text)
    assert "the mean training loss" in text
    assert "when scores are asked: the client's metrics on its held-back rows" in text
    silent = contract(outgoing={"losses": False, "scores": False})
    (tmp_path / "silent").mkdir()
    assert asked(desk(tmp_path / "silent", contract=silent, consent=consent), plan).clients
    assert [line for line in offers[2].leaving if "loss" in line or "scores" in line] == []


@pytest.mark.parametrize("labels", [None, ("neg", "pos")])
def test_owner_says_no(plan: Plan, request_: Request, tmp_path: Path, desk: Make, labels: Any) -> None:
    here = desk(tmp_path, contract=SAFE, consent=lambda offer: False)
    answer = asked(here, replace(plan, labels=labels))
    assert answer.refused == "its owner has not consented to this plan"
    assert not answer.labels
    assert not answered(here, request_).upload


def test_refusal_after_rows_were_read_leaves_on_the_beat(
    plan: Plan, tmp_path: Path, desk: Make, beat: Callable[[float], None]
) -> None:
    """The time until then would tell of the rows."""
    beat(0.5)
    here = desk(tmp_path, contract=SAFE)
    for changed, late in ((with_(plan, task={"label": "who"}), False), (replace(plan, labels=("a", "b")), True)):
        assert asked(here, changed).refused
        assert (time.monotonic() % 0.5 < 0.2) or not late


# --- the file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rows.inputs: names no column"),
        ("rows = 5", "rows: should be a section: [rows], got 5"),
        ('[rows]\ninput = ["text"]', "rows.input: unknown key; did you mean 'inputs'?"),
        ('[rows]\ninputs = ["a"]\nlabels = ["a"]', "rows.labels: 'a' is one of rows.inputs too"),
        ('[rows]\ninputs = ["a"]\n[training]\nmethods = ["fedlt"]', "training.methods: no algorithm is called 'fedlt'"),
        ('[rows]\ninputs = ["a"]\n[training]\nlosses = true', "did you mean outgoing.losses?"),
        ('[rows]\ninputs = ["a"]\n[training]\ntensors = "hole"', "did you mean 'whole'?"),
        ('[rows]\ninputs = ["a"]\n[outgoing]\nuploads_per_day = -1', "outgoing.uploads_per_day: should be"),
        ('[rows]\ninputs = ["a"]\n[outgoing]\nlargest_mb = inf', "outgoing.largest_mb: should be a finite number"),
        ('[rows]\ninputs = ["a"]\n[outgoing]\nlosses = "no"', "got 'no'; write it without quotes"),
        ("[rows", "not TOML"),
    ],
)
def test_file_with_a_fault(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        Contract.read(tmp_path / "site.toml")
    assert message in str(caught.value)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; write one with: rondo federate site init DATA"):
        Contract.read(tmp_path / "site.toml")


def test_rows_from_german_excel_are_read_as_the_contract_says(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "ward.csv").write_bytes(
        "Text;Klasse\r\nfühlt Schmerz, stark;eilig\r\nmöchte heim;später\r\n".encode("cp1252")
    )
    command = ("federate", "site", "init", "ward.csv", "--inputs", "Text", "--labels", "Klasse")
    code, said = invoke(*command)
    assert (code, "is not UTF-8 text; set --encoding" in " ".join(said.split())) == (2, True), said
    code, said = invoke(*command, "--encoding", "cp1252", "--to", "found.toml")
    assert code == 0, said  # the header says the separator
    code, said = invoke(*command, "--encoding", "cp12522")
    assert (code, "--encoding: 'cp12522' is no encoding" in " ".join(said.split())) == (2, True), said
    code, said = invoke(*command, "--encoding", "cp1252", "--separator", ";")
    assert code == 0, said
    rows = Contract.read(tmp_path / "site.toml").rows
    assert rows.room().form == TextForm(";", "cp1252", "rows.")
    (of_client,) = clients_in(tmp_path / "ward.csv", rows.room()).values()
    assert [dict(row) for row in of_client] == [
        {"Text": "fühlt Schmerz, stark", "Klasse": "eilig"},
        {"Text": "möchte heim", "Klasse": "später"},
    ]
    (tmp_path / "site.toml").write_text('[rows]\ninputs = ["Text"]\nseparator = "::"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rows\.separator: '::' cannot stand between columns"):
        Contract.read(tmp_path / "site.toml")
    with pytest.raises(ConfigError, match=r"set rows\.encoding"):
        clients_in(tmp_path / "ward.csv", RowsTerms().room())


def test_memory_for_rows_is_the_owners_key(tmp_path: Path) -> None:
    """It named a key of the server's configuration, which an owner does not have."""
    file = tmp_path / "ward.csv"
    file.write_text("Text,Klasse\n" + f"{'x' * 1023},a\n" * 2048, encoding="utf-8")
    assert len(clients_in(file, RowsTerms().room())["ward"]) == 2048
    with pytest.raises(ConfigError, match=r"rows\.max_read_mb: .* the 1 MiB of this key: raise it"):
        clients_in(file, RowsTerms(max_read_mb=1).room())


@pytest.mark.parametrize(
    ("label", "words", "names"),
    [
        ("joined", "60 texts, 3 distinct", ["neg", "plot", "pos"]),
        ("labels", "60 lists, 3 distinct", ["neg", "plot", "pos"]),
        ("neg,plot,pos", "60 numbers, 2 distinct", ["neg", "plot", "pos"]),
        ("neg", "60 numbers, 2 distinct", ["0", "1"]),
    ],
)
def test_class_names_that_the_owner_starts_from(invoke: Any, label: str, words: str, names: list[str]) -> None:
    """Of columns with several labels they are the single labels, as a run splits them."""
    write_rows(Path("ward.jsonl"), [{**row, "joined": row["joined"] or "neg"} for row in opinions(60)])
    code, said = invoke("federate", "site", "init", "ward.jsonl", "--inputs", "text", "--labels", label)
    assert code == 0, said
    assert f'# "{label.split(",")[0]}": {words}'.replace("# ", "#   ") in Path("site.toml").read_text(encoding="utf-8")
    assert Contract.read(Path("site.toml")).rows.label_names == names
