"""Trials of code: values that go between the two jails, and the weak mode."""

from __future__ import annotations

import json
import os
from collections import Counter, OrderedDict, namedtuple
from typing import Any

import pytest

from rondo.results.humaneval.parts import from_json, to_json
from rondo.results.humaneval.sandbox import Limits, Mode, Trial, Unavailable, attempt, check

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


def need(mode: Mode) -> None:
    """Skip the test where the machine has no such jail, or root's Python is for root alone."""
    try:
        check(mode)
    except Unavailable as why:
        pytest.skip(f"no jail: {why}")


@pytest.mark.parametrize("mode", ["namespaces", "weak"])
def test_tests_may_use_what_the_prompt_defines(mode: Mode) -> None:
    need(mode)
    prompt = "import math\ndef area(r):\n    return math.pi * r\n\n\ndef square(x):\n    '''The square.'''\n"
    test = "def check(candidate):\n    assert area(2) == 2 * math.pi\n    assert candidate(x=3) == 9\n"
    assert attempt(Trial(f"{prompt}    return x * x\n", prompt, test, "square"), mode) is None
    assert "AssertionError" in str(attempt(Trial(f"{prompt}    return x\n", prompt, test, "square"), mode))


def test_weak_mode_limits_processes_files_and_rights() -> None:
    need("weak")
    code = "import os\ndef square(x):\n    try:\n        os.fork()\n        return 'forked'\n    except OSError:\n"
    code += "        return [os.getuid(), os.listdir('.'), sorted(os.environ), os.getcwd()]\n"
    test = "def check(candidate):\n    raise ValueError(candidate(2))\n"
    found = str(attempt(Trial(code, "", test, "square"), "weak"))
    user = 65534 if os.geteuid() == 0 else os.getuid()
    assert found.startswith(f"ValueError: [{user}, [], ['HOME', 'TMPDIR'], '")
    sleeping = Trial("import time\ntime.sleep(60)\n", "", TEST, "square")
    assert attempt(sleeping, "weak", Limits(seconds=0.5)) == "no verdict within 0.5 s"


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
@pytest.mark.parametrize("mode", ["namespaces", "weak"])
def test_odd_but_right_solution_passes(name: str, mode: Mode) -> None:
    need(mode)
    assert attempt(Trial(SQUARES[name], "def square(x):\n    pass\n", TEST, "square"), mode) is None


@pytest.mark.parametrize("mode", ["namespaces", "weak"])
def test_number_of_thousands_of_digits_is_an_answer(mode: Mode) -> None:
    need(mode)
    test = "def check(candidate):\n    assert candidate(10 ** 5000) == 10 ** 10000\n"
    assert attempt(Trial(RIGHT, "def square(x):\n    pass\n", test, "square"), mode) is None


def test_tester_of_the_weak_mode_cannot_be_traced() -> None:
    """Both parts are of one user there: what the tester says would be the solver's to write."""
    need("weak")
    code = """
import ctypes, os
def square(x):
    libc, found = ctypes.CDLL(None, use_errno=True), []
    for pid in [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]:
        handle = libc.syscall(434, pid, 0)
        found += [(pid, fd) for fd in range(12) if handle >= 0 and libc.syscall(438, handle, fd, 0) >= 0]
    return found
"""
    test = "def check(candidate):\n    assert candidate(2) == []\n"
    assert attempt(Trial(code, "def square(x):\n    pass\n", test, "square"), "weak") is None
