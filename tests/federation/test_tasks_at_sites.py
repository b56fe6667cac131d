"""Tasks whose rows only the sites have: a federation equals its simulation, bit for bit."""

from __future__ import annotations

import json
import random
import re
from datetime import date
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from parties import Parties, write_sites
from simulations import simulated

import rondo
from choice_rows import questions, save_tiny_llama
from embedding_rows import TASK as EMBEDDED
from embedding_rows import rated as likened
from outcomes import adapter
from preferred_rows import preferred
from rondo.config import load
from rondo.config.task_kinds import PAIR_KINDS
from rondo.federation.server.remote_run import loaded
from rondo.runs.assembling.assemble import assemble
from rondo.tasks.language import causal_lm
from small_runs import GOOD, LABELLED, NEUTRAL, opinions, reviews, save_tiny_bert, settings, write_rows
from tagged_rows import CLASSES, tagged


def asked(count: int, seed: int) -> list[dict[str, Any]]:
    """Questions about contexts of one window or more, with their answers as JSON."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        words = draw.choices(NEUTRAL, k=draw.randint(5, 45))
        answer = draw.choice(GOOD)
        given = {"text": [answer], "answer_start": [len(" ".join([*words, ""]))]}
        rows.append({"context": " ".join([*words, answer]), "question": "was it", "answers": json.dumps(given)})
    return rows


def rated(count: int, seed: int) -> list[dict[str, Any]]:
    return [{"text": row["text"], "score": len(row["text"]) / 10} for row in reviews(count, seed)]


def entities(count: int, seed: int) -> list[dict[str, Any]]:
    """Sentences of one window or more with their tags as JSON."""
    return [{key: json.dumps(row[key]) for key in ("tokens", "tags")} for row in tagged(count, seed)]


DATED = (
    "Today is {{ strftime_now('%d %b %Y') }}\n{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
KINDS: dict[str, Any] = {
    "question-answering": (asked, {"context": "context", "question": "question", "answers": "answers", "stride": 8}),
    "sequence-regression": (rated, {"text": "text", "target": "score"}),
    "embedding": (
        likened,
        {key: EMBEDDED[key] for key in ("anchor", "positive")} | {"negative": "not", "score": "like"},
    ),
    "token-classification": (entities, {"tokens": "tokens", "tags": "tags", "max_length": 16, "stride": 4}),
    **{kind: (preferred, {"max_length": 60}) for kind in PAIR_KINDS},
    **{
        f"labels {form}": (opinions, {"kind": "sequence-classification", "text": "text", "multi_label": True, **keys})
        for form, keys in LABELLED.items()
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_federation_equals_the_simulation(kind: str, tmp_path: Path) -> None:
    make, keys = KINDS[kind]
    rows = {name: make(count, i) for i, (name, count) in enumerate({"ann": 9, "bob": 6, "cid": 12}.items())}
    write_sites(tmp_path, rows=rows)
    (save_tiny_llama if kind in PAIR_KINDS else save_tiny_bert)(tmp_path / "bert")
    layers = {"target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1} if kind in PAIR_KINDS else {}
    more = {"other": str(write_rows(tmp_path / "other.csv", make(5, 8)))}
    config = settings(
        tmp_path / "bert",
        task={**dict.fromkeys(("text", "label")), "kind": kind, **keys},
        data={"test_source": str(write_rows(tmp_path / "tested.csv", make(7, 9))), "more_tests": more},
        partition={"kind": None, "clients": None},
        train={"local_epochs": 1, "batch_size": 4},
        simulation={"cohort": 1},
        evaluation={"clients_every": 1},
        adapter=layers,
        model={"head": None if kind in ("preference", "embedding") else "local"},
    )
    expected = simulated(tmp_path, config, tmp_path / "simulation")
    parties = Parties(tmp_path, state=tmp_path / "state")
    result = parties.run(config, tmp_path / "run")
    assert not parties.errors
    assert adapter(result.run_dir) == adapter(expected.run_dir)
    assert [r["scores"] for r in result.history] == [r["scores"] for r in expected.history]
    assert "other" in result.metrics["more_tests"]


@pytest.mark.slow
def test_sites_agree_on_the_types_of_entities(tmp_path: Path) -> None:
    """The server says which site has which tags, and the line that names all."""
    rows = {name: entities(12, i) for i, name in enumerate(("ann", "bob", "cid"))}
    rows["cid"] = [{"tokens": json.dumps(["the", "film"]), "tags": json.dumps(["O", "B-Good"])}] * 12
    write_sites(tmp_path, {"north": ("ann",), "south": ("bob",), "west": ("cid",)}, rows)
    save_tiny_bert(tmp_path / "bert")
    task = {**dict.fromkeys(("text", "label")), "kind": "token-classification", **KINDS["token-classification"][1]}
    config = settings(tmp_path / "bert", task=task, data={}, partition={"kind": None, "clients": None})
    with pytest.raises(rondo.ConfigError) as error:
        Parties(tmp_path, {"north": ("ann",), "south": ("bob",), "west": ("cid",)}).run(config, tmp_path / "run")
    said = str(error.value)
    named = re.search(r"for instance by task\.labels = (\[.*\])", said)
    assert named is not None, said
    assert {*json.loads(named[1])} == {*CLASSES, "B-Good", "I-Good"}
    assert "at west only: 'B-Good', 'I-Good'" in said
    assert "'B-GOOD' and 'B-Good' differ only by case" in said


@pytest.mark.slow
def test_lists_of_labels_at_sites_are_read_if_the_server_says_so(tmp_path: Path) -> None:
    """It has no rows to learn it from. A message names the key, and with it the run is the simulation's."""
    rows = {name: opinions(count, i) for i, (name, count) in enumerate({"ann": 9, "bob": 6, "cid": 12}.items())}
    write_sites(tmp_path, rows=rows)
    for file in (tmp_path / "data").glob("*/*.csv"):
        write_rows(file.with_suffix(".jsonl"), rows[file.stem])
        file.unlink()
    save_tiny_bert(tmp_path / "bert")
    config = settings(tmp_path / "bert", task={"label": "labels"}, partition={"kind": None, "clients": None})
    config |= {"simulation": {"cohort": 1}}
    with pytest.raises(rondo.ConfigError, match=r"the sites have 0 distinct labels; .*set task\.multi_label = true"):
        Parties(tmp_path, state=tmp_path / "refused").run(config, tmp_path / "refusal")
    expected = simulated(tmp_path, config, tmp_path / "simulation")
    several = {**config, "task": {**config["task"], "multi_label": True}}
    result = Parties(tmp_path, state=tmp_path / "state").run(several, tmp_path / "run")
    assert adapter(result.run_dir) == adapter(expected.run_dir)


