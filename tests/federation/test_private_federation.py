"""Federations with differential privacy: of clients, whose server adds the noise, and of rows, whose sites do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outcomes import adapter

pytest.importorskip("dp_accounting")

from desk_line import DeskLine, Killed
from desks import Make, asked, contract, with_
from parties import LABELS, Parties, configuration
from parties import ROWS as SITE_ROWS
from simulations import assert_equal, simulated
from test_masked_kills import Dies, listening

import rondo
from rondo.config import load
from rondo.engine.wire.letters import Reply, Request
from rondo.errors import ConfigError, DiskFailed
from rondo.federation.plan import Plan
from rondo.federation.server import remote_run
from rondo.federation.server.run import resume, serve
from rondo.federation.server.status import status_lines
from rondo.federation.site.audit import account
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.contract.protection import check_delta
from rondo.federation.site.ledger import FILE, KEY, SiteLedger
from rondo.privacy.accounts.account import Entry, read
from rondo.privacy.accounts.accountant import epsilon
from rondo.privacy.mechanism.draws import Draws
from rondo.privacy.steps import PrivateSteps
from small_runs import reviews

pytestmark = pytest.mark.usefixtures("refusals_at_once")

OF_ROWS = {"adversary": "server", "unit": "example", "clip": 0.5, "noise": 1.0, "delta": 1e-5}
OF_CLIENTS = {"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 1.0, "delta": 1e-2}
TRAIN = {"local_epochs": 1, "batch_size": 4, "packing": False, "length_grouping": False, "max_grad_norm": 0.0}


# --- whole federations --------------------------------------------------------------------------------------------


def run_of(folder: Path, privacy: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    sections: dict[str, Any] = {
        "rounds": 3,
        "algorithm": {"name": "rolora"},
        "clients": {"weighting": "uniform"},
        "train": TRAIN,
        "task": LABELS,
        "privacy": privacy,
        "evaluation": {"diagnostics_every": 0} if privacy["unit"] == "example" else {},
    }
    return configuration(folder, **{**sections, **changes})


def both(folder: Path, tmp_path: Path, config: dict[str, Any]) -> tuple[rondo.RunResult, rondo.RunResult]:
    """The run as a simulation and as a federation."""
    parties = Parties(folder, state=tmp_path)
    federated = parties.run(config, tmp_path / "run")
    assert not parties.errors
    return simulated(folder, config, tmp_path / "simulation"), federated


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["full", "poisson"])
def test_federation_with_noise_of_clients_equals_the_simulation(folder: Path, tmp_path: Path, sampling: str) -> None:
    """The same sum has the same noise, whatever sent it: with one key, all bits are equal."""
    clients = {"weighting": "uniform", "sampling": sampling, "per_round": 2 if sampling == "poisson" else None}
    config = run_of(folder, {**OF_CLIENTS, "debug_seed": 5}, clients=clients)
    expected, federated = both(folder, tmp_path, config)
    assert_equal(federated, expected)
    assert federated.history[-1]["epsilon_valid"] is False  # the noise is known


def test_key_of_the_noise_is_in_no_letter(folder: Path, tmp_path: Path) -> None:
    clients = {"weighting": "uniform", "sampling": "poisson", "per_round": 2}
    line = DeskLine(folder, tmp_path)
    with line.served():
        way = listening(folder)
        config = run_of(folder, OF_CLIENTS, clients=clients)
        config["data"]["more_tests"] = {"again": config["data"]["test_source"]}
        serve(config, way, run_dir=tmp_path / "run", device="cpu", told=line.told.append)
    key = (tmp_path / "run" / "privacy.key").read_bytes()
    assert {kind for _, kind, *_ in line.heard} >= {"plan", "round"}
    letters = [part for _, _, *parts in line.heard for part in parts]
    assert [part for part in letters if key in part or key.hex().encode() in part.lower()] == []
    lines = [line for line in line.told if line.startswith("the bits ")]
    assert len(lines) == 1
    assert lines[0].startswith("the bits are not those of a simulation, since no seed gives the noise: all have rondo ")
    assert lines[0] in list(status_lines(tmp_path / "run"))
    guarantee = "differential privacy of clients, against who reads the released model: epsilon "
    assert len([said for said in status_lines(tmp_path / "run") if said.startswith(guarantee)]) == 1
    sites = [said for said in line.told if "protection: " in said]
    assert len(sites) == 2
    ending = "noise of the server alone, against who reads the released model"
    assert [s for s in sites if not s.endswith(ending)] == []
    # The server's own test file is scored, since no row of a site is here.
    both = rondo.evaluate(tmp_path / "run", device="cpu")
    scores = both["test"]
    assert both["again"] == scores
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert scores["accuracy"] == summary["after"]["global"]["accuracy"]
    assert rondo.evaluate(tmp_path / "run" / "adapter", device="cpu") == both
    file = Path(tomllib.loads((tmp_path / "run" / "config.toml").read_text())["data"]["test_source"])
    whole = file.read_text(encoding="utf-8")
    file.write_text("".join(whole.splitlines(keepends=True)[:-1]), encoding="utf-8")
    with pytest.raises(rondo.ConfigError, match=r"partition\.test_examples_sha256: was "):
        rondo.evaluate(tmp_path / "run", device="cpu")
    assert rondo.evaluate(tmp_path / "run", device="cpu", allow_changed=True)["test"]["accuracy"] is not None
    file.write_text(whole, encoding="utf-8")


def test_requests_do_not_tell_how_many_were_drawn(folder: Path, tmp_path: Path) -> None:
    """A site that refuses small rounds would refuse by who else is in them, and one client more would move the sum by
    two clips."""
    clients = {"weighting": "uniform", "sampling": "poisson", "per_round": 2}
    config = run_of(folder, {**OF_CLIENTS, "debug_seed": 5}, clients=clients, rounds=4)
    line = DeskLine(folder, tmp_path)
    with line.served():
        result = serve(config, listening(folder), run_dir=tmp_path / "run", device="cpu")
    assert len({record["clients"] for record in result.history}) > 1
    assert {Request.decode(letter).asked for _, kind, letter, _ in line.heard if kind == "round"} == {2}


@pytest.mark.slow
def test_federation_with_noise_of_sites_equals_the_simulation(folder: Path, tmp_path: Path) -> None:
    """Sites add the noise of a seed here, which their contract allows, since it asks for no protection."""
    expected, federated = both(folder, tmp_path, run_of(folder, {**OF_ROWS, "debug_seed": 5}))
    assert_equal(federated, expected)
    assert federated.history[-1]["epsilon_valid"] is False  # the noise is known


@pytest.mark.slow
def test_sites_noise_is_their_own_and_their_account_the_servers(folder: Path, tmp_path: Path) -> None:
    expected, federated = both(folder, tmp_path, run_of(folder, OF_ROWS))
    assert adapter(expected.run_dir) != adapter(federated.run_dir)
    assert expected.history[-1]["client_epsilon"] == federated.history[-1]["client_epsilon"]
    for site in ("north", "south"):
        state = tmp_path / f"at-{site}"
        assert stat.S_IMODE((state / KEY).stat().st_mode) == 0o600
        kept = [spent for *_, spent in SiteLedger(state, {}).accounts(1e-5)]
        server = federated.history[-1]["client_epsilon"]
        assert sorted(kept) == sorted(server[c] for c in {"north": ["ann"], "south": ["bob", "cid"]}[site])
        told = "\n".join(account.spent(state))
        assert f"epsilon {kept[0]:.3g} at delta 1e-05" in told
        assert "in 1 run" in told


@pytest.mark.slow
def test_round_that_a_killed_server_had_answers_to_counts(folder: Path, tmp_path: Path) -> None:
    """Ann's and bob's sites train again with other noise, and have counted both. The server cannot know that cid was
    not asked before it died."""
    line = DeskLine(folder, tmp_path, Dies("round", "south", "after"))
    with line.served(), pytest.raises(Killed):
        serve(run_of(folder, OF_ROWS), listening(folder), run_dir=tmp_path / "run", device="cpu")
    assert [site for site, kind, *_ in line.heard if kind == "round"] == ["north", "south"]
    with line.served():
        result = resume(tmp_path / "run", listening(folder))
    told = result.history[-1]["client_epsilon"]
    kept = {
        site: [e for *_, e in SiteLedger(tmp_path / f"at-{site}", {}).accounts(1e-5)] for site in ("north", "south")
    }
    assert kept["north"] == [told["ann"]]
    assert sorted(kept["south"])[1] == told["bob"]
    assert min(kept["south"]) < told["cid"]
    assert result.summary["privacy"]["epsilon"] == max(told.values())


@pytest.mark.slow
def test_full_disk_at_the_server_ends_no_site(folder: Path, tmp_path: Path, full_at: Any) -> None:
    """The second round could not be written down: sites are told nothing, are not asked, and spend nothing."""
    line = DeskLine(folder, tmp_path)
    with line.served():
        with (
            full_at("run/privacy.jsonl", 2),
            pytest.raises(DiskFailed, match=r"privacy\.jsonl cannot be written: No space"),
        ):
            serve(run_of(folder, OF_ROWS), listening(folder), run_dir=tmp_path / "run", device="cpu")
        assert [site for site, kind, *_ in line.heard if kind == "end"] == []
        result = resume(tmp_path / "run", listening(folder))
    kept = [
        spent for site in ("north", "south") for *_, spent in SiteLedger(tmp_path / f"at-{site}", {}).accounts(1e-5)
    ]
    assert len(result.history) == 3
    assert result.summary["privacy"]["epsilon"] == max(kept)


def test_class_names_of_rows_are_refused_at_the_server(folder: Path) -> None:
    for privacy in (OF_ROWS, OF_CLIENTS):
        clients = {"weighting": "uniform", "sampling": "full"}
        config = load(run_of(folder, privacy, task={"labels": None}, clients=clients))
        with pytest.raises(ConfigError, match=r"task\.labels: the classes would be those of the sites' rows"):
            remote_run.check(config)


# --- the contract of a site ---------------------------------------------------------------------------------------


def private(plan: Plan, run: str = "one", **privacy: Any) -> Plan:
    """``plan`` with private steps: four rounds of four steps for ann's 20 rows."""
    sections = {
        "clients": {"weighting": "uniform"},
        "train": {**TRAIN, "batch_size": 5},
        "evaluation": {"diagnostics_every": 0},
        "task": LABELS,
        "data": {"validation_fraction": 0.0},
    }
    changed = with_(plan, **sections, privacy={**OF_ROWS, **privacy})
    return replace(changed, run=run, config={**changed.config, "rounds": 4})


