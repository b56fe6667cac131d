"""Chat templates that print today's date: a run keeps the day on which it started."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

import rondo
from choice_rows import byte_pairs, questions, save_tiny_llama
from outcomes import adapter
from rondo.config import load
from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError
from rondo.records.directory import RunDirectory
from rondo.tasks.language import causal_lm, conversation
from small_runs import files, settings, stopped, write_rows

DATED = (
    "{%- if strftime_now is defined %}{% set date = strftime_now('%d %b %Y') %}{% endif %}"
    "<|system|>\nToday is {{ date }}<|end|>\n"
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
UNDATED = DATED.replace("strftime_now('%d %b %Y')", "'1 May 2020'").replace("strftime_now", "messages")
START = datetime.date(2026, 11, 25)


class Calendar:
    """The date in place of the clock's."""

    def __init__(self) -> None:
        self.day, self.asked = START, 0

    def today(self) -> datetime.date:
        self.asked += 1
        return self.day

    def turn(self) -> None:
        self.day += datetime.timedelta(1)


@pytest.fixture
def calendar(monkeypatch: pytest.MonkeyPatch) -> Calendar:
    made = Calendar()
    monkeypatch.setattr(causal_lm, "date", made)
    return made


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [{"question": row["question"], "answer": row["choices"][0]} for row in questions(count, seed)]


def config(folder: Path, template: str = DATED, **sections: Any) -> dict[str, Any]:
    model = folder / "llama"
    if not model.exists():
        save_tiny_llama(model, template)
    data = files(folder, rows(24), rows(6, seed=1), "jsonl")
    task = {
        "kind": "causal-lm",
        "text": None,
        "label": None,
        "prompt": "question",
        "response": "answer",
        "max_length": 150,
    }
    return settings(
        model, data=data, task={**task, **sections.pop("task", {})}, adapter={"target_modules": ["q_proj"]}, rounds=2
    )


@pytest.mark.parametrize(
    "template",
    [
        DATED,
        "\n\n" + DATED,
        "  {% if true %}" + DATED + "{% endif %}",
        DATED.replace("%d %b %Y", "%A, %-d %B %Y %j%%d %H"),
        DATED.replace("m.content }}<", "m.content }}{{ strftime_now('%m%%') }}<"),
    ],
)
def test_text_is_that_of_the_day(template: str) -> None:
    """As transformers render it on that day."""
    tokenizer = byte_pairs(template.replace("%H", "00"))
    turns = [{"role": "user", "content": "which?"}, {"role": "assistant", "content": "red"}]
    stock = tokenizer.apply_chat_template(turns, tokenize=False)
    today = datetime.date.today().isoformat()
    assert conversation.rendered(byte_pairs(template), turns, today, tokenize=False) == stock
    assert conversation.rendered(tokenizer, turns, "2020-02-03", tokenize=False) != stock
    assert conversation.encoded(tokenizer, turns, today) == conversation.encoded(tokenizer, turns)


def test_answers_are_marked_on_any_day() -> None:
    start, answer = "<|{{ m.role }}|>\n", "{{ m.content }}<|end|>\n"
    marked = f"{{% generation %}}{answer}{{% endgeneration %}}"
    marked = f"{{% if m.role == 'assistant' %}}{marked}{{% else %}}{answer}{{% endif %}}"
    tokenizer = byte_pairs(DATED.replace(start + answer, start + marked))
    turns = [{"role": "user", "content": "which?"}, {"role": "assistant", "content": "red"}]
    ids, learned = conversation.encoded(tokenizer, turns, "2020-02-03")
    assert "03 Feb 2020" in tokenizer.decode(ids)
    assert tokenizer.decode([i for i, counts in zip(ids, learned, strict=True) if counts]) == "red<|end|>\n"


