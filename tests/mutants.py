"""Change the code in single places, and count the changes that the tests of its room see: ``make mutants``.

    python tests/mutants.py ROOM... [--sample 60] [--seed 0] [--seconds 60] [--out mutants]

A room is a folder or file of ``src/rondo``; without any, every room is taken. From each, ``--sample`` places are drawn
by the seed. No file is changed: an import hook compiles each drawn place as a choice between what it is and its mutant,
the tests are collected once, one run notes which tests come by which place, and each mutant then has a fork of its own
in which those tests run, the quickest first, until one fails or ``--seconds`` are over. Places that run at import, such
as a field's default, and whatever tests start in other processes, are not reached.

``--out`` holds a JSON file per room. A later call goes on where it stopped, and tries survivors again with ``--again``;
verdicts that are set by hand there (``"equivalent": "why"``) are kept.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "rondo"
ROOMS: Mapping[str, Sequence[str]] = {
    "doctor": ("doctor",),
    "lowrank.py": ("test_lowrank.py", "golden"),
    "own_code.py": ("test_own_code.py", "test_process.py"),
    "process.py": ("test_own_code.py", "test_process.py"),
    "messages.py": ("test_params.py", "test_algorithm.py", "test_lowrank.py", "engine/server"),
    "params.py": ("test_params.py", "test_algorithm.py", "algorithms", "golden"),
    "algorithm.py": ("test_params.py", "test_algorithm.py", "algorithms", "golden"),
    "algorithms": ("test_params.py", "test_algorithm.py", "algorithms", "golden"),
    "roles.py": ("test_params.py", "test_algorithm.py", "algorithms", "golden"),
    "testing": ("laws",),
    "report": ("report", "runs/watching", "study/test_compare.py"),
    "data": ("data", "config/test_bad_input.py", "runs/test_more_tests.py"),
    "results": ("results", "runs/test_more_tests.py", "runs/test_answering_run.py", "runs/test_whole_training.py"),
    "tasks": ("tasks",),
    "config": ("config", "cli"),
    "cli": ("config", "cli"),
    "engine": (
        "engine/test_crew.py",
        "engine/test_faults.py",
        "engine/test_clients_elsewhere.py",
        "engine/test_simulation.py",
    ),
    "engine/client": ("engine/client", "laws/test_least_squares_laws.py"),
    "engine/server": ("engine/server", "engine/test_simulation.py"),
    "engine/wire": (
        "engine/test_serialization.py",
        "engine/test_parcel.py",
        "engine/test_clients_elsewhere.py",
        "engine/server/test_admission.py",
    ),
    "models/forms": (
        "models/forms",
        "models/test_outline.py",
        "models/test_generation.py",
        "models/networks/test_whole_network.py",
        "runs/test_given.py",
        "config/test_bad_input.py",
    ),
    "models/kernels": ("models/kernels", "models/test_attention.py", "models/test_quantised.py"),
    "models/loading": (
        "models/loading",
        "models/test_decoder_inputs.py",
        "models/test_quantised.py",
        "config/test_bad_input.py",
    ),
    "models/networks": ("models/networks", "models/test_packing.py"),
    "models/shortcuts": ("models/shortcuts",),
    "runs": (
        "runs/test_runner.py",
        "runs/test_resume.py",
        "runs/test_card.py",
        "runs/test_given.py",
        "runs/test_assemble.py",
        "runs/test_collector.py",
        "runs/test_samples.py",
        "runs/test_wrapping.py",
        "runs/watching/test_progress.py",
    ),
    "runs/storage": ("runs/storage",),
    "records": ("records", "runs/test_costs.py"),
    "privacy": ("privacy/steps", "privacy/test_guarantee.py", "runs/test_example_privacy.py"),
    "privacy/accounts": ("privacy/accounts", "runs/test_example_privacy.py"),
    "privacy/masking": ("privacy/masking",),
    "privacy/mechanism": ("privacy/mechanism", "privacy/steps"),
    "privacy/sums": ("privacy/sums", "privacy/masking/test_fixed_point.py"),
    "study": ("study",),
    "runs/watching": ("runs/watching",),
    "runs/workers": ("runs/workers",),
    "federation": ("federation",),
    "federation/identity": ("federation", "cli/test_federate_keys.py", "cli/test_federate_sites.py"),
    "federation/server": ("federation", "cli/test_federate_keys.py", "cli/test_federate_sites.py"),
    "federation/site": ("federation", "cli/test_federate_keys.py", "cli/test_federate_sites.py"),
}
"""The tests of each room; rooms with the same tests share a process. A room's folders that are rooms of their own are
not part of it."""

PYTEST = ("-o", "addopts=-m 'not slow'", *(f"-pno:{plugin}" for plugin in ("xdist", "cacheprovider", "terminal")))
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def mutations(node: ast.AST, constants: frozenset[str]) -> Iterator[tuple[str, ast.AST]]:
    """The single changes of one node: a word for each, and the node that takes its place."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield "compare", ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield "and/or", ast.BoolOp(SWAPPED[type(node.op)](), node.values)
        for index in range(len(node.values)):
            rest = node.values[:index] + node.values[index + 1 :]
            yield f"without part {index}", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "other truth", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "plus 1", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in constants:
        yield "plus 1", ast.BinOp(node, ast.Add(), ast.Constant(1))
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SWAPPED:
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
        texts = any(isinstance(side, ast.JoinedStr | ast.Constant) and not number(side) for side in sides)
        if not texts:  # a path or a text: any change is an error
            changed = copy.copy(node)
            changed.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
            yield "operator", changed
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "no call", ast.Pass()
    elif (
        isinstance(node, ast.If)
        and not node.orelse
        and isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue)
    ):
        yield "no guard", ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "return None", ast.Return(ast.Constant(None))


