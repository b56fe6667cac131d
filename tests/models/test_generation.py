"""Generated answers: those of a plain loop without padding and without a cache, whatever the batch."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
import transformers
from families import AUTO, FAMILIES, Kind, tokenizer

from rondo.models.forms import generation
from rondo.models.forms.generation import Generation, answers
from rondo.models.kernels import attention
from rondo.tasks.task import AnswerEnd

END, NEW = 2, 8
PROMPTS = [[5 + (7 * i + 3 * n) % 90 for i in range(n)] for n in (3, 9, 4, 9, 17)]
SPEAKING = [name for name, family in FAMILIES.items() if "together" in family.speaks]
WRITING = [name for name, family in FAMILIES.items() if family.writes[0] != "none"]
FAST = ("BART", "Llama", "GPT-2", "T5")


def some(names: list[str]) -> list[Any]:
    return [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in names]


def model_of(name: str, kind: Kind = "causal-lm") -> Any:
    """A random model with weights so large that its answers differ."""
    family = FAMILIES[name]
    g = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Where the output layer is the embeddings, a random decoder repeats its own start.
        tied = {} if kind == "causal-lm" else {"tie_word_embeddings": False}
        config = getattr(transformers, family.config)(**family.options, **tied)
        module = getattr(transformers, AUTO[kind]).from_config(config).eval()
        for parameter in module.parameters():
            if parameter.dim() > 1 and kind == "causal-lm":
                parameter.data *= 6
            elif parameter.dim() > 1 and parameter.requires_grad:
                parameter.data = 0.2 * torch.randn(parameter.shape, generator=g)
    return module


@torch.no_grad()
def likeliest(module: Any, prompt: list[int], count: int) -> list[int]:
    """The answer by whole forward passes over one row."""
    ids = list(prompt)
    while len(ids) < len(prompt) + count and ids[-1] != END:
        ids.append(int(module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", some(SPEAKING))
def test_batched_answers_are_those_of_each_prompt_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoders of encoder-decoders count positions from the row's start, so their prompts go by length."""
    verdicts, tried = [], generation._copes_with_padding
    monkeypatch.setattr(generation, "_copes_with_padding", lambda *a: verdicts.append(tried(*a)) or verdicts[0])
    module = model_of(name)
    made = answers(module, tokenizer(), PROMPTS, Generation(NEW, 3), AnswerEnd((END,)))
    assert made == [likeliest(module, prompt, NEW) for prompt in PROMPTS]
    assert len({tuple(answer) for answer in made}) > 2
    assert verdicts == [name not in ("BART", "mBART", "Marian", "Pegasus")]


@torch.no_grad()
def written(module: Any, prompt: list[int], count: int) -> list[int]:
    """The answer of an encoder-decoder, likewise."""
    ids = [module.config.decoder_start_token_id]
    while len(ids) <= count and (len(ids) == 1 or ids[-1] != END):
        inputs = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([ids])}
        ids.append(int(module(**inputs, use_cache=False).logits[0, -1].argmax()))
    return ids[1:]


@pytest.mark.parametrize("name", some(WRITING))
def test_batched_answers_of_a_decoder_are_those_of_each_prompt_alone(name: str) -> None:
    """Also where stock PEFT is around the model, whose own settings of generation are put aside."""
    module = model_of(name, "seq2seq-lm")
    module.generation_config.max_length = 3
    expected = [written(module, prompt, NEW) for prompt in PROMPTS]
    assert len({tuple(answer) for answer in expected}) > 2
    assert answers(module, tokenizer(), PROMPTS, Generation(NEW, 3), AnswerEnd((END,))) == expected
    wrapped = peft.get_peft_model(
        module, peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["k_proj", "k", "key"])
    )
    assert answers(wrapped, tokenizer(), PROMPTS, Generation(NEW, 3), AnswerEnd((END,))) == expected
    assert module.generation_config.max_length == 3


def test_decoder_keeps_what_it_was_trained_to_begin_with_and_never_to_say() -> None:
    module = model_of("BART", "seq2seq-lm")
    likely = answers(module, tokenizer(), PROMPTS[:1], Generation(NEW, 1), AnswerEnd((END,)))[0][1]
    module.generation_config.forced_bos_token_id = 7
    module.generation_config.bad_words_ids = [[likely]]
    made = answers(module, tokenizer(), PROMPTS, Generation(NEW, 3), AnswerEnd((END,)))
    assert {answer[0] for answer in made} == {7}
    assert likely not in {token for answer in made for token in answer}


