"""Groups of runs: seeds of one configuration are one, and each has a name of its own."""

from __future__ import annotations

from page_runs import recorded
from rondo.report.page.groups import differences, grouped, shared


def test_seeds_of_one_configuration_are_one_group() -> None:
    groups = grouped([recorded("b", seed=1), recorded("a", seed=0), recorded("c", algorithm="rolora")])
    assert [(group.label, group.seeds) for group in groups] == [("fedit", [0, 1]), ("rolora", [0])]


def test_groups_of_one_method_are_named_by_their_differences() -> None:
    groups = grouped([recorded("a", sets=["train.lr=0.1"]), recorded("b", sets=["train.lr=0.2"])])
    assert [group.label for group in groups] == ["fedit lr=0.1", "fedit lr=0.2"]


def test_groups_of_a_comparison_have_its_labels() -> None:
    assert [group.label for group in grouped([recorded("a", label="fedavg:whole")])] == ["fedavg:whole"]


def test_workers_make_no_other_group() -> None:
    groups = grouped([recorded("a"), recorded("b", seed=1, sets=["simulation.engine=ray", "simulation.workers=3"])])
    assert [group.seeds for group in groups] == [[0, 1]]


def test_difference_names_the_value_of_each_group_and_the_common_one() -> None:
    rates = ("0.1", "0.2", "0.1")
    runs = [
        recorded(str(i), algorithm=name, sets=[f"train.lr={lr}"])
        for i, (name, lr) in enumerate(zip(("fedit", "rolora", "ffa-lora"), rates, strict=True))
    ]
    rows = {row.key: row for row in differences(grouped(runs))}
    assert rows["train.lr"].values == ["0.1", "0.2", "0.1"]
    assert rows["train.lr"].common == "0.1"
    assert set(rows) == {"algorithm.name", "train.lr"}
    assert "train.lr" not in dict(shared(grouped(runs)))
