"""What is said of rows before training: names that look alike, test rows that are trained on, clients without rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import tiny
from outcomes import problems
from rondo.config.inputs import GIVEN, TaskConfig
from rondo.config.load import load
from rondo.data.client_rows import Dealt, deal_rows, resolved
from rondo.data.labels import find_labels
from rondo.data.remarks import _digest, remarks, trained_on, typed_marks
from rondo.data.sources import load as load_rows
from rondo.errors import ConfigError
from rondo.tasks.language.causal_lm import CausalLM
from small_runs import write_rows

Rows = Sequence[Mapping[str, Any]]


def rows(*labels: str, **columns: Any) -> list[dict[str, Any]]:
    return [{"text": f"text {i}", "label": label, **columns} for i, label in enumerate(labels)]


def config(folder: Path, train: Rows, test: Rows = (), **sections: Mapping[str, Any]) -> Any:
    data = {"source": str(write_rows(folder / "train.jsonl", list(train)))}
    if test:
        data["test_source"] = str(write_rows(folder / "test.jsonl", list(test)))
    tree = {"task": {"text": "text", "label": "label"}, "partition": {"kind": "iid", "clients": 1}, **sections}
    return load({**tree, "data": {**data, **sections.get("data", {})}})


def dealt(settings: Any) -> tuple[Any, Dealt]:
    source = load_rows(settings)
    settings = resolved(settings, source)
    return settings, deal_rows(settings, source, find_labels(settings, source))


def said(settings: Any) -> list[str]:
    settings, rows = dealt(settings)
    return list(remarks(settings, rows, trained_on(settings, rows)))


# --- names ---------------------------------------------------------------------------------------------------------


def test_labels_that_differ_by_blanks_or_unicode_form_are_one_class(tmp_path: Path) -> None:
    written = [" caf\u00e9", "cafe\u0301", "caf\u00e9\u00a0", "new  york", "new york ", "new york"]
    settings, found = dealt(config(tmp_path, rows(*written)))
    assert find_labels(settings, load_rows(settings)) == ("caf\u00e9", "new york")
    (line,) = list(remarks(settings, found, {}))
    assert line.startswith("labels are read without blanks at their ends and in one form of Unicode and numbers: ")
    assert f"{'new  york'!r} as 'new york'" in line


def test_persons_that_differ_by_case_only_are_named(tmp_path: Path) -> None:
    """Each would have an epsilon of its own."""
    train = [{**row, "who": who} for row, who in zip(rows("a", "b", "a"), ("bob", "BOB", "ann"), strict=True)]
    privacy = {"adversary": "server", "unit": "example", "clip": 1.0, "noise": 1.0, "delta": 1e-2, "group": "who"}
    clients = {"weighting": "uniform"}
    lines = said(config(tmp_path, train, privacy=privacy, clients=clients))
    assert "names of persons that differ by case only are 2 persons: 'BOB', 'bob'" in lines


def test_named_labels_and_columns_are_compared_in_one_form(tmp_path: Path) -> None:
    train = [{"text ": "a", "la\u0301bel": "x "}, {"text ": "b", "la\u0301bel": "y"}]
    task = {"text": "text", "label": "l\u00e1bel", "labels": ["x", " y"]}
    settings = config(tmp_path, train, task=task)
    with pytest.warns(UserWarning, match="'text ' as 'text'"):
        settings, found = dealt(settings)
    assert [row["l\u00e1bel"] for row in found.rows["client-0"]] == ["x ", "y"]


def test_columns_with_one_plain_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="differ by blanks, Unicode form or spelling of numbers only: rename one"):
        dealt(config(tmp_path, [{"text": "a", "text ": "b", "label": "x"}]))


def test_labels_that_differ_by_case_are_warned_of(tmp_path: Path) -> None:
    assert said(config(tmp_path, rows("Billing", "billing", "Billing", "billing", "other", "other"))) == [
        "labels that differ by case only are 2 classes: 'Billing', 'billing'"
    ]


def test_labels_of_one_row_are_warned_of(tmp_path: Path) -> None:
    assert said(config(tmp_path, rows("a", "a", "b"))) == ["label with a single training row: b"]


def test_clients_by_a_column_are_compared_in_one_form(tmp_path: Path) -> None:
    train = [{**row, "who": who} for row, who in zip(rows(*"abababab"), ["N", "N ", "n", "s"] * 2, strict=True)]
    settings, found = dealt(config(tmp_path, train, partition={"kind": "natural", "column": "who"}))
    assert {name: len(of) for name, of in found.rows.items()} == {"N": 4, "n": 2, "s": 2}
    assert list(remarks(settings, found, {})) == [
        "clients are read without blanks at their ends and in one form of Unicode and numbers: 'N ' as 'N'",
        "names of clients that differ by case only are 2 clients: 'N', 'n'",
    ]


# --- inputs against each other -------------------------------------------------------------------------------------


def test_test_rows_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    """By their inputs: another label makes it worse."""
    test = [*rows("a", "b"), {"text": "another", "label": "a"}, {"text": "text 2", "label": "b"}]
    assert said(config(tmp_path, rows(*"abab"), test)) == [
        "3 of 4 test rows are training rows too: their scores say how well rows are remembered"
    ]


@pytest.mark.parametrize("clients", ["sites", "sites/*.jsonl"])
def test_file_of_tests_among_the_clients_is_refused(clients: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south", "test"):
        write_rows(Path("sites", f"{name}.jsonl"), rows("a", "b"))
    write_rows(Path("more.jsonl"), rows("a", "b"))
    data = {"clients_from": clients, "test_source": "./sites/../sites/test.jsonl"}
    data["more_tests"] = {"one": "sites/south.jsonl", "two": "more.jsonl", "three": "sites/test.jsonl"}  # type: ignore[assignment]
    settings = load({"task": {"text": "text", "label": "label"}, "data": data})
    found = problems(lambda: load_rows(settings))
    assert found.keys() == {"data.test_source", "data.more_tests.one", "data.more_tests.three"}
    assert "would be trained on and tested on: it is in data.clients_from" in found["data.test_source"]


def test_training_file_as_test_set_is_refused(tmp_path: Path) -> None:
    settings = config(tmp_path, rows("a", "b"))
    data = settings.data.model_copy(update={"test_source": str(tmp_path / "." / "train.jsonl")})
    with pytest.raises(ConfigError, match=r"would be trained on and tested on: it is in data\.source"):
        load_rows(settings.model_copy(update={"data": data}))


# --- clients without usable rows -----------------------------------------------------------------------------------


def by_client(folder: Path, bad_rows: str) -> Any:
    for name, text in (("north", "a text"), ("south", ""), ("west", "a text")):
        write_rows(folder / "sites" / f"{name}.jsonl", [{"text": text, "label": label} for label in "ab"])
    data = {"clients_from": str(folder / "sites"), "bad_rows": bad_rows}
    return load({"task": {"text": "text", "label": "label"}, "data": data})


def test_client_without_a_usable_row_is_left_out_and_named(tmp_path: Path) -> None:
    _, found = dealt(by_client(tmp_path, "drop"))
    assert (list(found.rows), dict(found.too_small), found.bad) == (["north", "west"], {"south": 0}, 2)


def test_bad_rows_of_one_client_are_not_every_row(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        dealt(by_client(tmp_path, "error"))
    assert [p.path for p in caught.value.problems] == ["data", "data", "data.bad_rows"]
    assert "south.jsonl, line 1" in str(caught.value)


def test_client_by_a_column_whose_rows_are_all_bad_is_named(tmp_path: Path) -> None:
    train = [{"text": "" if who == "s" else "a", "label": label, "who": who} for who in "nsw" for label in "ab"]
    partition = {"kind": "natural", "column": "who"}
    _, found = dealt(config(tmp_path, train, partition=partition, data={"bad_rows": "drop"}))
    assert (list(found.rows), dict(found.too_small), found.clients_unsampled) == (["n", "w"], {"s": 0}, 0)


def test_column_that_the_first_row_lacks(tmp_path: Path) -> None:
    train = [{"text": "a"}, {"text": "b", "label": "x"}, {"text": "c", "label": "y"}]
    settings = config(tmp_path, train, data={"bad_rows": "drop"})
    assert dealt(settings)[1].bad == 1


def test_rows_of_a_task_of_ones_own_are_compared_by_all_columns() -> None:
    """Its columns have no known names; a table's order of columns is no difference."""
    assert _digest({"a": 1, "b": 2}, ()) == _digest({"b": 2, "a": 1}, ())
    assert _digest({"a": 1, "b": 2}, ()) != _digest({"a": 1, "b": 3}, ())
    assert _digest({"a": 1, "b": 2}, ("a",)) == _digest({"a": 1, "b": 3}, ("a",))
    assert _digest({"a": "x", "b": "y"}, ("a", "b")) != _digest({"a": "y", "b": "x"}, ("a", "b"))