@pytest.mark.parametrize("kind", ["written out", "torch, mask unread"])
def test_rondos_own_attention_generates_the_same(kind: attention.Attention) -> None:
    module = model_of("Llama")
    expected = [likeliest(module, prompt, NEW) for prompt in PROMPTS]
    attention.use(module, kind)
    assert answers(module, tokenizer(), PROMPTS, Generation(NEW, 3), AnswerEnd((END,))) == expected


class Miscounting(transformers.GPT2LMHeadModel):
    """Positions that count from the row's start, whatever the mask says: it answers, and wrongly."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **rest: Any) -> Any:
        if attention_mask is not None:
            seen = attention_mask.shape[1]
            position_ids = torch.arange(seen - input_ids.shape[1], seen).unsqueeze(0).expand_as(input_ids)
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **rest)


class Refusing(transformers.GPT2LMHeadModel):
    def forward(self, input_ids: Any = None, attention_mask: Any = None, **rest: Any) -> Any:
        if attention_mask is not None and not attention_mask.all():
            raise ValueError("no padding, please")
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **rest)


@pytest.mark.parametrize("kind", [Miscounting, Refusing])
def test_model_that_minds_padding_is_given_none(kind: Any) -> None:
    right = model_of("GPT-2")
    module = kind(right.config).eval()
    module.load_state_dict(right.state_dict())
    made = answers(module, tokenizer(), PROMPTS, Generation(NEW, 5), AnswerEnd((END,)))
    assert made == [likeliest(right, prompt, NEW) for prompt in PROMPTS]


def test_models_own_way_to_generate_is_put_aside_and_back() -> None:
    module = model_of("Llama")
    own = transformers.GenerationConfig(do_sample=True, temperature=9.0, repetition_penalty=5.0, eos_token_id=[END, 7])
    module.generation_config = own
    made = answers(module, tokenizer(), PROMPTS, Generation(NEW, 3), AnswerEnd((END,)))
    assert module.generation_config is own
    ended = [likeliest(module, prompt, NEW) for prompt in PROMPTS]
    assert made == [a[: a.index(7) + 1] if 7 in a else a for a in ended]


def test_draws_come_from_the_seed_alone() -> None:
    module, how = model_of("Llama"), Generation(NEW, 3, temperature=1.0, seed=3)
    torch.manual_seed(11)
    expected = torch.rand(1)
    torch.manual_seed(11)
    made = answers(module, tokenizer(), PROMPTS, how, AnswerEnd((END,)))
    assert torch.rand(1) == expected
    assert made == answers(module, tokenizer(), PROMPTS, how, AnswerEnd((END,)))
    assert made != answers(module, tokenizer(), PROMPTS, Generation(NEW, 3, temperature=1.0, seed=4), AnswerEnd((END,)))


def test_drawn_tokens_have_the_models_probabilities() -> None:
    """The first token of 4,000 answers, against the softmax of the logits; each share within five deviations."""
    module, count = model_of("Llama"), 4000
    made = answers(
        module, tokenizer(), [PROMPTS[0]] * count, Generation(1, count, temperature=2.0, seed=1), AnswerEnd((END,))
    )
    with torch.no_grad():
        p = (module(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1] / 2).softmax(-1)
    shares = torch.bincount(torch.tensor([a[0] for a in made]), minlength=len(p)) / count
    assert bool(((shares - p).abs() <= 5 * (p * (1 - p) / count).sqrt() + 1e-3).all())


def test_stop_text_ends_an_answer() -> None:
    module = model_of("Llama")
    whole = likeliest(module, PROMPTS[1], NEW)
    stop = tokenizer().decode(whole[2])
    (made,) = answers(module, tokenizer(), PROMPTS[1:2], Generation(NEW, 1, stop=(stop,)), AnswerEnd((END,)))
    assert made == whole[: whole.index(whole[2]) + 1]


def test_stop_text_is_found_whatever_its_bytes() -> None:
    """A character may take four tokens of a byte each."""
    from rondo.models.forms.generation import _Stop

    class Bytes:
        def batch_decode(self, ids: torch.Tensor) -> list[str]:
            return [bytes(row.tolist()).decode(errors="replace") for row in ids]

    text = "ただいまの答えは以上です"
    row = torch.tensor([[65, 65, *text.encode()]])
    assert _Stop(Bytes(), [text], 2)(row, row).tolist() == [True]
    assert _Stop(Bytes(), [text], 2)(row[:, :-1], row).tolist() == [False]
