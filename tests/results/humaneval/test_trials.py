"""Trials of code: values that go between the two sandboxes, and machines without one."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import pytest

from rondo.results.humaneval.parts import from_json, to_json
from rondo.results.humaneval.sandbox import Trial, Unavailable, attempt, check

RIGHT = "def square(x):\n    return x * x\n"
TEST = "def check(candidate):\n    assert candidate(2) == 4\n"


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            0,
            -(10**30),
            -(10**3999) + 1,
            1.5,
            float("inf"),
            -0.0,
            2j,
            "a\ud800 é",
            b"\x00\xff",
            [1, [2]],
            (1, (2,)),
        ),
        *({1, 2}, {"a": (1, None), 2: [True]}, frozenset({(1, 2)}), [], {}, "", ((), [])),
    ],
)
def test_plain_values_come_back(value: Any) -> None:
    found = from_json(json.loads(json.dumps(to_json(value))))
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_number_of_any_length_comes_back() -> None:
    for value in (10**4000, -(10**4000), 7**9999):
        assert from_json(json.loads(json.dumps(to_json([value])))) == [value]


def test_derived_values_become_plain() -> None:
    pair = namedtuple("pair", "a b")

    class Same(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    for value, plain in ((Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(a=1), {"a": 1}), (pair(1, 2), (1, 2))):
        assert (found := from_json(to_json(value))) == plain
        assert type(found) in (dict, tuple)
    assert type(from_json(to_json(Same(3)))) is int
    assert from_json(to_json(Same(3))) != 4


@pytest.mark.parametrize("value", [object(), iter([1]), range(3), lambda: 0, int, {"a": object()}])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="is no plain value"):
        to_json(value)


@pytest.fixture
def sandbox() -> None:
    """Skips the test if the machine has no sandbox."""
    try:
        check()
    except Unavailable as why:
        pytest.skip(f"no sandbox: {why}")


def test_tests_may_use_what_the_prompt_defines(sandbox: None) -> None:
    prompt = "import math\ndef area(r):\n    return math.pi * r\n\n\ndef square(x):\n    '''The square.'''\n"
    test = "def check(candidate):\n    assert area(2) == 2 * math.pi\n    assert candidate(x=3) == 9\n"
    assert attempt(Trial(f"{prompt}    return x * x\n", prompt, test, "square")) is None
    assert "AssertionError" in str(attempt(Trial(f"{prompt}    return x\n", prompt, test, "square")))


SQUARES = {
    "dataclass": """
from dataclasses import dataclass
@dataclass
class N:
    x: int
def square(x):
    return N(x).x ** 2
""",
    "named module": """
import sys
def square(x):
    return sys.modules[__name__].other(x)
def other(x):
    return x * x
""",
    "bytes to the output": """
import sys
def square(x):
    sys.stdout.buffer.write(b"x")
    return x * x
""",
}


@pytest.mark.parametrize("name", SQUARES)
def test_odd_but_right_solution_passes(name: str, sandbox: None) -> None:
    assert attempt(Trial(SQUARES[name], "def square(x):\n    pass\n", TEST, "square")) is None


def test_number_of_thousands_of_digits_is_an_answer(sandbox: None) -> None:
    test = "def check(candidate):\n    assert candidate(10 ** 5000) == 10 ** 10000\n"
    assert attempt(Trial(RIGHT, "def square(x):\n    pass\n", test, "square")) is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (None, "bubblewrap is not installed: apt install bubblewrap"),
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "No permissions to create new namespace"),
        ("exit 0", "the tests gave no verdict"),
    ],
)
def test_machine_without_a_sandbox_is_refused(
    program: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if program is not None:
        fake = tmp_path / "bwrap"
        fake.write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{program}\n")
        fake.chmod(0o755)
    with pytest.raises(Unavailable, match=reason):
        check()