def test_server_takes_the_shortcuts_of_a_simulation(tmp_path: Path) -> None:
    """It has test rows alone to try them on. Scores of another path through the model would differ in rounding."""
    save_tiny_bert(tmp_path / "bert")
    tested = str(write_rows(tmp_path / "tested.csv", reviews(7, 9)))
    rows = {"source": str(write_rows(tmp_path / "rows.csv", reviews(24))), "test_source": tested}
    config = load(settings(tmp_path / "bert", data=rows, task={"labels": ["neg", "pos"]}))
    expected = assemble(config, "cpu").model.record()
    found = loaded(config, "cpu", ("neg", "pos")).model.record()
    assert found == expected
    assert found["first_token_only"] == {"on": True, "reason": None}


@pytest.mark.parametrize("key", ["data.test_source", "data.more_tests.other"])
def test_a_servers_test_set_of_which_nothing_is_left_is_refused(tmp_path: Path, key: str) -> None:
    """Here and in a simulation: a set whose rows are all too long would score nothing."""
    save_tiny_llama(tmp_path / "bert")
    short = [{"text": "good", "answers": "film"}] * 3
    long = [{"text": "a good film " * 40, "answers": "film"}] * 3
    tests = {"data.test_source": short, "data.more_tests.other": short, key: long}
    files = {name: str(write_rows(tmp_path / f"{name}.csv", rows)) for name, rows in tests.items()}
    task = {"kind": "causal-lm", "text": None, "label": None, "prompt": "text", "response": "answers"}
    run = settings(
        tmp_path / "bert",
        task={**task, "max_length": 16},
        adapter={"target_modules": ["q_proj"]},
        data={
            "source": str(write_rows(tmp_path / "rows.csv", short * 8)),
            "test_source": files["data.test_source"],
            "more_tests": {"other": files["data.more_tests.other"]},
        },
    )
    said = []
    for opened in (lambda: assemble(load(run), "cpu"), lambda: loaded(load(run), "cpu", ())):
        with pytest.raises(rondo.ConfigError) as error:
            opened()
        said.append(str(error.value))
    assert said[0] == said[1]
    assert "of 3 rows nothing to learn is left within 16 tokens" in said[0]


@pytest.mark.slow
def test_sites_print_the_servers_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever day it is there: every look at the calendar is on another day."""
    days = count(date(2026, 11, 25).toordinal())
    monkeypatch.setattr(causal_lm, "date", SimpleNamespace(today=lambda: date.fromordinal(next(days))))
    rows = {
        name: [{"text": r["question"], "answers": r["choices"][0]} for r in questions(9, i)]
        for i, name in enumerate(("ann", "bob", "cid"))
    }
    write_sites(tmp_path, rows=rows)
    save_tiny_llama(tmp_path / "bert", DATED)
    task = {"kind": "causal-lm", "text": None, "label": None, "prompt": "text", "response": "answers"}
    config = settings(
        tmp_path / "bert",
        task={**task, "max_length": 150},
        adapter={"target_modules": ["q_proj"]},
        partition={"kind": None, "clients": None},
        train={"local_epochs": 1, "batch_size": 4},
        simulation={"cohort": 1},
        rounds=1,
    )
    result = Parties(tmp_path, state=tmp_path / "state").run(config, tmp_path / "run")
    today = load(result.run_dir / "config.toml").task.today
    assert today == "2026-11-25"
    dated = {**config, "task": {**config["task"], "today": today}}
    expected = simulated(tmp_path, dated, tmp_path / "simulation")
    assert adapter(result.run_dir) == adapter(expected.run_dir)
