"""The account: its lines, what it adds up to, and that nothing in it is ever forgotten or made cheaper."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rondo.privacy.accounts.account import Account, Entry, SumAccount, read
from rondo.privacy.accounts.accountant import epsilon, epsilon_of_steps
from rondo.records.durable import Journal

pytest.importorskip("dp_accounting")

SUM = Entry(2.0, 1.0, 1e-3, secret=True, sum="ab")
STEPS = Entry(0.5, 0.5, 1e-5, secret=True, who="ann", sampled=0.25, attempt=3, count=7)


def of(*entries: Entry) -> Account:
    account = Account(lambda lines: None)
    for entry in entries:
        account.spend(entry)
    return account


def spent(*entries: Entry, now: Entry = SUM) -> SumAccount:
    return SumAccount(of(*entries), now, None)


@pytest.mark.parametrize(
    "entry", [SUM, STEPS, replace(SUM, colluding=0, then=0.2, run="x"), replace(STEPS, secret=False)]
)
def test_line_is_read_as_it_was_written(entry: Entry) -> None:
    assert list(read([entry.line()])) == [entry]


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no object": lambda line: [line],
    "another key": lambda line: {**line, "more": 1},
    "no noise": lambda line: {k: v for k, v in line.items() if k != "noise"},
    "noise below 0": lambda line: {**line, "noise": -0.1},
    "infinite noise": lambda line: {**line, "noise": math.inf},
    "noise in words": lambda line: {**line, "noise": "0.5"},
    "probability of nobody": lambda line: {**line, "sampled": 1e-9},
    "probability above 1": lambda line: {**line, "sampled": 7.0},
    "no probability": lambda line: {**line, "sampled": math.nan},
    "true probability": lambda line: {**line, "sampled": True},
    "clip of 0": lambda line: {**line, "clip": 0.0},
    "delta of 2": lambda line: {**line, "delta": 2.0},
    "secrecy in numbers": lambda line: {**line, "secret": 1},
    "no steps": lambda line: {**line, "count": 0},
    "parts of steps": lambda line: {**line, "count": 3.0},
    "two of a sum": lambda line: {**line, "sum": "ab", "count": 2},
    "attempt below 0": lambda line: {**line, "attempt": -1},
    "colluding below 0": lambda line: {**line, "colluding": -1},
    "clip to come of 0": lambda line: {**line, "then": 0.0},
    "client by number": lambda line: {**line, "who": 3},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_line_is_refused(damage: str) -> None:
    """A number that is wrong would make what was spent cheaper."""
    line = json.dumps(DAMAGES[damage](json.loads(STEPS.line()))).encode()
    with pytest.raises(ValueError, match="line 2 is not as it was written"):
        list(read([SUM.line(), line]))


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b'{"noise": 2.0}'])
def test_line_of_something_else_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="line 1 is not as it was written"):
        list(read([content]))


def test_sums_that_stand_twice_and_steps_taken_back_are_refused() -> None:
    account = of(SUM, STEPS)
    with pytest.raises(ValueError, match="twice"):
        account.count(SUM)
    with pytest.raises(ValueError, match="taken back"):
        account.count(replace(STEPS, count=-8))


def test_each_sum_has_the_noise_that_it_had() -> None:
    """Whatever noise the next sum has."""
    sums = [replace(SUM, attempt=k, noise=0.5) for k in range(3)] + [replace(SUM, attempt=k, noise=5.0) for k in (3, 4)]
    true = epsilon_of_steps({(0.5, 1.0): 3, (5.0, 1.0): 2}, 1e-3)
    assert [spent(*sums, now=replace(SUM, noise=z)).epsilon() for z in (0.5, 5.0)] == [true] * 2
    assert spent(*sums, now=replace(SUM, noise=0.5)).epsilon(1) > spent(*sums, now=replace(SUM, noise=5.0)).epsilon(1)


def test_sums_of_one_attempt_cost_as_one_with_less_noise() -> None:
    two = spent(SUM, replace(SUM, sum="cd"), SUM)
    assert two.epsilon() == epsilon(2.0 / math.sqrt(2), 1.0, 1, 1e-3)
    mixed = spent(replace(SUM, sampled=0.1), replace(SUM, sum="cd", noise=1.0, sampled=0.2))
    assert mixed.account.steps == {"": {(1 / math.sqrt(1 + 0.25), 0.2): 1}}
    assert spent(SUM, replace(SUM, sum="cd"), replace(SUM, attempt=1)).account.steps == {
        "": {(2.0 / math.sqrt(2), 1.0): 1, (2.0, 1.0): 1}
    }
    with_a_run = spent(SUM, replace(SUM, run="another"))
    assert with_a_run.epsilon() == epsilon(2.0, 1.0, 2, 1e-3)


def test_each_sum_with_noise_of_sites_is_counted_by_itself() -> None:
    """Two sums of one attempt are as far from Gaussian noise as two of two attempts."""
    of_sites = replace(SUM, colluding=1)
    for other in (replace(of_sites, sum="cd"), replace(of_sites, attempt=1)):
        assert of(of_sites, other, other).shares == 2


@pytest.mark.parametrize("weak", [{"secret": False}, {"noise": 0.0}])
def test_known_noise_counts_as_none_for_ever(weak: dict[str, Any]) -> None:
    """Beside sums of the same attempt, and of others."""
    for other in (replace(SUM, sum="cd"), replace(SUM, attempt=1)):
        account = spent(replace(SUM, **weak), other)
        assert account.record(0) == {"epsilon": None, "epsilon_valid": False}
        again = Account(lambda lines: None)
        for entry in read([replace(SUM, **weak).line(), other.line()]):
            again.count(entry)
        assert SumAccount(again, SUM, 1e9).exhausted


def test_steps_that_were_not_taken_are_taken_back() -> None:
    account = of(STEPS, replace(STEPS, count=2), replace(STEPS, count=-7))
    assert account.steps == {"ann": {(0.5, 0.25): 2}}


def test_write_that_dies_at_any_byte_forgets_nothing(tmp_path: Path) -> None:
    """What was on the disk before is there, a line that is not whole counts as nothing, and the next is readable."""
    lines = [replace(SUM, attempt=k).line() for k in range(3)]
    whole, path = b"".join(lines), tmp_path / "account"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        journal = Journal(path)
        kept = list(read(journal.whole()))
        assert [entry.attempt for entry in kept] == list(range(whole[:cut].count(b"\n")))
        journal.append(replace(SUM, attempt=9).line().rstrip())
        assert [entry.attempt for entry in read(Journal(path).whole())] == [*(e.attempt for e in kept), 9]


@pytest.mark.slow
def test_account_of_many_rounds_is_read_at_once() -> None:
    lines = [replace(STEPS, who=f"c{k % 10}", attempt=k).line() for k in range(20_000)]
    lines += [replace(SUM, attempt=k).line() for k in range(20_000)]
    began, account = time.process_time(), Account(lambda lines: None)
    for entry in read(lines):
        account.count(entry)
    assert time.process_time() - began < 10
    assert account.steps["c3"] == {(0.5, 0.25): 14_000}
    assert account.steps[""] == {(2.0, 1.0): 20_000}