@pytest.mark.parametrize("limit", [None, 8])
def test_client_whose_pictures_have_no_label_is_left_out_alone(limit: int | None) -> None:
    """Also where rows are drawn first, and looked at closely afterwards."""
    rows = [{"image": [[i, 2], [3, 4]], "label": i % 2} for i in range(6)]
    data = {"clients_from": GIVEN, "bad_rows": "drop", "max_train_rows": limit, "validation_fraction": 0.0}
    settings = load({"task": {"kind": "image-classification", "image": "image", "label": "label"}, "data": data})
    source = load_rows(settings, clients={"ann": rows, "bob": rows, "cid": [{**row, "label": None} for row in rows]})
    settings = resolved(settings, source)
    found = deal_rows(settings, source, find_labels(settings, source))
    assert set(found.rows) == {"ann", "bob"}
    assert found.too_small == {"cid": 0}


# --- marks of a tokenizer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ({"text": "t", "label": "l"}, {"t": "a [SEP] b", "l": "x"}),
        ({"text": ["t", "u"], "label": "l"}, {"t": "a", "u": "b[SEP]", "l": "x"}),
        ({"kind": "causal-lm", "prompt": ["t", "u"], "response": "l"}, {"t": "a", "u": "[SEP]", "l": "x"}),
        ({"kind": "causal-lm", "prompt": "t", "response": "l"}, {"t": "a", "l": "x [SEP]"}),
        ({"kind": "causal-lm", "messages": "m"}, {"m": [{"role": "user", "content": "a [SEP]"}]}),
        ({"kind": "multiple-choice", "prompt": "t", "choices": "c", "answer": "a"}, {"t": "a", "c": ["b", "[SEP] c"]}),
    ],
)
def test_marks_that_users_typed_are_told(task: dict[str, Any], row: dict[str, Any]) -> None:
    settings = load({"task": task, "data": {"source": GIVEN}, "partition": {"kind": "iid", "clients": 1}})
    (line,) = typed_marks(settings, [row, {}, row], ["[CLS]", "[SEP]"])
    assert line.startswith(
        "2 rows have marks of the tokenizer in their texts, '[SEP]': the tokenizer reads them as con"
    )
    assert list(typed_marks(settings, [row], ["[CLS]"])) == []
    assert list(typed_marks(settings, [row], [])) == []


