"""Vectors of words from a file: the embedding of the built-in LSTM, which is not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import rondo
from leaf_files import write_vectors
from rondo.config import ConfigError, load
from rondo.config.schema import RunConfig
from rondo.models.forms.builtin.classical import WordVectors, make, word_vectors
from rondo.models.forms.builtin.outline import tokenizer_of
from small_runs import reviews


def config(file: Path, **model: Any) -> RunConfig:
    task = {"text": "text", "label": "label", "max_length": 16}
    return load({"task": task, "model": {"name": "builtin:lstm", "vectors": str(file), **model}}, check_paths=False)


def read(content: str, folder: Path) -> WordVectors:
    (folder / "v.txt").write_text(content, encoding="utf-8")
    vectors = word_vectors(config(folder / "v.txt"))
    assert vectors is not None
    return vectors


def test_words_have_their_vectors_and_others_zeros(tmp_path: Path) -> None:
    vectors = read("the 1 2.5\n. . 3 -4e-1\nthe 9 9\n", tmp_path)
    assert [vectors.number(word) for word in ("the", ". .", "unknown")] == [2, 3, 1]
    torch.testing.assert_close(vectors.table, torch.tensor([[0, 0], [0, 0], [1, 2.5], [3, -0.4]]))


def test_header_of_word2vec_is_no_word(tmp_path: Path) -> None:
    assert read("2 3\na 1 2 3\nb 4 5 6\n", tmp_path).numbers == {"a": 2, "b": 3}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it has no words"),
        ("the\n", "line 1 has not a word and some numbers"),
        ("a 1 2\nb 3\n", "line 2 has not a word and 2 numbers"),
        ("a 1 2\nb 3 x\n", "line 2 has not 2 numbers behind 'b'"),
        ("a 1 nan\n", "some of its numbers are not finite"),
    ],
)
def test_faulty_file_is_named_with_its_line(content: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"v.txt' cannot be read: {words}; name a text file") as caught:
        read(content, tmp_path)
    assert [problem.path for problem in caught.value.problems] == ["model.vectors"]


def test_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v.bin").write_bytes(b"2 3\n\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read: 'utf-8' codec"):
        word_vectors(config(tmp_path / "v.bin"))


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    assert read("a 1\n", tmp_path).numbers == {"a": 2}
    assert read("b 1\nc 2\n", tmp_path).numbers == {"b": 2, "c": 3}


def test_only_the_lstm_has_vectors_and_the_file_must_be_there(tmp_path: Path) -> None:
    file = write_vectors(tmp_path / "v.txt")
    with pytest.raises(ConfigError, match=r"model.vectors: only 'builtin:lstm' has them, not 'builtin:minilm'"):
        config(file, name="builtin:minilm")
    with pytest.raises(ConfigError, match=r"model.vectors: no such file: .*; mend the path"):
        load({"model": {"name": "builtin:lstm", "vectors": str(tmp_path / "other.txt")}})


def test_embedding_is_the_file_and_is_not_trained(tmp_path: Path) -> None:
    file = write_vectors(tmp_path / "v.txt", "the film plot was very a good great fine bad awful poor")
    settings = config(file)
    module, vectors = make(settings, 2), word_vectors(settings)
    assert vectors is not None
    assert tokenizer_of(settings)(["The FILM, good"])["input_ids"] == [[2, 3, 1, 8]]  # type: ignore[operator]
    run = {
        "rounds": 2,
        "algorithm": {"name": "fedavg"},
        "task": {"text": "text", "label": "label", "max_length": 16},
        "model": {"name": "builtin:lstm", "vectors": str(file)},
        "partition": {"kind": "iid", "clients": 3},
        "train": {"lr": 0.01},
    }
    result = rondo.run(run, train=reviews(60), test=reviews(12, 1), run_dir=tmp_path / "run", device="cpu")
    state = safetensors.torch.load_file(next(result.run_dir.rglob("model.safetensors")))
    torch.testing.assert_close(state["embedding.weight"], vectors.table, rtol=0, atol=0)
    assert not torch.equal(state["lstm.weight_ih_l0"], module.state_dict()["lstm.weight_ih_l0"])
    assert len(rondo.predict(result.run_dir, [{"text": "a good film"}], device="cpu")) == 1
    numbers = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert result.history[-1]["bytes_up"] // 3 // 4 in range(numbers, numbers + 200)  # beside the message's own