def number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


@dataclass
class Places(ast.NodeTransformer):
    """Every place of a file's functions, named by line, column and change; the drawn ones become choices."""

    path: str
    drawn: frozenset[str] = frozenset()
    names: dict[str, str] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()

    def visit_Module(self, node: ast.Module) -> ast.Module:
        values = {each.targets[0]: each.value for each in node.body if isinstance(each, ast.Assign)}
        self.constants = frozenset(
            name.id for name, value in values.items() if isinstance(name, ast.Name) and number(value)
        )
        for function in outermost(node):
            self.change_function(function)
        return node

    def change_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        body = [self.visit(statement) for statement in node.body]
        arguments = [*node.args.posonlyargs, *node.args.args][::-1]
        defaults = [
            *zip(arguments, node.args.defaults[::-1], strict=False),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        for argument, default in reversed(defaults):
            if default is not None and number(default):
                body.insert(0, self.other_default(argument.arg, default))
        node.body = [statement for statement in body if statement is not None]

    visit_FunctionDef = visit_AsyncFunctionDef = lambda self, node: self.change_function(node) or node

    def other_default(self, name: str, default: ast.Constant) -> ast.stmt | None:
        key, ((word, other),) = name, [*mutations(default, self.constants)]
        place = self.place(default, f"default {word}", f"{key}={ast.unparse(default)}", ast.unparse(other))
        if place not in self.drawn:
            return None
        text = f"if _mutant({place!r}) and {name} == {ast.unparse(default)}: {name} = {ast.unparse(other)}"
        return ast.parse(text).body[0]

    def place(self, node: Any, word: str, before: str, after: str) -> str:
        name = f"{self.path}:{node.lineno}:{node.col_offset} {word}"
        self.names[name] = f"{before.splitlines()[0]}  ->  {after.splitlines()[0]}"
        return name

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        return node  # its words

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.value = node.value and self.visit(node.value)
        return node

    def visit_Slice(self, node: ast.Slice) -> ast.AST:
        return self.generic_visit(node)

    def visit(self, node: ast.AST) -> Any:
        changed = super().visit(node)
        if changed is not node or not isinstance(node, ast.expr | ast.stmt):
            return changed
        before = ast.unparse(node)
        for word, other in mutations(node, self.constants):
            place = self.place(node, word, before, ast.unparse(other))
            if place in self.drawn:
                test = ast.Call(ast.Name("_mutant", ast.Load()), [ast.Constant(place)], [])
                if isinstance(node, ast.stmt):
                    changed = ast.If(test, [copy.deepcopy(other)], [changed])
                else:
                    changed = ast.IfExp(test, copy.deepcopy(other), changed)
        return changed


def outermost(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        elif not isinstance(child, ast.expr):
            yield from outermost(child)


def files_of(room: str) -> list[Path]:
    place = SOURCE / room
    if place.is_file():
        return [place]
    others = [SOURCE / other for other in ROOMS if other != room and other.startswith(room + "/")]
    return [path for path in sorted(place.rglob("*.py")) if not any(other in path.parents for other in others)]


def places_of(room: str) -> dict[str, str]:
    """Every place of a room, by name, with what it is and becomes."""
    names = {}
    for path in files_of(room):
        places = Places(str(path.relative_to(SOURCE)))
        places.visit(ast.parse(path.read_text("utf-8")))
        names.update(places.names)
    return names


class Changed(importlib.machinery.SourceFileLoader):
    """Compiles a file of the room with its drawn places as choices."""

    def __init__(self, name: str, path: str, run: Run) -> None:
        super().__init__(name, path)
        self.run = run

    def get_code(self, fullname: str) -> CodeType:
        path = Path(self.path)
        tree = ast.parse(path.read_text("utf-8"))
        Places(str(path.relative_to(SOURCE)), frozenset(self.run.drawn)).visit(tree)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: Any) -> None:
        module._mutant = self.run.comes_by
        super().exec_module(module)


class Room:
    """The drawn mutants of one room, and their results, which a file keeps."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        places = places_of(name)
        self.name, self.places = name, len(places)
        drawn = sorted(places)
        random.Random(options.seed).shuffle(drawn)  # so a larger sample contains a smaller one
        self.drawn = {place: places[place] for place in drawn[: options.sample]}
        self.file = Path(options.out) / f"{name.replace('/', '-').removesuffix('.py')}-{options.seed}.json"
        self.results: dict[str, dict[str, Any]] = json.loads(self.file.read_text("utf-8")) if self.file.exists() else {}
        if options.again:
            alive = {p for p, r in self.results.items() if r["verdict"] != "killed" and "equivalent" not in r}
            self.results = {p: r for p, r in self.results.items() if p not in alive}
            self.drawn |= {place: places[place] for place in alive & set(places)}  # also where the draw has changed

    def save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.with_suffix(".part").write_text(json.dumps(self.results, indent=1), "utf-8")
        self.file.with_suffix(".part").replace(self.file)


@dataclass
class Run(importlib.abc.MetaPathFinder):
    """The mutants of rooms that have the same tests: the import hook, and the pytest plugin that runs them."""

    rooms: list[Room]
    seconds: float
    active: str = ""
    seen: set[str] = field(default_factory=set)
    reached: dict[str, list[str]] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None or Path(spec.origin) not in self.files:
            return None
        return importlib.util.spec_from_file_location(fullname, loader=Changed(fullname, spec.origin, self))

    def comes_by(self, place: str) -> bool:
        self.seen.add(place)
        return place == self.active

    def __post_init__(self) -> None:
        self.files = {path for room in self.rooms for path in files_of(room.name)}
        self.drawn = {place: what for room in self.rooms for place, what in room.drawn.items()}

    # pytest's hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Failed("some tests cannot be collected")
        items = {item.nodeid: item for item in session.items}
        begun = time.monotonic()
        for line in self.fork(lambda: self.note(session, [*items.values()]), 3600):
            test, took, failed, places = json.loads(line)
            self.took[test] = took
            for place in places if not failed else ():
                self.reached.setdefault(place, []).append(test)
        names = " ".join(room.name for room in self.rooms)
        print(f"{names}: {len(items)} tests in {time.monotonic() - begun:.0f} s", flush=True)
        for room in self.rooms:
            for place in [place for place in room.drawn if place not in room.results]:
                reaching = [items[test] for test in self.reached.get(place, ())]
                room.results[place] = self.tried(session, place, reaching)
                print(f"{room.results[place]['verdict']:9} {place}  {self.drawn[place]}", flush=True)
                room.save()
        return True

    def note(self, session: pytest.Session, items: list[pytest.Item]) -> Iterator[str]:
        for index, item in enumerate(items):
            self.seen.clear()
            failures, begun = session.testsfailed, time.monotonic()
            follower = items[index + 1] if index + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=follower)
            took = time.monotonic() - begun
            yield json.dumps([item.nodeid, took, session.testsfailed > failures, sorted(self.seen)])

    def tried(self, session: pytest.Session, place: str, items: list[pytest.Item]) -> dict[str, Any]:
        begun = time.monotonic()

        def tests() -> Iterator[str]:
            self.active = place
            for item in sorted(items, key=lambda item: self.took[item.nodeid]):
                if time.monotonic() - begun > self.seconds:
                    yield "late"
                    return
                yield item.nodeid
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                if session.testsfailed:
                    yield "failed"
                    return
            yield "through"

        *run, end = self.fork(tests, 2 * self.seconds)
        verdict = {"through": "survived", "late": "survived"}.get(end, "killed") if items else "unreached"
        result = {"verdict": verdict, "what": self.drawn[place], "tests": len(items), "run": len(run)}
        if verdict == "killed":  # an end that is a test: the process died in it, or it went on for too long
            result["by"] = run[-1] if end == "failed" else f"{end} (no end)"
        return result

    def fork(self, lines: Any, seconds: float) -> Iterator[str]:
        """The lines that a function yields in a child, which is killed after so many seconds."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            with os.fdopen(writing, "w") as pipe:
                try:
                    for line in lines():
                        pipe.write(line + "\n")
                        pipe.flush()
                finally:
                    pipe.flush()
                    os._exit(0)
        os.close(writing)
        end, rest = time.monotonic() + seconds, b""
        while (left := end - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
            piece = os.read(reading, 1 << 16)
            if not piece:
                break
            *complete, rest = (rest + piece).split(b"\n")
            yield from (line.decode() for line in complete)
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def run_rooms(rooms: list[Room], options: argparse.Namespace) -> None:
    """Try the drawn mutants of rooms with the same tests that have no result yet."""
    run = Run(rooms, options.seconds)
    sys.meta_path.insert(0, run)
    for path in sorted(run.files):
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(module)
    tests = [str(ROOT / "tests" / place) for place in ROOMS[rooms[0].name]]
    pytest.main([*PYTEST, *tests], plugins=[run])


def print_table(rooms: list[Room]) -> None:
    print("| room | places | sampled | killed | equivalent | survived |\n|---|---|---|---|---|---|")
    for room in rooms:
        killed = sum(result["verdict"] == "killed" for result in room.results.values())
        equal = sum("equivalent" in result for result in room.results.values())
        tried = len(room.results)
        share = f" ({100 * killed / (tried - equal):.0f} %)" if tried > equal else ""
        print(f"| {room.name} | {room.places} | {tried} | {killed}{share} | {equal} | {tried - killed - equal} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], metavar="ROOM")
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", default=str(ROOT / "mutants"))
    parser.add_argument("--again", action="store_true", help="try what was not killed again")
    parser.add_argument("--table", action="store_true", help="only print the results as a table")
    options = parser.parse_args()
    rooms = [Room(name, options) for name in options.rooms or ROOMS]
    for _, group in itertools.groupby(rooms, lambda room: ROOMS[room.name]) if not options.table else ():
        if (child := os.fork()) == 0:  # a process for each, with its own modules
            run_rooms([*group], options)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
    print_table([Room(name, options) for name in options.rooms or ROOMS])


if __name__ == "__main__":
    main()
