"""The two parts of a trial, each in its own sandbox: the solver has the code under test, the tester has the tests. Run
as a script; it imports the standard library only, and nothing of Rondo.

The tester calls a stub of the function: its arguments go to the solver as plain values, and the solver's result
comes back as a plain value. So the code under test never shares a process with the tests. It cannot read them, replace
what they are made of, or say that they have passed; all it can do is to answer calls.

Values are None, bool, int, float, complex, str, bytes, list, tuple, dict, set and frozenset. An instance of a
subclass becomes one of its base class, without a comparison of its own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import types
from collections.abc import Callable
from typing import Any

_PLAIN: dict[type, Callable[[Any], Any]] = {
    bool: lambda v: bool.__bool__(v),
    int: lambda v: _integer(int.__int__(v)),
    float: lambda v: ["float", float.__repr__(v)],
    complex: lambda v: ["complex", complex.__repr__(v)],
    str: lambda v: ["str", str.__str__(v)],
    bytes: lambda v: ["bytes", list(bytes.__iter__(v))],
}
_DIGITS = 4000
"""Decimal digits of a number beyond which JSON's reader may refuse it."""
NOBODY = 65534
"""The user, and the group, that root becomes."""
_LARGEST_LINE = 16 * 2**20
"""Bytes of one call, or of one answer."""
_GROUPS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}


def _integer(value: int) -> Any:
    return value if abs(value) < 10**_DIGITS else ["int", hex(value)]


def to_json(value: Any) -> Any:
    """A plain value as JSON. Raises TypeError for any other."""
    if value is None:
        return None
    for kind, convert in _PLAIN.items():
        if issubclass(type(value), kind):  # not isinstance, which a class can deceive
            return convert(value)
    for kind, name in _GROUPS.items():
        if issubclass(type(value), kind):
            return [name, [to_json(item) for item in kind.__iter__(value)]]  # type: ignore[attr-defined]
    if issubclass(type(value), dict):
        return ["dict", [[to_json(k), to_json(v)] for k, v in dict.items(value)]]
    raise TypeError(f"{type(value).__name__} is no plain value")


def from_json(content: Any) -> Any:
    """The value of :func:`to_json`. Raises ValueError or TypeError for anything else."""
    if content is None or isinstance(content, bool | int):
        return content
    name, inner = content
    if name == "int":
        return int(inner, 16)
    if name == "str" and isinstance(inner, str):
        return inner
    if name in ("float", "complex"):
        return float(inner) if name == "float" else complex(inner)
    if name == "bytes":
        return bytes(inner)
    if name == "dict":
        return {from_json(k): from_json(v) for k, v in inner}
    make = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[name]
    return make(from_json(item) for item in inner)


def main() -> None:
    """Read the task, take the limits, and play a part between the standard input and output."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        task = json.load(file)
    reading, writing, verdict = (os.fdopen(os.dup(n), mode) for n, mode in ((0, "rb"), (1, "wb"), (2, "wb")))
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for descriptor in range(3):
            os.dup2(nothing.fileno(), descriptor)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _limit(task["limits"])

    def receive() -> Any:
        line = reading.readline(_LARGEST_LINE)
        if not line.endswith(b"\n"):
            raise EOFError(f"no answer: over a limit of time, memory or {_LARGEST_LINE >> 20} MiB, or it ended")
        return json.loads(line)

    def send(content: Any) -> None:
        writing.write(json.dumps(content).encode() + b"\n")
        writing.flush()

    if task["part"] == "solver":
        verdict.close()
        _solve(task, receive, send)
    else:
        verdict.write(json.dumps({"verdict": _test(task, receive, send)}).encode())
        verdict.close()
        os._exit(0)


def _limit(limits: dict[str, int]) -> None:
    """Limits that cannot be raised again. No further process or thread can be started."""
    for kind, value in (
        (resource.RLIMIT_CPU, limits["processor_seconds"]),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["folder"]),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _namespace(name: str) -> dict[str, Any]:
    """The namespace of a new module that code finds by its name, as dataclasses do."""
    sys.modules[name] = types.ModuleType(name)
    return vars(sys.modules[name])


def _solve(task: dict[str, str], receive: Callable[[], Any], send: Callable[[Any], None]) -> None:
    """Run ``task["code"]`` and answer calls of its function ``task["entry_point"]``."""
    space = _namespace("__solution__")
    failure = None
    try:
        exec(compile(task["code"], "<solution>", "exec"), space)
    except BaseException as error:
        failure = _named(error)
    while True:
        args, kwargs = from_json(receive())
        try:
            if failure is not None:
                raise RuntimeError(failure)
            answer = {"value": to_json(space[task["entry_point"]](*args, **kwargs))}
        except BaseException as error:
            answer = {"error": failure or _named(error)}
        send(answer)


class NoAnswer(Exception):
    """The code under test raised an error."""


def _test(task: dict[str, str], receive: Callable[[], Any], send: Callable[[Any], None]) -> str | None:
    """Run the tests ``task["test"]`` of ``task["entry_point"]``, with all that the prompt defines. The verdict: None,
    or the reason of a failure."""

    def candidate(*args: Any, **kwargs: Any) -> Any:
        send(to_json((args, kwargs)))
        answer = receive()
        if "error" in answer:
            raise NoAnswer(str(answer["error"])[:500])
        return from_json(answer["value"])

    space = _namespace("__tests__")
    try:
        exec(compile(task["prompt"], "<prompt>", "exec"), space)
        space[task["entry_point"]] = candidate
        exec(compile(task["test"], "<tests>", "exec"), space)
        space["check"](candidate)
    except BaseException as error:
        return _named(error)
    return None


def _named(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except BaseException:  # code under test may define its own errors
        return type(error).__name__


if __name__ == "__main__":
    main()
