"""Problems of a model that show before its weights are loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, save
from family_runs import LABELS, configured

from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError
from rondo.models.forms.outline import look


@pytest.mark.parametrize(
    ("keys", "named"),
    [({}, []), ({"gguf_file": "m.gguf"}, ["model.gguf_file"]), ({"quantization": "int8"}, ["model.quantization"])],
)
def test_packages_are_missed_only_where_they_are_needed(
    keys: dict[str, str], named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("gguf", "torchao"):
        monkeypatch.setitem(sys.modules, package, None)
    config = configured(
        save(FAMILIES["BERT"], "sequence-classification", tmp_path), "sequence-classification", ["query"]
    )
    config = config.model_copy(update={"model": config.model.model_copy(update=keys)})
    try:
        problems = look(config, LABELS).problems
    except ConfigError as error:
        problems = error.problems
    assert [problem.path for problem in problems] == named


@pytest.mark.parametrize(
    ("task", "refused"),
    [
        ({"kind": "sequence-classification", "text": "text", "label": "label"}, True),
        ({"kind": "question-answering", "context": "c", "question": "q", "answers": "a"}, False),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_model_of_the_last_token_finds_answers_and_no_classes(
    task: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    folder = save(FAMILIES["XLNet"], "sequence-classification", tmp_path)
    config = configured(folder, "sequence-classification", ["layer_1", "layer_2"])
    config = config.model_copy(update={"task": TaskConfig.model_validate({**task, "max_length": 32})})
    problems = look(config, LABELS if refused else ()).problems
    words = "it classifies by a row's last token (XLNet), and rows are padded behind it: name another"
    assert [problem.message for problem in problems] == [words] * refused
