"""A method with a bug: the laws name the line of its file, and the command says it once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rondo.cli.algorithms import law_lines
from rondo.testing import LawResult, check_algorithm

METHOD = """
from dataclasses import dataclass

from rondo.algorithm import Algorithm, ServerState, Traits
from rondo.params import pick, up


@dataclass(frozen=True)
class Broken(Algorithm[ServerState]):
    traits = Traits(exact=False)

    def init(self, params, weights, round):
        return ServerState(params)

    def client_update(self, shared, local, trainer):
        fit = trainer.fit(shared.params, train=up)
        return trainer.upload(pick(fit.parms, up)), local
"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[LawResult]:
    path = tmp_path / "broken.py"
    path.write_text(METHOD)
    spec = importlib.util.spec_from_file_location("broken_method", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "broken_method", module)
    spec.loader.exec_module(module)
    return check_algorithm(module.Broken(), seeds=[0])


def test_law_names_the_line_of_the_methods_file(results: list[LawResult]) -> None:
    failed = [result for result in results if result.outcome == "failed"]
    assert len(failed) > 10
    place = "broken.py, line 17, in client_update: return trainer.upload(pick(fit.parms, up)), local"
    assert {result.place for result in failed} == {place}


def test_one_error_is_said_once(results: list[LawResult]) -> None:
    lines = list(law_lines(results))
    (said,) = (line for line in lines if "AttributeError" in line)
    assert "'Fit' object has no attribute 'parms'" in said
    assert sum("broken.py, line 17" in line for line in lines) == 1
    failed = [result.law for result in results if result.outcome == "failed"]
    assert f"    laws: {', '.join(failed)}" in lines


def test_errors_of_single_laws_stay_in_their_lines() -> None:
    broken = LawResult("a", "failed", "KeyError: 'x' (TwoLayers, seed 0)", "KeyError: 'x'", "m.py, line 3, in f: g()")
    lines = list(law_lines([broken, LawResult("b", "failed", "differs"), LawResult("c", "passed", "1e-16")]))
    assert [line.split()[0] for line in lines] == ["failed", "m.py,", "failed", "passed"]
    assert "KeyError: 'x' (TwoLayers, seed 0)" in lines[0]
