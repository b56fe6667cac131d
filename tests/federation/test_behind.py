"""The rows behind two uploads of a site, whatever their plans, are the same or differ by ``least_rows`` rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desks import Make, asked, contract, with_
from hypothesis import given
from hypothesis import strategies as st

from rondo.data.units import Parts
from rondo.engine.wire.letters import Reply, Request
from rondo.errors import ConfigError
from rondo.federation.plan import Plan
from rondo.federation.site.behind import FILE, Behind, _joined
from small_runs import reviews

pytestmark = pytest.mark.usefixtures("refusals_at_once")

SAFE = contract(training={"repeats": False})
ROWS = reviews(40)
CONSENTED = "consented"


def text(number: int) -> dict[str, Any]:
    return {"text": f"row {number}", "label": number % 2}


def behind(folder: Path, rows: Sequence[Any], least: int = 3, told: list[str] | None = None, **facts: Any) -> Behind:
    """The record of a site of one client."""
    heard = [] if told is None else told
    record = Behind(folder, folder / CONSENTED, {"ann": list(rows)}, {}, ("text", "label"), least, heard.append)
    return replace(record, **facts)


def parted(record: Behind, rows: Sequence[Any], share: float = 0.0, length: int = 99) -> Parts:
    return record.parts("ann", list(rows), [str(row["text"])[:length] for row in rows], share)


def trained(record: Behind, rows: Sequence[Any], share: float = 0.0, length: int = 99) -> list[Any]:
    """The cells of the first column of the rows that would be trained on, read to ``length``."""
    record.begin()
    parts = parted(record, rows, share, length)
    record.keep()
    return sorted(rows[place]["text"] for block in parts.blocks for place in block)


# --- blocks -------------------------------------------------------------------------------------------------------


@given(
    sets=st.lists(st.sets(st.integers(0, 24), min_size=1), min_size=1, max_size=5),
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9]), min_size=5, max_size=5),
)
def test_rows_of_any_runs_are_told_apart_in_blocks_alone(
    tmp_path_factory: pytest.TempPathFactory, sets: list[set[int]], shares: list[float]
) -> None:
    """Rows come, go and come back; whatever is added to and taken from each other, a block stays in one piece."""
    folder = tmp_path_factory.mktemp("site")
    seen = []
    for numbers, share in zip(sets, shares, strict=False):
        rows = [text(n) for n in sorted(numbers)]
        seen.append(set(trained(behind(folder, rows), rows, share)))
    everything = {text(n)["text"] for numbers in sets for n in numbers}
    kinds: dict[tuple[bool, ...], int] = {}
    for row in everything:
        kind = tuple(row in of_run for of_run in seen)
        kinds[kind] = kinds.get(kind, 0) + 1
    assert {kind: count for kind, count in kinds.items() if any(kind) and count < 3} == {}
    assert {len(a ^ b) for a in seen for b in seen} & {1, 2} == set()


@given(sizes=st.lists(st.integers(1, 5), max_size=9), least=st.integers(1, 9))
def test_joined_parts_are_large_enough(sizes: list[int], least: int) -> None:
    parts = [[bytes([place, n]) for n in range(size)] for place, size in enumerate(sizes)]
    blocks = _joined(parts, least)
    assert [block for block in blocks if len(block) < least] == []
    whole = [mark for part in parts for mark in part]
    assert [mark for block in blocks for mark in block] == (whole if sum(sizes) >= least else [])


def test_new_rows_wait_until_they_make_a_block(tmp_path: Path) -> None:
    told: list[str] = []
    first = [text(n) for n in range(7)]
    assert len(trained(behind(tmp_path, first), first)) == 7
    more = [text(n) for n in range(9)]
    assert trained(behind(tmp_path, more, told=told), more) == trained(behind(tmp_path, first), first)
    assert told == [
        "ann: 2 new rows wait until there are 3: uploads go by blocks of 3 rows at least (training.least_rows)"
    ]
    enough = [text(n) for n in range(10)]
    assert len(trained(behind(tmp_path, enough), enough)) == 10


def test_block_with_a_row_that_is_gone_or_changed_is_left_out(tmp_path: Path) -> None:
    rows = [text(n) for n in range(9)]
    trained(behind(tmp_path, rows), rows)
    for other in (rows[1:], [{**rows[0], "label": 5}, *rows[1:]]):
        told: list[str] = []
        assert len(trained(behind(tmp_path, other, told=told), other)) == 6
        assert told[-1].endswith("some lack rows that are gone or changed: 2 rows are left out")


def test_equal_rows_are_rows_of_their_own(tmp_path: Path) -> None:
    rows = [text(1)] * 6
    assert len(trained(behind(tmp_path, rows), rows)) == 6
    assert len(trained(behind(tmp_path, rows[1:]), rows[1:])) in (0, 3)


def test_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    rows = [text(n) for n in range(12)]
    held = trained(behind(tmp_path, rows), rows, 0.3)
    assert trained(behind(tmp_path, rows[::-1]), rows[::-1], 0.3) == held


def test_held_back_rows_are_the_secret_of_the_site(tmp_path: Path) -> None:
    rows = [text(n) for n in range(30)]
    sets = {tuple(trained(behind(tmp_path / str(n), rows), rows, 0.5)) for n in range(4)}
    assert len(sets) == 4
    assert {len(of_site) for of_site in sets} == {15}


def test_larger_blocks_of_a_stricter_contract_are_made_of_those_there_are(tmp_path: Path) -> None:
    rows = [text(n) for n in range(30)]
    small, large = behind(tmp_path, rows), behind(tmp_path, rows, least=7)
    small.begin()
    blocks = [set(block) for block in parted(small, rows).blocks]
    small.keep()
    for block in parted(large, rows).blocks:
        assert len(block) >= 7
        assert set(block) == set().union(*(part for part in blocks if part <= set(block)))


def test_opened_cells_are_known_by_the_file(tmp_path: Path) -> None:
    """A plan decides on the size of pictures."""
    raw = [{"text": f"{n}.png", "label": n} for n in range(6)]
    opened = [{**row, "text": np.zeros((2, 2))} for row in raw]
    record = behind(tmp_path, raw)
    record.begin()
    assert parted(record, opened) == parted(record, raw)
    with pytest.raises(ConfigError, match=r"data\.bad_rows: some rows of ann cannot be used, and it does not show"):
        parted(record, opened[1:])


# --- how rows are read ----------------------------------------------------------------------------------------


def read_to(folder: Path, rows: Sequence[Any], *lengths: int, told: list[str] | None = None) -> list[int]:
    """The numbers of rows that runs train on, one after the other, which read rows to these lengths."""
    counts = []
    for seed, length in enumerate(lengths):
        record = behind(folder, rows, told=told)
        counts.append(len(trained(record, rows, length=length)))
        assert record.note(seed, str(length)) is None
    return counts


def test_block_of_a_row_that_few_lengths_cut_is_left_out(tmp_path: Path) -> None:
    told: list[str] = []
    long = {"text": "a row of more words", "label": 0}
    rows = [long, *(text(n) for n in range(10, 19))]
    (first, cut, again) = read_to(tmp_path, rows, 99, 12, 99, told=told)
    assert (first, again) == (10, 10)
    assert cut in (6, 7)
    assert [line for line in told if "rows that an earlier run read otherwise" in line] == [
        f"ann: of blocks of 3 rows at least (training.least_rows), some have rows that an earlier run read otherwise: "
        f"{10 - cut} are left out"
    ]


def test_rows_that_are_read_otherwise_together_hide_each_other(tmp_path: Path) -> None:
    rows = [{"text": f"a row of more words {n}", "label": 0} for n in range(4)] + [text(n) for n in range(10, 16)]
    assert read_to(tmp_path, rows, 99, 12, 99) == [10, 10, 10]


def test_row_that_two_of_three_lengths_cut(tmp_path: Path) -> None:
    """Read to 10, four rows are others than to 99, and one is another than to 12."""
    rows = [{"text": f"a row of more words {n}", "label": 0} for n in range(3)]
    rows += [{"text": "eleven bytes"[:11], "label": 1}, *(text(n) for n in range(10, 16))]
    first, cut, more = read_to(tmp_path, rows, 99, 12, 10)
    assert (first, cut) == (10, 10)
    assert more == 10, "all four are others than in any run before"


def test_plan_that_sent_nothing_has_no_reading(tmp_path: Path) -> None:
    rows = [{"text": "a row of more words", "label": 0}, *(text(n) for n in range(10, 19))]
    assert len(trained(behind(tmp_path, rows), rows)) == 10
    assert len(trained(behind(tmp_path, rows), rows, length=12)) == 10


# --- the record ---------------------------------------------------------------------------------------------------


def test_record_is_of_the_site_alone(tmp_path: Path) -> None:
    rows = [text(n) for n in range(6)]
    trained(behind(tmp_path, rows), rows)
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    assert b"row 1" not in (tmp_path / FILE).read_bytes()


@pytest.mark.parametrize("content", [None, b"", b"something else"])
def test_record_that_is_missing_or_damaged(tmp_path: Path, content: bytes | None) -> None:
    rows = [text(n) for n in range(6)]
    trained(behind(tmp_path, rows), rows)
    (tmp_path / CONSENTED).touch()
    (tmp_path / FILE).unlink()
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"--state: .* is (missing|damaged).* take a copy of it, or remove behind\.rows"
    ):
        behind(tmp_path, rows).begin()
    (tmp_path / CONSENTED).unlink()
    (tmp_path / FILE).unlink(missing_ok=True)
    behind(tmp_path, rows).begin()


def test_other_columns_are_refused(tmp_path: Path) -> None:
    behind(tmp_path, []).begin()
    with pytest.raises(ConfigError, match=r"--contract: .* other columns than label, text, .* or remove behind\.rows"):
        behind(tmp_path, [], columns=("text", "label", "ward")).begin()


def test_seed_is_for_one_work_over_restarts(tmp_path: Path) -> None:
    behind(tmp_path, []).begin()
    assert behind(tmp_path, []).refused(3, "one") is None
    assert behind(tmp_path, []).note(3, "one") is None
    assert behind(tmp_path, []).note(3, "one") is None
    for again in (behind(tmp_path, []).refused, behind(tmp_path, []).note):
        assert "seed: 3 was that of another configuration" in str(again(3, "two"))
    assert behind(tmp_path, []).note(4, "two") is None


# --- plans --------------------------------------------------------------------------------------------------------


def seeded(plan: Plan, seed: int, **sections: Any) -> Plan:
    changed = with_(plan, **sections)
    return replace(changed, run=f"run {seed}", config={**changed.config, "seed": seed})


def answered(here: Any, plan: Plan, request: Request) -> Reply:
    round = replace(request.round, seed=plan.config["seed"])
    identity = replace(request.identity, run=plan.run)
    return Reply.decode(here.answer("round", replace(request, identity=identity, round=round).encode()))


@pytest.mark.slow
def test_fractions_that_differ_by_a_row(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """The rows behind both uploads were the same but one: their difference was that row's gradient."""
    here, sets = desk(tmp_path, contract=SAFE, rows=ROWS), []
    for seed, fraction in enumerate([8 / 40, 7 / 40, 0.0, 9 / 40]):
        one = seeded(plan, seed, data={"validation_fraction": fraction})
        assert asked(here, one).refused == ""
        sets.append({example.ids for example in here.parties["ann"].member.train})
        assert answered(here, one, request_).upload
    assert [len(rows) for rows in sets] == [32, 40, 40, 32]
    assert sets[0] == sets[3]