def test_marks_of_a_tokenizer_are_its_special_tokens() -> None:
    tokenizer = tiny.tokenizer("gpt")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>", "!"]})
    tokenizer.add_tokens(["w99"])
    marks = CausalLM.of(TaskConfig(kind="causal-lm", text="t"), tokenizer, ()).marks
    assert set(marks) == {"<|turn|>", "<s>", "</s>", "<pad>"}


def said_of(folder: Path, train: Rows, test: Rows = (), **sections: Mapping[str, Any]) -> str:
    settings, there = dealt(config(folder, train, test, **sections))
    return " | ".join(remarks(settings, there, {}))


def patients(count: int, rows_each: int, name: str = "patient", value: str = "p{}") -> list[dict[str, Any]]:
    made = [(i, k) for i in range(count) for k in range(rows_each)]
    return [{"text": f"note {i} {k}", "label": "ab"[i % 2], name: value.format(i)} for i, k in made]


def test_column_that_repeats_on_both_sides_is_told(tmp_path: Path) -> None:
    test = [{**row, "text": f"{row['text']} again"} for row in patients(3, 2)]
    said = said_of(tmp_path, patients(30, 3), [*test, {"text": "x", "label": "a", "patient": "q"}])
    assert "3 of 4 values of 'patient' in the test set have training rows too" in said
    assert "'patient' has 30 values in 90 rows" in said
    assert "data.hold_out_by = 'patient' keeps a person's rows together" in said


@pytest.mark.parametrize(
    ("rows", "sections"),
    [
        (patients(5, 6), {}),  # a category
        (patients(30, 1), {}),  # no person has two rows
        (patients(30, 3, "age", "{}"), {}),
        (patients(30, 3, value="a note of more than sixty-four characters, which is a text by itself, {}"), {}),
        (patients(30, 3), {"data": {"hold_out_by": "patient"}}),
        (patients(30, 3), {"partition": {"kind": "natural", "column": "patient"}}),
        (patients(30, 3), {"data": {"validation_fraction": 0.0}}),
    ],
)
def test_other_columns_are_not_taken_for_persons(rows: Rows, sections: Any, tmp_path: Path) -> None:
    assert "keeps a person's rows together" not in said_of(tmp_path, rows, **sections)