@pytest.mark.slow
def test_run_is_resumed_on_another_day(calendar: Calendar, tmp_path: Path) -> None:
    """With the bits of the run that was not interrupted, and the rows that it had."""
    whole = rondo.run(config(tmp_path), run_dir=tmp_path / "whole", device="cpu")
    stopped(config(tmp_path), tmp_path / "run")
    calendar.turn()
    result = rondo.resume(tmp_path / "run", device="cpu")
    assert adapter(result.run_dir) == adapter(whole.run_dir)
    assert load(result.run_dir / "config.toml").task.today == START.isoformat()
    scores = [rondo.evaluate(path, device="cpu")["test"] for path in (result.run_dir, result.run_dir / "adapter")]
    assert scores[0] == result.metrics["global"]
    assert scores[1] == pytest.approx(scores[0])
    asked = [{"question": "item 1 is red. Which colour is it?"}]
    said = [rondo.predict(path, asked, device="cpu") for path in (result.run_dir, result.run_dir / "adapter")]
    calendar.turn()
    assert said == [rondo.predict(path, asked, device="cpu") for path in (result.run_dir, result.run_dir / "adapter")]
    digests = {RunDirectory(tmp_path / name).read("partition.json")["examples_sha256"] for name in ("whole", "run")}
    other = rondo.run(config(tmp_path), run_dir=tmp_path / "other", device="cpu")
    assert RunDirectory(other.run_dir).read("partition.json")["examples_sha256"] not in digests
    named = config(tmp_path, task={"today": START.isoformat()})
    named_run = rondo.run(named, run_dir=tmp_path / "named", device="cpu")
    assert {RunDirectory(named_run.run_dir).read("partition.json")["examples_sha256"]} == digests


def test_only_templates_with_a_date_have_one(calendar: Calendar, tmp_path: Path) -> None:
    result = rondo.run(config(tmp_path, UNDATED), run_dir=tmp_path / "run", device="cpu")
    assert load(result.run_dir / "config.toml").task.today is None
    assert calendar.asked == 0


def test_choices_have_the_date_of_the_run(calendar: Calendar, tmp_path: Path) -> None:
    task = {"kind": "multiple-choice", "response": None, "choices": "choices", "answer": "answer"}
    raw = config(tmp_path, task=task)
    for seed, key in enumerate(("source", "test_source")):
        raw["data"][key] = str(write_rows(tmp_path / f"{key}.jsonl", questions(12, seed)))
    result = rondo.run(raw, run_dir=tmp_path / "run", device="cpu")
    calendar.turn()
    assert rondo.evaluate(result.run_dir, device="cpu")["test"] == result.metrics["global"]
    assert load(result.run_dir / "config.toml").task.today == START.isoformat()


@pytest.mark.slow
def test_comparison_knows_its_runs_on_another_day(calendar: Calendar, tmp_path: Path) -> None:
    raw = config(tmp_path)
    first = rondo.compare(["fedit"], raw, out=tmp_path / "out", device="cpu")
    calendar.turn()
    again = rondo.compare(["fedit"], raw, out=tmp_path / "out", device="cpu")
    assert [run["run_dir"] for run in again.runs] == [run["run_dir"] for run in first.runs]


@pytest.mark.slow
def test_other_text_today_is_told_in_words(calendar: Calendar, tmp_path: Path) -> None:
    """Where a run has no date of its own."""
    result = rondo.run(config(tmp_path), run_dir=tmp_path / "run", device="cpu")
    for name in ("config.toml", "manifest.json"):
        file = result.run_dir / name
        text = file.read_text("utf-8").replace('today = "2026-11-25"\n', "")
        file.write_text(text.replace('"today": "2026-11-25"', '"today": null'), "utf-8")
    calendar.turn()
    with pytest.raises(ConfigError, match="the chat template gives other text today"):
        rondo.evaluate(result.run_dir, device="cpu")
    (result.run_dir / "summary.json").unlink()
    with pytest.raises(ConfigError, match="the chat template gives other text today"):
        rondo.resume(result.run_dir, device="cpu")


@pytest.mark.parametrize("day", ["25.11.2026", "2026-02-30", "20261125", "2026-11-25T10:00:00"])
def test_other_words_are_no_date(day: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.today: should be a date, such as 2026-11-25, got"):
        load(config(tmp_path, task={"today": day}))


def test_date_is_a_literal_or_a_text(tmp_path: Path) -> None:
    for value in (START, START.isoformat()):
        assert load(config(tmp_path, task={"today": value})).task.today == "2026-11-25"
    assert load(config(tmp_path), ["task.today=2026-11-25"]).task.today == "2026-11-25"
    json.dumps(load(config(tmp_path), ["task.today=2026-11-25"]).model_dump(mode="json"))


def test_plain_text_has_no_date() -> None:
    task = causal_lm.CausalLM.of(TaskConfig(kind="causal-lm", text="text"), byte_pairs(DATED), ())
    assert task.today is None
