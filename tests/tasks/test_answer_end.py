"""What training teaches as the end of an answer ends it in generation, in predictions and in what is handed over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import rondo
import tiny
from rondo.config.inputs import TaskConfig
from rondo.models.forms.generation import Generation, answers, end_ids, end_notes
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.seq2seq_lm import Seq2SeqLM
from rondo.tasks.task import AnswerEnd
from small_runs import settings, write_rows

EOS = 3


def template(end: str) -> str:
    """Of the form ``w30 content END``."""
    turns = f"{{% for m in messages %}}{{{{ 'w30 ' if m.role == 'user' else 'w31 ' }}}}{{{{ m.content }}}} {end}\n"
    return turns + "{% endfor %}{% if add_generation_prompt %}w31 {% endif %}"


def coder(end: str | None = None, *, special: bool = True, kind: str = "gpt") -> Any:
    """A tokenizer whose turns end with ``end``; ``w35`` is a token that was added to it."""
    tokenizer = tiny.tokenizer(kind)
    tokenizer.add_tokens(["w35"], special_tokens=special)
    tokenizer.chat_template = None if end is None else template(end)
    return tokenizer


TURN = coder().convert_tokens_to_ids("w35")
CHAT = TaskConfig(kind="causal-lm", messages="chat")
PAIR = TaskConfig(kind="causal-lm", prompt="ask", response="said")


@pytest.mark.parametrize(
    ("config", "tokenizer", "end"),
    [
        (CHAT, coder("w35"), AnswerEnd((TURN, EOS))),
        (PAIR, coder("w35"), AnswerEnd((TURN, EOS))),
        (CHAT, coder("w35", special=False), AnswerEnd((TURN, EOS))),
        (CHAT, coder("</s>"), AnswerEnd((EOS,))),
        (CHAT, coder("w33 w35 </s>"), AnswerEnd((TURN, EOS))),
        # An end of plain words is a text, and a line break may be in any answer.
        (CHAT, coder("w33 w34"), AnswerEnd((EOS,), " w33 w34")),
        (CHAT, coder(""), AnswerEnd((EOS,))),
        (CHAT, coder("{{ raise_exception('no') }}"), AnswerEnd((EOS,))),
        (PAIR, coder(), AnswerEnd((EOS,))),
        (TaskConfig(kind="causal-lm", text="text"), coder("w35"), AnswerEnd((EOS,))),
    ],
)
def test_end_is_the_one_of_training(config: TaskConfig, tokenizer: Any, end: AnswerEnd) -> None:
    assert CausalLM.of(config, tokenizer, ()).answer_end == end


def test_end_without_an_end_token_is_what_the_tokenizer_puts_behind_texts() -> None:
    for make in (CausalLM, Seq2SeqLM):
        tokenizer = coder(kind="bert")
        tokenizer.eos_token = None
        assert make.of(PAIR, tokenizer, ()).answer_end == AnswerEnd((EOS,))


@pytest.mark.parametrize("end", ["w35", "w33 w34"])
def test_taught_end_is_the_last_that_a_row_teaches(end: str) -> None:
    task = CausalLM.of(PAIR, coder(end), ())
    (example,) = task.encode([{"ask": "w1", "said": "w2"}])
    assert isinstance(example.target, tuple)
    _, answer = task.prompt_and_answer(example)
    assert task.tokenizer.decode(answer) == f"w2 {end}"
    assert task.answer_end.text.strip() == end or task.answer_end.tokens[0] == answer[-1]


class Speaker:
    """A :class:`rondo.tasks.task.Predictor` that says the same after every prompt."""

    batch_size = 4

    def __init__(self, *words: str, tokenizer: Any) -> None:
        self.said = tokenizer.convert_tokens_to_ids(list(words))

    def generated(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        return [self.said for _ in prompts]


@pytest.mark.parametrize("words", [["w1", "w2", "w35"], ["w1", "w2", "</s>"], ["w1", "w2"]])
@pytest.mark.parametrize("special", [True, False])
def test_end_is_not_in_the_text_of_an_answer(words: list[str], special: bool) -> None:
    tokenizer = coder("w35", special=special)
    model: Any = Speaker(*words, tokenizer=tokenizer)
    for config, row in ((CHAT, {"chat": [{"role": "user", "content": "w4"}]}), (PAIR, {"ask": "w4"})):
        assert CausalLM.of(config, tokenizer, ()).predictions([row], model) == [{"response": "w1 w2"}]


def test_end_of_words_is_not_in_the_text_of_an_answer() -> None:
    tokenizer = coder("w33 w34")
    model: Any = Speaker("w1", "w33", "w34", tokenizer=tokenizer)
    assert CausalLM.of(PAIR, tokenizer, ()).predictions([{"ask": "w4"}], model) == [{"response": "w1"}]


def talker(*words: str) -> Any:
    """A model that says ``words`` one after the other, and the first again after the last."""
    tokenizer = coder()
    ids = tokenizer.convert_tokens_to_ids(list(words))
    module = tiny.llama_lm()
    with torch.no_grad():
        for layer in module.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        module.model.embed_tokens.weight.mul_(0.01)
        module.lm_head.weight.zero_()
        for place, token in enumerate(ids):
            module.model.embed_tokens.weight[token] = torch.eye(32)[place]
            module.lm_head.weight[ids[(place + 1) % len(ids)]] = torch.eye(32)[place]
    return module, tokenizer


@pytest.mark.parametrize("end", [AnswerEnd((TURN,)), AnswerEnd((EOS,), "w5 w35")])
def test_generation_ends_with_it(end: AnswerEnd) -> None:
    module, tokenizer = talker("w31", "w4", "w5", "w35")
    prompts = [tokenizer.convert_tokens_to_ids(["w30", "w31"])] * 2
    expected = tokenizer.convert_tokens_to_ids(["w4", "w5", "w35"])
    assert answers(module, tokenizer, prompts, Generation(9, 2), end) == [expected] * 2


@pytest.mark.parametrize(
    ("model", "coder_end", "ends"),
    [(9, EOS, [EOS, 9]), ([9, 7], EOS, [EOS, 7, 9]), (None, EOS, [EOS]), (EOS, EOS, [EOS]), (0, EOS, [0, EOS])],
)
def test_models_own_ends_count_too(model: Any, coder_end: int, ends: list[int]) -> None:
    assert end_ids(model, AnswerEnd((coder_end,))) == ends


def test_reader_is_told_what_other_programs_do_not_know() -> None:
    (note,) = end_notes(coder(), EOS, AnswerEnd((TURN, EOS)), written=False)
    assert "'w35', which the base model's own settings of generation do not name: give `generate` `eos_tok" in note
    assert f"`eos_token_id={[EOS, TURN]}`" in note
    (note,) = end_notes(coder(), EOS, AnswerEnd((EOS,), "w33"), written=True)
    assert "`stop_strings=['w33']`" in note
    assert list(end_notes(coder(), [EOS, TURN], AnswerEnd((TURN, EOS)), written=False)) == []


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_run_hands_over_names_the_end(whole: bool, tmp_path: Path) -> None:
    module, tokenizer = talker("w31", "w4", "w5", "w35")
    tokenizer.chat_template = template("w35")
    model = tiny.saved(tmp_path / "model", module, tokenizer)
    rows = [{"ask": f"w{i}", "said": "w4 w5"} for i in range(8)]
    task = {"kind": "causal-lm", "text": None, "label": None, "prompt": "ask", "response": "said"}
    data = {"source": str(write_rows(tmp_path / "rows.jsonl", rows))}
    sections: dict[str, Any] = {"train": {"lr": 1e-9}, "adapter": {"target_modules": ["q_proj"]}}
    if whole:
        sections = {"train": {"lr": 1e-9, "what": "all"}, "algorithm": {"name": "fedavg"}}
    config = settings(Path(model), data=data, task=task, rounds=1, **sections)
    if whole:
        del config["adapter"]
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert rondo.predict(result.run_dir, [{"ask": "w2"}], max_new_tokens=9) == [{"response": "w4 w5"}]
    rondo.export(result.run_dir, tmp_path / "merged", merged=not whole)
    written = json.loads((tmp_path / "merged" / "generation_config.json").read_text())
    assert written["eos_token_id"] == [EOS, TURN]
    assert rondo.predict(tmp_path / "merged", [{"ask": "w2"}], max_new_tokens=9) == [{"response": "w4 w5"}]
    card = (result.run_dir / "adapter" / "README.md").read_text()
    assert ("`eos_token_id=[3, 39]`" in card) == (not whole)
