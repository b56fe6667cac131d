"""Noise that sites add to their masked vectors: of each site's own, spent first, never the same twice."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from outcomes import adapter
from watched import failing, planted

pytest.importorskip("dp_accounting")

from desk_line import SITES, DeskLine, Killed, desk_of
from parties import OPEN, Parties, configuration, write_sites
from simulations import simulated
from test_masked_kills import Strike, listening, run_of, without_bob
from test_masked_refusals import Server, refused

from rondo.algorithm import Round
from rondo.errors import ConfigError
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.identity.peers import Voice
from rondo.federation.plan import Consent, Plan
from rondo.federation.server import run as server_run
from rondo.federation.server.masked_rounds import _Sets
from rondo.federation.site import sums as module
from rondo.federation.site.audit.audit import Audit
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.contract.protection import Allowance, steps_of
from rondo.federation.site.ledger import SiteLedger
from rondo.federation.site.sum_state import SumState
from rondo.federation.site.sums import Sums
from rondo.privacy.accounts.account import Entry
from rondo.privacy.accounts.accountant import epsilon
from rondo.privacy.masking import integers
from rondo.privacy.masking.integers import NoiseShare, stream_of
from rondo.privacy.masking.opening import NoSum
from rondo.privacy.masking.session import Refused, SiteSession

NOISY = {"adversary": "server", "secure_aggregation": True, "unit": "client", "clip": 0.5, "noise": 8.0, "delta": 1e-3}


def noisy(place: Path, clients: Mapping[str, Any] | None = None, **privacy: Any) -> dict[str, Any]:
    """Two rounds of three sites."""
    sections = {"weighting": "uniform", "min_clients": 1, **(clients or {})}
    return run_of(place, privacy={**NOISY, **privacy}, clients=sections)


def served(place: Path, line: DeskLine, run_dir: Path, run: dict[str, Any]) -> Any:
    with line.served():
        return server_run.serve(run, listening(place), run_dir=run_dir, device="cpu", told=line.told.append)


def claimed(sums: int) -> float:
    return epsilon(8.0, 1.0, sums, 1e-3)


def of_rows(sums: int, noise: float = 4.0) -> float:
    """Of a row, which moves an upload by twice the clip, at the delta of the sites' contract."""
    return epsilon(noise, 1.0, sums, 1e-5)


# --- whole federations --------------------------------------------------------------------------------------------


def test_noisy_federation_equals_the_simulation(place: Path, tmp_path: Path) -> None:
    run = noisy(place, debug_seed=5)
    result = served(place, DeskLine(place, tmp_path), tmp_path / "run", run)
    expected = simulated(place, run, tmp_path / "simulation")
    assert adapter(result.run_dir) == adapter(expected.run_dir)
    for key in ("bytes_up", "skipped", "clients"):
        assert [r[key] for r in result.history] == [r[key] for r in expected.history]
    for run_of_both in (result, expected):  # known noise counts as none
        assert [(r["epsilon"], r["epsilon_valid"]) for r in run_of_both.history] == [(None, False)] * 2
    assert result.summary["privacy"]["colluding"] == 1


@pytest.mark.slow
def test_noise_is_the_sites_and_so_is_their_account(place: Path, tmp_path: Path) -> None:
    """Two runs of one plan have other noise, and the ledgers count both."""
    run = noisy(place)
    results = []
    for name in ("one", "two"):
        line = DeskLine(place, tmp_path)
        results.append(served(place, line, tmp_path / name, run))
    assert adapter(results[0].run_dir) != adapter(results[1].run_dir)
    for result in results:
        assert [(r["epsilon"], r["epsilon_valid"]) for r in result.history] == [(claimed(1), True), (claimed(2), True)]
        card = (result.run_dir / "adapter" / "README.md").read_text("utf-8")
        assert "differential privacy of clients, against the server too with 1 of the sites" in card
    for site in SITES:
        assert [e for *_, e in SiteLedger(tmp_path / f"at-{site}", {}).accounts(1e-5)] == [of_rows(4)]
    assert f"ann: epsilon {of_rows(4):.3g} at delta 1e-05" in "\n".join(line.told)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "moment", "returns"), [("masked", "written", True), ("masked", "after", False)])
