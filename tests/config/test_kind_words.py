"""Words that people use for a kind of task are answered by the kind."""

from __future__ import annotations

import pytest

from rondo.config import load
from rondo.config.rules import kind_words
from rondo.config.task_kinds import TABLE, unknown
from rondo.errors import ConfigError

WORDS = {
    "ner": "token-classification",
    "Token_Classification": "token-classification",
    "dpo": "preference",
    "reward-model": "reward",
    "sts": "embedding",
    "similarity": "embedding",
    "qa": "question-answering",
    "sft": "causal-lm",
    "summarization": "seq2seq-lm",
    "Multi-Label": "task.label_separator",
    "multilabel": "task.label_separator",
    "vqa": "train.trainer",
    "whisper": "train.trainer",
    "embeding": "embedding",
}


@pytest.mark.parametrize("word", WORDS)
def test_word_is_answered(word: str) -> None:
    assert WORDS[word] in unknown(word).partition("got")[2]


def test_words_name_kinds_and_are_none() -> None:
    assert kind_words.KINDS.keys() <= TABLE.keys()
    assert [word for words in kind_words.KINDS.values() for word in words.split() if word in TABLE] == []


def test_configuration_says_the_same() -> None:
    with pytest.raises(ConfigError, match=r"task\.kind: .*, got 'ner'; did you mean 'token-classification'\?"):
        load({"task": {"kind": "ner"}}, check_paths=False)
    with pytest.raises(ConfigError, match=r"got 'xyzzy' \(one of your own is given as package\.module:Class\)"):
        load({"task": {"kind": "xyzzy"}}, check_paths=False)
