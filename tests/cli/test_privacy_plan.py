"""The commands privacy plan and privacy rows."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from typer.testing import CliRunner

from rondo.cli import app
from rondo.privacy.accounts.accountant import epsilon

pytest.importorskip("dp_accounting")


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["privacy", "plan", *map(str, arguments)])


@pytest.mark.slow
def test_noise_gives_the_epsilon_asked_for_and_full_participation_may_be_quieter() -> None:
    """100 clients, 20 rounds, epsilon 8, and the delta that is left out, 1 over ten times the clients."""
    options = ("--clients", 100, "--rounds", 20, "--epsilon", 8, "--per-round", 20, "--numbers", 36864)
    planned = json.loads(invoke(*options, "--json").output)["plans"]
    for sampling, share, loud in (("poisson", 0.2, 6.96), ("full", 1.0, 4.12)):
        found = planned[sampling]
        assert found["epsilon"] == epsilon(found["noise"], share, 20, 1e-3)
        assert 7.9 < found["epsilon"] <= 8
        assert found["noise_over_signal"] == pytest.approx(found["noise"] * 192 / (100 * share))
        assert found["noise_over_signal"] == pytest.approx(loud, abs=0.01)


def test_epsilon_of_a_noise_and_warnings() -> None:
    output = invoke("--clients", 10, "--rounds", 5, "--noise", 2, "--delta", 0.2, "--numbers", 10000).output
    assert f"epsilon {epsilon(2.0, 1.0, 5, 0.2):.3g}" in output
    assert "warning: delta is not below 1 over the number of clients, 0.1" in output
    assert "warning: above 3 few methods learn" in output


def test_plan_that_is_too_loud_is_named_beside_a_quiet_one() -> None:
    output = invoke("--clients", 1000, "--rounds", 1, "--noise", 2, "--per-round", 50, "--numbers", 10000).output
    assert "warning: above 3 (poisson) few methods learn" in output


def test_noise_of_sites_is_planned_by_the_threshold() -> None:
    """Ten sites, of which seven open a sum and two collude: each of five adds a share of the variance."""
    options = ("--clients", 10, "--rounds", 3, "--noise", 8, "--numbers", 36864, "--delta", 1e-3)
    plan = (*options, "--adversary", "server", "--colluding", 2)
    found = json.loads(invoke(*plan, "--json").output)
    assert (found["threshold"], found["epsilon"]) == (7, epsilon(8.0, 1.0, 3, 1e-3))
    assert found["share"] == pytest.approx(8 / math.sqrt(5))
    assert found["noise_over_signal"] == pytest.approx(8 * 192 * math.sqrt(10 / 5) / 10)
    assert found["epsilon_of_rows"] == epsilon(4.0, 1.0, 3, 1e-3)
    printed = invoke(*plan).output
    assert "10 sites a round, 3 rounds, delta 0.001; 7 of 10 sites open a sum, 2 may collude" in printed
    assert f"each site adds 3.578: epsilon {found['epsilon']:.3g}, noise 217 times the largest signal" in printed
    assert "warning: above 3 few methods learn" in printed
    fewer = json.loads(invoke(*plan, "--per-round", 4, "--json").output)
    assert (fewer["sites"], fewer["threshold"]) == (4, 3)


def test_noise_of_rows_is_planned_as_a_client_counts_it() -> None:
    """54 rows at 16 to a step are four steps a round, as the account of a client has them."""

    def told(*options: Any) -> Any:
        return CliRunner().invoke(app, ["privacy", "rows", "--rows", "54", "--rounds", "2", *map(str, options)])

    found = json.loads(told("--noise", 1, "--json").output)
    assert (found["steps"], found["probability"]) == (4, 16 / 54)
    assert found["epsilon"] == epsilon(1.0, 16 / 54, 8, 1e-5)
    assert f"epsilon {found['epsilon']:.3g}" in told("--noise", 1).output
    wanted = json.loads(told("--epsilon", 3, "--local-steps", 2, "--batch-size", 100, "--json").output)
    assert (wanted["steps"], wanted["probability"]) == (2, 1.0)
    assert 2.9 < wanted["epsilon"] <= 3
    # A person is drawn with the probability of a row, and there are as many steps as the rows ask for.
    of_persons = json.loads(told("--noise", 1, "--persons", 9, "--delta", 0.1, "--json").output)
    assert of_persons["epsilon"] == epsilon(1.0, 16 / 54, 8, 0.1)
    assert "54 rows of 9 persons" in told("--noise", 1, "--persons", 9).output
    for options, key in (
        (("--noise", 0.1), "--noise"),
        (("--noise", 1, "--delta", 0.02), "--delta"),
        (("--noise", 1, "--persons", 9, "--delta", 0.12), "--delta"),
        (("--noise", 1, "--persons", 55), "--persons"),
        (("--noise", 1e300), "--noise"),
        (("--noise", 1, "--rounds", 10**9), "--rounds"),
        ((), "--epsilon"),
    ):
        refused = told(*options)
        assert refused.exit_code == 2
        assert f"  {key}: " in refused.stderr


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ((), "--epsilon"),
        (("--epsilon", 1, "--noise", 1), "--epsilon"),
        (("--epsilon", 0), "--epsilon"),
        (("--noise", "inf"), "--noise"),
        (("--noise", 0.05), "--noise"),
        (("--noise", 1e300), "--noise"),
        (("--noise", 1, "--rounds", 10**9), "--rounds"),
        (("--noise", 1, "--per-round", 11), "--per-round"),
        (("--noise", 1, "--delta", 1), "--delta"),
        (("--noise", 1, "--adversary", "server", "--colluding", 7), "--colluding"),
    ],
)
def test_bad_numbers_are_told(options: tuple[Any, ...], key: str) -> None:
    result = invoke("--clients", 10, "--rounds", 5, *options)
    assert result.exit_code == 2
    assert f"  {key}: " in result.stderr