def test_site_that_dies_changes_no_other_noise(
    place: Path, tmp_path: Path, kind: str, moment: str, returns: bool
) -> None:
    """Two of three open a sum, and two of two, so the shares are of one size."""
    run, strike = noisy(place, debug_seed=5), Strike(kind, moment, returns=returns)
    line = strike.line = DeskLine(place, tmp_path, strike)
    with strike.around_the_disk():
        result = served(place, line, tmp_path / "run", run)
    assert strike.left <= 0
    expected = simulated(place, run, tmp_path / "simulation", without_bob(*(() if returns else (0, 1))))
    assert adapter(result.run_dir) == adapter(expected.run_dir)


@pytest.mark.slow
def test_budget_ends_a_noisy_run(place: Path, tmp_path: Path) -> None:
    run = {**noisy(place, budget=(claimed(2) + claimed(3)) / 2), "rounds": 5}
    result = served(place, DeskLine(place, tmp_path), tmp_path / "run", run)
    assert [r["epsilon"] for r in result.history] == [claimed(1), claimed(2)]
    with pytest.raises(ConfigError, match=r"privacy.budget: 0.1, and the first round takes"):
        simulated(place, noisy(place, budget=0.1), tmp_path / "simulation")


@pytest.mark.slow
def test_clients_of_one_site_share_its_noise(bert: Path, tmp_path: Path) -> None:
    """Two clients of a site leave in one vector, and each has its own account."""
    folder = tmp_path / "two"
    shutil.copytree(bert, folder / "bert")
    write_sites(folder)
    clients, train = {"weighting": "uniform"}, {"local_epochs": 1, "batch_size": 8}
    labels = {"labels": ["neg", "pos"]}
    sections = {"algorithm": {"name": "rolora"}, "clients": clients, "train": train, "task": labels}
    run = configuration(folder, rounds=2, privacy=NOISY, **sections)
    parties = Parties(folder, state=tmp_path)
    result = parties.run(run, tmp_path / "run")
    assert [(r["skipped"], r["clients"]) for r in result.history] == [(None, 3), (None, 3)]
    assert not parties.errors
    assert [e for *_, e in SiteLedger(tmp_path / "at-south", {}).accounts(1e-5)] == [of_rows(2), of_rows(2)]


def test_federation_without_honest_noise_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"privacy.colluding: 2 of 3 sites open a sum, and if 2 collude"):
        served(place, DeskLine(place, tmp_path), tmp_path / "run", noisy(place, colluding=2))


def test_round_without_honest_noise_has_no_sum() -> None:
    """Three of four sites have trained, of which two would open a sum."""
    share = NoiseShare.of(32, 0.5, 4, 8.0, 2)
    transport = SimpleNamespace(
        sum=SimpleNamespace(least=1, noise=share),
        saved=SimpleNamespace(sessions=lambda attempt: (-1, 0)),
        sites=SimpleNamespace(fewest=lambda sites: dict.fromkeys(sites, 2)),
    )
    here = {site: [site] for site in ("north", "south", "west")}
    sets = _Sets(transport, None, Round(0, 1, 0, 4), here, {})  # type: ignore[arg-type]
    with pytest.raises(NoSum, match="2 sites open a sum, and if 2 collude, nobody's noise is left"):
        sets.complete()


# --- one site -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(place: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sums, dict[str, bytes]]:
    """The state of bob's site after it has trained, and the letters to it."""
    folder = tmp_path_factory.mktemp("trained")

    def strike(site: str, kind: str, moment: str) -> None:
        if kind == "ready":
            raise Killed

    line = DeskLine(place, folder, strike)
    with pytest.raises(Killed):
        served(place, line, folder / "run", noisy(place))
    sums = line._desks["south"]._sums
    assert sums is not None
    return folder / "at-south", sums, {kind: letter for site, kind, letter, _ in line.heard if site == "south"}