def allowing(**privacy: Any) -> Contract:
    return contract(privacy=privacy, training={"least_clients": 1})


def spent(steps: int) -> float:
    return epsilon(1.0, Draws(5, 20).probability, steps, 1e-5)


def work(request: Request, run: str = "one", **round: Any) -> bytes:
    """A request of the server for a round of ``run``."""
    identity = replace(request.identity, run=run)
    client = replace(request.client, num_examples=20)
    return replace(request, client=client, identity=identity, round=replace(request.round, total=4, **round)).encode()


@pytest.mark.parametrize(
    ("terms", "privacy", "reason"),
    [
        (
            {"require": ["example-dp"]},
            None,
            "protection: none (no noise: privacy.unit is not set), and its owner allows plans with example-dp",
        ),
        ({"max_epsilon": 8.0}, None, "is not set), and its owner allows plans with example-dp or client-dp"),
        (
            {"require": ["example-dp"]},
            {"debug_seed": 3},
            "none (no noise that counts: privacy.debug_seed is known to the",
        ),
        ({"require": ["example-dp"]}, {"noise": 0.0}, "protection: none (no noise: privacy.noise is 0), and its owner"),
        ({}, {"noise": 0.1}, "it cannot run the plan as it is: privacy.noise"),
        (
            {"require": ["example-dp", "secure-aggregation"]},
            {},
            "protection: example-dp, and its owner allows plans with example-dp and secure-aggregation",
        ),
        ({"persons": "who"}, {}, "unit of privacy: rows, and its owner allows persons as units: privacy.group = who"),
        ({}, {"group": "who"}, "unit of privacy: persons by who, and its owner allows rows as units"),
        ({"max_epsilon": 0.5}, {}, "epsilon of ann: more, after all rounds, and its owner allows 0.5 at delta 1e-05"),
    ],
)
def test_plan_beyond_the_contract_is_refused(
    plan: Plan, tmp_path: Path, desk: Make, terms: Any, privacy: Any, reason: str
) -> None:
    offered = plan if privacy is None else private(plan, **privacy)
    assert reason in asked(desk(tmp_path, contract=allowing(**terms)), offered).refused


