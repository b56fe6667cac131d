"""Questions with choices, and a small language model with byte pairs, for tests of whole runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

COLOURS = ("red", "green", "blue", "naïve 🐍 grey")
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def questions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows whose right colour is named in the question; with lists of two to four choices, and as columns."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        choices = draw.sample(COLOURS, 2 + number % 3)
        right = draw.randrange(len(choices))
        columns = {f"c{i}": choices[i] if i < len(choices) else None for i in range(4)}
        question = f"item {number % 7} is {choices[right]}. Which colour is it?"
        rows.append({"question": question, "choices": choices, "answer": "ABCD"[right], **columns})
    return rows


COMMONSENSE = {
    "boolq": ("true", "false"),
    "piqa": ("solution1", "solution2"),
    "social_i_qa": ("answer1", "answer2", "answer3"),
    "hellaswag": ("ending1", "ending2", "ending3", "ending4"),
    "winogrande": ("option1", "option2"),
    "ARC-Easy": ("answer1", "answer2", "answer3", "answer4"),
    "ARC-Challenge": ("answer1", "answer2", "answer3", "answer4"),
    "openbookqa": ("answer1", "answer2", "answer3", "answer4"),
}
"""LLM-Adapters' names of the choices in its eight sets."""


def commonsense(task: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows in LLM-Adapters' form of the set ``task``, whose right choice has the word of the question."""
    draw = random.Random(f"{task} {seed}")
    names = COMMONSENSE[task]
    rows = []
    for _ in range(count):
        right, words = draw.randrange(len(names)), draw.sample(COLOURS, len(names))
        listed = "" if task == "boolq" else " ".join(f"{n.title()}: {w}" for n, w in zip(names, words, strict=True))
        asked = names[right] if task == "boolq" else words[right]
        instruction = f"Please choose: is it {asked}?\n\n{listed}\n\nAnswer format: {'/'.join(names)}"
        output = f"the correct answer is {names[right]}"
        rows.append({"instruction": instruction, "input": "", "output": output, "answer": names[right]})
    return rows


def byte_pairs(template: str | None = None) -> Any:
    """A tokenizer of byte pairs, learned from the questions, that adds nothing."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<pad>", "<end>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [f"{r['question']} {c}\nAnswer: A B C D" for r in questions(40) for c in COLOURS]
    inner.train_from_iterator(texts, trainer)
    coder = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>")
    coder.chat_template = template
    return coder


def save_tiny_llama(folder: Path, template: str | None = None) -> Path:
    """Save a Llama with random weights, and its tokenizer, for ``from_pretrained``."""
    coder = byte_pairs(template)
    config = transformers.LlamaConfig(
        vocab_size=len(coder), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=160, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.LlamaForCausalLM(config)
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.data *= 4
        module.save_pretrained(folder)
    coder.save_pretrained(folder)
    return folder