@pytest.fixture
def server(place: Path, trained: tuple[Path, Sums, dict[str, bytes]], tmp_path: Path) -> Server:
    state, sums, _ = trained
    shutil.copytree(state, tmp_path / "state")
    return server_of(place, sums, tmp_path / "state")


def server_of(place: Path, sums: Sums, state: Path, **allowed: Any) -> Server:
    assert sums.allowance is not None
    voices = {site: Voice.of(SiteKeys.read(place / "keys" / site)) for site in SITES}
    ledger = replace(sums.allowance.ledger, folder=state)
    terms = sums.allowance.allowed.model_copy(update=allowed)
    fresh = {"allowance": replace(sums.allowance, ledger=ledger, allowed=terms), "_attempt": None, "_loaded": False}
    audit = Audit(state / "letters.jsonl")
    return Server(replace(sums, folder=state / sums.folder.name, audit=audit, **fresh), voices)  # type: ignore[arg-type]


def spent(server: Server) -> float:
    assert server.sums.allowance is not None
    return server.sums.allowance.ledger.epsilon("bob", 1e-5)


def vectors(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[numpy.ndarray]:
    """The vectors of the site before their masks, as they come."""
    found: list[numpy.ndarray] = []
    real = SiteSession.masked

    def noted(session: SiteSession, named: Any, numbers: Any, *rest: Any) -> Any:
        if session.sent is None:
            found.append(numbers)
        return real(session, named, numbers, *rest)

    monkeypatch.setattr(SiteSession, "masked", noted)
    monkeypatch.setattr("os.urandom", random.Random(0).randbytes)  # so that no test fails by chance
    return found


def sets(server: Server, sessions: int) -> None:
    """Void sets of all three sites, one after the other."""
    for session in range(sessions):
        server.masked(named(server, session), session)


def named(server: Server, session: int) -> tuple[Any, ...]:
    return server.named(server.ready(session=session))


def noise_is_the_share_of_the_threshold(server: Server, found: list[numpy.ndarray]) -> None:
    """Two of three open the sum, and one may collude: each site has all of the noise."""
    sets(server, 1)
    share = NoiseShare.of(32, 0.5, 3, 8.0, 1)
    assert found[0].std() == pytest.approx(8.0 * 0.5 * 2.0**share.points.fraction, rel=0.1)


def change_is_within_the_clip(server: Server, found: list[numpy.ndarray]) -> None:
    clip = 0.5 * 2.0**24
    assert math.sqrt(sum(x * x for x in unnoised(server).tolist())) == pytest.approx(clip, rel=1e-3)


def unnoised(server: Server) -> numpy.ndarray:
    """The integers of bob's change, which has been made longer than the clip."""
    state = SumState(server.sums.folder, "south")
    learned = state.learned("bob")
    assert learned is not None
    state.keep(replace(learned, change=learned.change * 100))
    server.ready()
    attempt = server.sums._now()
    assert attempt is not None
    share = server.sums._share(attempt)
    assert share is not None
    numbers = server.sums._numbers(attempt)
    return numpy.asarray(numbers * 2.0 ** (24 - share.points.fraction))


def noise_of_another_set_is_other_noise(server: Server, found: list[numpy.ndarray]) -> None:
    sets(server, 2)
    assert abs(numpy.corrcoef(found[0], found[1])[0, 1]) < 0.2
    assert (found[0] - found[1]).std() == pytest.approx(math.sqrt(2) * found[0].std(), rel=0.2)


def noise_is_not_known_beforehand(server: Server, found: list[numpy.ndarray]) -> None:
    """Of the same set, asked of the same site after a crash before it has written its vector down."""
    members = named(server, 0)
    with failing(SumState, "save", Killed()), pytest.raises(Killed):
        server.masked(members)
    server.again().masked(members)
    assert len(found) == 2
    assert abs(numpy.corrcoef(found[0], found[1])[0, 1]) < 0.2


def every_vector_is_spent(server: Server, found: list[numpy.ndarray]) -> None:
    """Before it leaves; the same one again is not, and a set that is refused is none."""
    noise_is_not_known_beforehand(server, found)
    assert spent(server) == of_rows(2)
    again = server.again()
    attempt = again.sums._now()
    assert attempt is not None
    assert attempt.session.named is not None
    members = attempt.session.named.members
    assert again.masked(members).vector.tolist() == again.again().masked(members).vector.tolist()
    with refused("wrong_set"):
        again.masked(members[:2])
    assert spent(again) == of_rows(2)
    with refused("few_sites"):
        again.masked((again.ready(session=1),), 1)
    assert spent(again) == of_rows(2)
    again.masked(named(again, 2), 2)
    assert spent(again) == of_rows(3)


LAWS = (
    noise_is_the_share_of_the_threshold,
    change_is_within_the_clip,
    noise_of_another_set_is_other_noise,
    noise_is_not_known_beforehand,
    every_vector_is_spent,
)
Law = Callable[[Server, list[numpy.ndarray]], None]


@pytest.mark.parametrize("law", LAWS)
def test_site_obeys(law: Law, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    law(server, vectors(server, monkeypatch))


def test_vector_that_a_full_disk_holds_back_is_spent_once(
    server: Server, monkeypatch: pytest.MonkeyPatch, full_at: Any
) -> None:
    """The site is asked again every minute, and draws no other noise."""
    found, members = vectors(server, monkeypatch), named(server, 0)
    with full_at("privacy.jsonl"), pytest.raises(OSError, match=r"No space left on device: .*privacy\.jsonl"):
        server.masked(members)
    assert spent(server) == 0.0
    for _ in range(2):
        with full_at("sum.session"), pytest.raises(OSError, match=r"No space left on device: .*sum\.session"):
            server.masked(members)
    vector = server.masked(members).vector
    assert server.again().masked(members).vector.tolist() == vector.tolist()
    assert spent(server) == of_rows(1)
    assert len(found) == 1


DEVIATION = NoiseShare.deviation
BUGS: dict[str, tuple[tuple[Any, str, Any], Law]] = {
    "noise halved": (
        (NoiseShare, "deviation", lambda share, threshold: DEVIATION(share, threshold) // 2),
        noise_is_the_share_of_the_threshold,
    ),
    "share of all sites": (
        (NoiseShare, "deviation", lambda share, threshold: DEVIATION(replace(share, colluding=0), 3)),
        noise_is_the_share_of_the_threshold,
    ),
    "clip left out": ((integers, "clipped", lambda change, bound: change), change_is_within_the_clip),
    "noise of another sum": (
        (module, "stream_of", lambda seed, attempt, client: stream_of(0, attempt, client)),
        noise_of_another_set_is_other_noise,
    ),
    "noise of the plan's seed": (
        (module, "stream_of", lambda seed, attempt, client: stream_of(17, attempt, client)),
        noise_is_not_known_beforehand,
    ),
    "not spent": ((Allowance, "spend", lambda *_: None), every_vector_is_spent),
    "spent for an upload alone": (
        (Allowance, "spend", lambda own, clients: own.ledger.spend("bob", replace(own.protection, run="x"))),
        every_vector_is_spent,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_at_a_site_breaks_a_law(bug: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, law = BUGS[bug]
    found = vectors(server, monkeypatch)
    with planted(*fault), pytest.raises((AssertionError, Refused)):
        law(server, found)


# --- the contract -------------------------------------------------------------------------------------------------


def test_site_refuses_a_vector_beyond_its_contract(
    place: Path, trained: tuple[Path, Sums, dict[str, bytes]], tmp_path: Path
) -> None:
    """Before the noise is drawn, and whatever the server counts."""
    state, sums, _ = trained
    shutil.copytree(state, tmp_path / "state")
    limit = (of_rows(1) + of_rows(2)) / 2
    server = server_of(place, sums, tmp_path / "state", max_epsilon=limit)
    server.masked(named(server, 0))
    assert server.sums.beyond("bob") == (
        f"its owner allows epsilon {limit:g} over all runs on these rows, and this round would exceed it"
    )
    own = server.ready(session=1)
    with refused(f"budget: its owner allows epsilon {limit:g} over all runs on these rows"):
        server.masked(server.named(own), 1)
    assert spent(server) == of_rows(1)


def test_no_vector_without_honest_noise(server: Server) -> None:
    config = server.sums.config
    privacy = config.privacy.model_copy(update={"colluding": 2})
    server.sums = replace(server.sums, config=config.model_copy(update={"privacy": privacy}))
    own = server.ready()
    with refused("threshold: of 2 sites that open a sum, 2 may collude: nobodys noise counts"):
        server.masked(server.named(own))
    assert spent(server) == 0


def test_change_that_no_bound_holds_does_not_leave(server: Server) -> None:
    own = server.ready()
    with planted(integers, "clipped", lambda change, bound: change * math.nan), refused("unbounded: "):
        server.masked(server.named(own))


@pytest.mark.parametrize(
    ("terms", "privacy", "reason"),
    [
        ({"require": ["client-dp"]}, {}, ""),
        ({"require": ["client-dp", "secure-aggregation"], "max_epsilon": 4.0}, {}, ""),
        ({"max_epsilon": 4.0}, {}, ""),
        ({"least_colluding": 1}, {"colluding": 0}, "sites that may collude: 0, and its owner allows plans that count "),
        ({"least_colluding": 0}, {"colluding": 0}, ""),
        ({"require": ["client-dp"]}, {"debug_seed": 3}, "protection: secure-aggregation (no noise that counts: "),
        (
            {"max_epsilon": 4.0},
            {"debug_seed": 3},
            "protection: secure-aggregation (no noise that counts: privacy.debug_seed is ",
        ),
        ({"require": ["example-dp"]}, {}, "protection: client-dp, secure-aggregation, and its owner allows plans "),
        (
            {"require": ["client-dp"]},
            {"unit": None, "noise": None, "delta": None},
            "protection: secure-aggregation (no noise: privacy.unit is not set), ",
        ),
        ({"max_epsilon": 1.0}, {}, "epsilon of bob: more, after all rounds, and its owner allows 1 at delta 1e-05"),
        ({"max_epsilon": 1.0}, {"noise": 20.0}, ""),
    ],
)
def test_plan_beyond_the_contract_is_refused(
    place: Path,
    trained: tuple[Path, Sums, dict[str, bytes]],
    tmp_path: Path,
    terms: dict[str, Any],
    privacy: dict[str, Any],
    reason: str,
) -> None:
    plan = Plan.decode(trained[2]["plan"])
    plan = replace(plan, config={**plan.config, "privacy": {**plan.config["privacy"], **privacy}})
    contract = OPEN.model_copy(update={"privacy": Contract.model_validate({"privacy": terms}).privacy})
    desk = desk_of(place, tmp_path, "south", print, contract)
    consent = Consent.decode(desk.answer("plan", plan.encode()))
    assert consent.refused.startswith(reason)
    assert bool(consent.refused) is bool(reason)


def test_rows_at_two_clients_of_a_site_count_twice(tmp_path: Path) -> None:
    """A row that both have moves both uploads, and so the vector by four clips."""
    rows = {c: [{"text": f"{c} {i}"} for i in range(5)] for c in ("ann", "bob", "cid")}
    rows["cid"].append(rows["bob"][0])
    ledger = SiteLedger(tmp_path, rows, ("text",))
    assert steps_of(ledger, 8.0, "ann", tuple(rows)) == {(4.0, 1.0): 1}
    assert steps_of(ledger, 8.0, "bob", tuple(rows)) == {(2.0, 1.0): 2}
    assert steps_of(ledger, 8.0, "bob", ("ann", "bob")) == {(4.0, 1.0): 1}
    allowance = Allowance(ledger, Contract().privacy, "run", Entry(8.0, 0.5, 1e-3, secret=True), lambda line: None)
    allowance.spend(tuple(rows))
    assert ledger.epsilon("ann", 1e-5) == of_rows(1)
    assert ledger.epsilon("cid", 1e-5) == of_rows(2, 2.0)