def test_class_names_do_not_leave(plan: Plan, tmp_path: Path, desk: Make) -> None:
    offered = replace(private(plan), labels=None, model="")
    refused = asked(desk(tmp_path, contract=allowing()), offered).refused
    assert "class names: asked: they leave, and its owner allows none of its rows under differential privacy" in refused


def test_persons_are_the_unit_that_the_contract_names(plan: Plan, tmp_path: Path, desk: Make) -> None:
    rows = [{**row, "who": f"person {i % 4}"} for i, row in enumerate(reviews(20))]
    here = desk(tmp_path, contract=allowing(persons="who"), rows=rows)
    assert asked(here, private(plan, group="who")).clients == {"ann": 20}
    places = here.parties["ann"].member.train.places  # type: ignore[attr-defined]
    assert len(places) == 4
    assert sum(map(len, places)) == 20


@pytest.mark.slow
def test_site_spends_by_its_own_account_over_runs(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """The server names one run after the other, and asks the first one for more rounds than it has."""
    limit = (spent(24) + spent(28)) / 2
    terms, told = allowing(max_epsilon=limit), list[str]()
    here = desk(tmp_path, told=told, contract=terms)
    assert not asked(here, private(plan)).refused
    for attempt in range(4):
        assert Reply.decode(here.answer("round", work(request_, skipped=attempt))).upload
    assert f"ann: epsilon {spent(16):.3g} of {limit:g} at delta 1e-05, over all runs on these rows" in told
    refused = asked(here, private(plan, "two")).refused
    assert "epsilon of ann: more" in refused
    own = f"{spent(16):.3g} spent by other runs, {spent(32):.3g} after all rounds of this one"
    assert f"epsilon of ann: {own}; {limit:g} at delta 1e-05, over all runs on the same rows" in told
    # The server may call a new run by the name of the first one.
    twice = f"0 spent by other runs, {spent(16):.3g} with what a run of this name has, {spent(16):.3g} after all rounds"
    assert [t.own for t in here.joining.offer(private(plan)).terms if t.own] == [f"{twice} of this one"]
    assert f"{spent(16):.3g}" not in refused  # the ledger is the owner's
    # The same round twice, as after a crash, is other noise and spends again.
    assert not asked(here, private(plan)).refused
    for more in (True, True, False):
        reply = Reply.decode(here.answer("round", work(request_, skipped=3)))
        assert bool(reply.upload) is more
    assert (reply.reason, reply.loss) == ("refused", None)
    assert "would exceed it" in reply.detail
    assert here.ledger.epsilon("ann", 1e-5) == spent(24)


def test_owner_is_told_what_clients_with_the_same_rows_cost_together(plan: Plan, tmp_path: Path, desk: Make) -> None:
    """As the account has it after the run."""
    here = desk(tmp_path, contract=allowing(max_epsilon=1000))
    rows = dict.fromkeys(("ann", "bob"), here.joining.rows["ann"])
    joining = replace(here.joining, rows=rows, ledger=replace(here.ledger, rows=rows))
    both = replace(private(plan), clients=("ann", "bob"))
    owns = {t.subject: t.own for t in joining.offer(both).terms if t.own}
    assert owns == {
        f"epsilon of {name}": f"0 spent by other runs, {spent(32):.3g} after all rounds of this one"
        for name in ("ann", "bob")
    }


def test_server_refuses_a_delta_that_protects_no_row(folder: Path, tmp_path: Path) -> None:
    """The sites do not: whether they refuse would tell a server the number of persons."""
    line = DeskLine(folder, tmp_path)
    with (
        line.served(),
        pytest.raises(rondo.ConfigError, match=r"privacy\.delta: 0\.5 is not below 1 over the \d+ rows of "),
    ):
        serve(run_of(folder, {**OF_ROWS, "delta": 0.5}), listening(folder), run_dir=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_contract_whose_delta_protects_nobody_is_refused_at_its_site() -> None:
    rows = {"ann": reviews(20), "bob": [{**row, "who": i % 4} for i, row in enumerate(reviews(40))]}
    check_delta(allowing(max_epsilon=1, delta=0.02), rows)
    check_delta(allowing(delta=0.5), rows)
    with pytest.raises(
        rondo.ConfigError, match=r"delta = 0\.03 is not below 1 over the 40 rows of bob: set it to 3e-03"
    ):
        check_delta(allowing(max_epsilon=1, delta=0.03), rows)
    with pytest.raises(rondo.ConfigError, match=r"delta = 0\.25 is not below 1 over the 4 persons of bob"):
        check_delta(allowing(max_epsilon=1, delta=0.25, persons="who"), {"bob": rows["bob"]})


def test_noise_of_a_seed_that_the_server_knows_counts_as_none(
    plan: Plan, request_: Request, tmp_path: Path, desk: Make
) -> None:
    here = desk(tmp_path, contract=allowing())
    assert not asked(here, private(plan, debug_seed=3)).refused
    assert Reply.decode(here.answer("round", work(request_))).upload
    assert here.ledger.epsilon("ann", 1e-5) == float("inf")
    assert "epsilon inf at delta" in next(account.spent(here.folder))


@pytest.mark.slow
def test_rehearsal_with_a_seed_bars_its_rows(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """Of later runs under max_epsilon. One with other rows in a copy of the site's folder bars none."""
    own, copy, limited = tmp_path / "own", tmp_path / "copy", allowing(max_epsilon=spent(20))
    for folder in (own, copy):
        folder.mkdir()
    before = desk(own, contract=limited)
    assert not asked(before, private(plan)).refused
    assert Reply.decode(before.answer("round", work(request_))).upload
    shutil.copytree(own / "state", copy / "state")
    other = [{**row, "text": f"made up: {row['text']}"} for row in SITE_ROWS["ann"]]
    for folder, rows, barred in ((copy, other, False), (own, SITE_ROWS["ann"], True)):
        rehearsing = desk(folder, contract=allowing(), rows=rows)
        assert not asked(rehearsing, private(plan, "rehearsal", debug_seed=3)).refused
        assert Reply.decode(rehearsing.answer("round", work(request_, "rehearsal"))).upload
        refused = asked(desk(own, contract=limited), private(plan, "next")).refused
        assert ("epsilon of ann: more, after all rounds" in refused) is barred


def test_scores_are_not_answered(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    here = desk(tmp_path, contract=allowing())
    assert not asked(here, private(plan)).refused
    asking = replace(Request.decode(work(request_)), scores=True)
    assert "scores on rows have no noise" in Reply.decode(here.answer("round", asking.encode())).detail


@pytest.mark.slow
def test_killed_training_has_been_spent(
    plan: Plan, request_: Request, tmp_path: Path, desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = desk(tmp_path, contract=allowing(max_epsilon=8.0))
    assert not asked(here, private(plan)).refused
    monkeypatch.setattr(PrivateSteps, "take", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if child == 0:
        try:
            here.answer("round", work(request_))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert here.ledger.epsilon("ann", 1e-5) == spent(4)


def test_training_that_a_full_disk_could_not_note_is_none(
    plan: Plan, request_: Request, tmp_path: Path, desk: Make, full_at: Any
) -> None:
    told = list[str]()
    here = desk(tmp_path, told=told, contract=allowing())
    assert not asked(here, private(plan)).refused
    with full_at("privacy.jsonl"):
        reply = Reply.decode(here.answer("round", work(request_)))
    assert (reply.reason, reply.detail, reply.upload) == ("refused", "its disk is full", b"")
    assert f"No space left on device: '{here.folder / FILE}'" in told[-2]
    assert here.ledger.epsilon("ann", 1e-5) == 0.0
    assert Reply.decode(here.answer("round", work(request_))).upload
    assert here.ledger.epsilon("ann", 1e-5) == spent(4)


# --- the ledger ---------------------------------------------------------------------------------------------------

ROWS = [{"text": f"row {i}", "who": i // 2} for i in range(10)]


def ledger(folder: Path, rows: Any = ROWS, persons: str | None = None) -> SiteLedger:
    return SiteLedger(folder, {"ann": rows}, ("text",), persons)


PAID = Entry(1.0, 1.0, 1e-5, secret=True, run="run", sampled=0.2)


def paid(folder: Path, **options: Any) -> SiteLedger:
    account = ledger(folder, **options)
    account.spend("ann", replace(PAID, count=7))
    return account


def of(account: SiteLedger) -> float:
    return account.epsilon("ann", 1e-5)


@pytest.mark.slow
def test_account_is_of_rows_and_not_of_files(tmp_path: Path) -> None:
    full = of(paid(tmp_path))
    assert full == epsilon(1.0, 0.2, 7, 1e-5)
    other = [{"text": f"other {i}", "who": i} for i in range(10)]
    assert of(ledger(tmp_path, list(reversed(ROWS)))) == full
    assert of(ledger(tmp_path, [ROWS[3], *other])) == full  # one row of the file
    assert of(ledger(tmp_path, [{**row, "more": 1} for row in ROWS])) == full
    assert of(ledger(tmp_path, other)) == 0.0
    second = ledger(tmp_path, [ROWS[3], *other])
    second.spend("ann", PAID)
    assert of(second) == epsilon(1.0, 0.2, 8, 1e-5)
    assert of(ledger(tmp_path)) == epsilon(1.0, 0.2, 8, 1e-5)


@pytest.mark.slow
def test_account_of_persons_follows_them_to_new_rows(tmp_path: Path) -> None:
    full = of(paid(tmp_path, persons="who"))
    new = [{"text": f"new {i}", "who": 4 + i} for i in range(3)]
    assert of(ledger(tmp_path, new, "who")) == full
    assert of(ledger(tmp_path, new[1:], "who")) == 0.0
    assert of(ledger(tmp_path, new[1:])) == full  # by rows, nobody knows whose they were
    assert of(SiteLedger(tmp_path, {"ann": new[1:]}, ("who",))) == full
    with pytest.raises(ConfigError, match=r"privacy\.persons: row 1 of ann has no 'who'"):
        of(ledger(tmp_path, [{"text": "x"}], "who"))


@pytest.mark.parametrize("damage", ["account", "number", "former", "key", "short key", "rows"])
def test_damaged_ledger_is_no_empty_one(tmp_path: Path, damage: str) -> None:
    paid(tmp_path)
    if damage == "account":
        (tmp_path / FILE).write_text('{"3f\n')
    elif damage == "number":
        whole = (tmp_path / FILE).read_text()
        assert '"count": 7' in whole
        (tmp_path / FILE).write_text(whole.replace('"count": 7', '"count": -7'))
    elif damage == "former":
        (tmp_path / "privacy.json").write_text("{}")
    elif damage == "key":
        (tmp_path / KEY).unlink()
    elif damage == "short key":
        (tmp_path / KEY).write_bytes((tmp_path / KEY).read_bytes()[:8])
    else:
        for path in (tmp_path / "privacy-rows").iterdir():
            path.unlink()
    with pytest.raises(ConfigError, match=r"take a copy of it|a ledger of a former version"):
        of(ledger(tmp_path, ROWS[1:]))


def test_ledger_tells_nothing_of_rows_without_the_key(tmp_path: Path) -> None:
    """Equal rows have other digests at another site."""
    first, second = paid(tmp_path / "one"), paid(tmp_path / "two")
    one, other = (list(read((site.folder / FILE).read_bytes().splitlines())) for site in (first, second))
    assert {entry.who for entry in one}.isdisjoint(entry.who for entry in other)


def test_full_disk_leaves_no_part_of_a_key(tmp_path: Path, full_at: Any) -> None:
    """Anybody could try out texts on a ledger whose key is empty."""
    with full_at("privacy.key"), pytest.raises(OSError, match=r"No space left on device: .*privacy\.key"):
        paid(tmp_path)
    assert not (tmp_path / KEY).exists()
    paid(tmp_path)
    assert len((tmp_path / KEY).read_bytes()) == 32
