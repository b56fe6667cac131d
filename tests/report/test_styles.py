"""A method has one colour, whatever stands beside it."""

from __future__ import annotations

from rondo.report.drawing import COLOURS, styles


def test_method_keeps_its_colour_in_any_order_and_company() -> None:
    both = styles(["rolora", "fedit"])
    assert both == styles(["fedit", "rolora"])
    assert styles(["fedit"])["fedit"] == both["fedit"]
    assert styles(["rolora", "ffa-lora", "fedsa-lora"])["rolora"] == both["rolora"]


def test_first_label_of_a_method_has_its_colour() -> None:
    varied = styles(["fedloru tau=10", "fedloru tau=1", "fedit"])
    assert varied["fedit"] == styles(["fedloru", "fedit"])["fedit"]
    assert varied["fedloru tau=1"] == styles(["fedloru", "fedit"])["fedloru"]


def test_colours_differ_while_there_are_some() -> None:
    names = ["fedit", "flexlora", "fedavg", "fedloru", "mine:Method", "other:Method", "ditto"]
    assert {number % COLOURS for number in styles(names).values()} == set(range(COLOURS))
    assert len(set(styles(map(str, range(30))).values())) == 30