@pytest.mark.slow
def test_lengths_of_which_one_cuts_a_single_row(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """With all rows in a step no seed matters, and the difference of both uploads was that row's gradients."""
    rows = [{**row, "text": row["text"] + " the film was" * (n == 17)} for n, row in enumerate(ROWS)]
    here, sets = desk(tmp_path, contract=SAFE, rows=rows), []
    for seed, length in enumerate([32, 8, 32, 6]):
        one = seeded(plan, seed, task={"max_length": length}, train={"batch_size": 40}, data={"validation_fraction": 0})
        assert asked(here, one).refused == ""
        sets.append(len(here.parties["ann"].member.train))
        assert answered(here, one, request_).upload
    assert sets == [40, 32, 40, 40]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("tested", [False, True], ids=["held-back", "test"])
def test_scores_by_lengths_of_which_one_cuts_a_single_row(
    plan: Plan, request_: Request, tmp_path: Path, desk: Make, tested: bool
) -> None:
    """Scores alone, of the same model: their difference was of that row. Nothing is ever trained."""
    rows = [{**row, "text": row["text"] + " the film was" * (n == 17)} for n, row in enumerate(ROWS)]
    own = {"rows": reviews(40, 5), "tests": {"ann": rows}} if tested else {"rows": rows}
    counts = []
    for seed, length in enumerate([32, 8, 32]):
        here = desk(tmp_path, contract=SAFE, **own)
        one = seeded(plan, seed, task={"max_length": length}, data={"validation_fraction": 0.0 if tested else 0.4})
        assert asked(here, one).refused == ""
        assert answered(here, one, replace(request_, scores=True)).scores
        party = here.parties["ann"]
        counts.append(len(party.scored) + (0 if tested else len(party.member.train)))
    assert counts == [40, 32, 40]


def test_scores_on_a_test_row_more(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    rows, told = reviews(21, 5), list[str]()
    for tests, counts in ((rows[:20], {20}), (rows, {20}), (rows[1:20], {8, 12})):
        here = desk(tmp_path, told, contract=SAFE, rows=ROWS, tests={"ann": tests})
        assert asked(here, plan).refused == ""
        (scores, _) = (answered(here, plan, replace(request_, scores=True)).scores or {}).values()
        assert scores["examples"] in counts
    assert [line for line in told if "test rows of ann: 1 new rows wait until there are 8" in line] != []


def test_row_more_in_the_file(plan: Plan, tmp_path: Path, desk: Make) -> None:
    told: list[str] = []
    assert asked(desk(tmp_path, contract=SAFE, rows=ROWS[:39]), plan).clients == {"ann": 31}
    assert asked(desk(tmp_path, told, contract=SAFE, rows=ROWS), plan).clients == {"ann": 31}
    assert [line for line in told if "1 new rows wait until there are 8" in line] != []


@pytest.mark.slow
def test_seed_with_other_work(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """The first steps of both would be the same."""
    here = desk(tmp_path, contract=SAFE, rows=ROWS)
    steps = [with_(plan, train={"local_steps": n, "local_epochs": None, "batch_size": 1}) for n in (8, 9)]
    assert asked(here, steps[0]).refused == ""
    first = answered(here, steps[0], request_)
    assert first.upload
    for refused in (steps[1], with_(plan, train={"lr": 0.5}), with_(plan, task={"max_length": 31})):
        assert "take another seed" in asked(here, refused).refused
    again = desk(tmp_path, contract=SAFE, rows=ROWS)
    assert asked(again, replace(steps[0], run="another")).refused == ""
    assert answered(again, replace(steps[0], run="another"), request_).loss == first.loss


def test_plan_that_sent_nothing_has_no_seed(plan: Plan, tmp_path: Path, desk: Make) -> None:
    here = desk(tmp_path, contract=SAFE, rows=ROWS)
    assert asked(here, plan).refused == ""
    assert asked(here, with_(plan, train={"lr": 0.5})).refused == ""


def test_contract_that_accepts_repeats(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    here = desk(tmp_path, contract=contract(), rows=ROWS)
    for fraction, count in ((8 / 40, 32), (7 / 40, 33)):
        one = with_(plan, data={"validation_fraction": fraction})
        assert asked(here, one).clients == {"ann": count}
        assert answered(here, one, request_).upload
    assert not (tmp_path / "state" / FILE).exists()


def test_plan_without_consent_makes_no_blocks(plan: Plan, tmp_path: Path, desk: Make) -> None:
    """Nor does a look at it write anything."""
    here = desk(tmp_path, contract=SAFE, rows=ROWS[:39])
    assert here.joining.offer(plan).examples == {"ann": 31}
    assert not (tmp_path / "state" / FILE).exists()
    here = desk(tmp_path, contract=SAFE, rows=ROWS[:39], consent=lambda offer: False)
    assert "has not consented" in asked(here, plan).refused
    assert asked(desk(tmp_path, contract=SAFE, rows=ROWS), plan).clients == {"ann": 32}


def test_site_with_a_past_and_no_record(plan: Plan, tmp_path: Path, desk: Make) -> None:
    assert asked(desk(tmp_path, contract=contract(), rows=ROWS), plan).clients
    told: list[str] = []
    assert "as it is: --state" in asked(desk(tmp_path, told, contract=SAFE, rows=ROWS), plan).refused
    assert "is missing, and without it nobody knows which rows are behind earlier uploads" in told[-1]


def test_client_without_a_whole_block(plan: Plan, tmp_path: Path, desk: Make) -> None:
    assert asked(desk(tmp_path, contract=SAFE, rows=ROWS[:8]), plan).clients == {"ann": 8}
    assert "rows of ann: too few" in asked(desk(tmp_path, contract=SAFE, rows=ROWS[1:8]), plan).refused


@pytest.mark.parametrize("steps", [{"local_steps": 41, "local_epochs": None}, {"local_epochs": 1}])
def test_trainer_that_draws_single_rows_is_no_way_round(
    steps: dict[str, Any], plan: Plan, tmp_path: Path, desk: Make
) -> None:
    """In a step more a single row counts once more, and so does one in a last step of one row."""
    here = desk(tmp_path / "safe", contract=SAFE, rows=ROWS)
    others = with_(plan, train={"trainer": "transformers", "batch_size": 3, **steps})
    assert "train.trainer: its own draws of rows, and its owner allows blocks" in asked(here, others).refused
    assert asked(desk(tmp_path / "open", contract=contract(), rows=ROWS), others).refused == ""


def test_private_steps_without_noise_are_no_way_round(plan: Plan, tmp_path: Path, desk: Make) -> None:
    """They draw single rows. Noise that counts protects each row, and needs no blocks."""
    pytest.importorskip("dp_accounting")
    privacy = {"unit": "example", "noise": 1.0, "clip": 1.0, "delta": 1e-5, "adversary": "server"}
    here = desk(tmp_path, contract=SAFE, rows=ROWS)
    private = with_(
        plan,
        clients={"weighting": "uniform"},
        evaluation={"diagnostics_every": 0},
        train={"packing": False, "length_grouping": False, "max_grad_norm": 0.0},
        task={"labels": ["neg", "pos"]},
        privacy=privacy,
        data={"validation_fraction": 7 / 40},
    )
    assert asked(here, private).clients == {"ann": 35}  # each row by its own digest, in no blocks of eight
    known = with_(private, privacy={"debug_seed": 3})
    assert "private steps: draws of single rows without noise" in asked(here, known).refused
