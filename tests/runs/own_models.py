"""Speech and pictures with texts, as a user brings them: a task that reads files, stock models of transformers with
random weights, and trainers."""

from __future__ import annotations

import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn import functional

from rondo import trainers
from rondo.tasks.task import Task

RATE, START, END, IMAGE = 16000, 1, 2, 3
LETTERS = 40


@dataclass(frozen=True)
class Clip:
    """What the network takes of a file, and the letters that belong to it."""

    values: Tensor
    ids: tuple[int, ...]
    cost: int = 1


class _OfFiles(Task):
    """An average loss per letter."""

    primary = "loss"

    @classmethod
    def of(cls, config: Any, tokenizer: Any, labels: Sequence[str]) -> Any:
        return cls()

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[Clip]:
        return [Clip(self.read(row["file"]), letters(row["text"])) for row in rows]

    @staticmethod
    def read(file: str) -> Tensor:
        raise NotImplementedError

    def loss(self, output: Tensor, targets: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        labels = targets["labels"]
        losses = functional.cross_entropy(output.mT, labels, ignore_index=-100, reduction="none")
        return losses.sum(1), (labels != -100).sum(1)

    def tally(self) -> Any:
        return _Mean(self)


class _Mean:
    def __init__(self, task: Task) -> None:
        self.task, self.sum, self.count = task, 0.0, 0

    def add(self, output: Tensor, targets: Mapping[str, Tensor]) -> None:
        sums, counts = self.task.loss(output, targets)
        self.sum += float(sums.sum())
        self.count += int(counts.sum())

    def scores(self) -> dict[str, float | None]:
        return {"loss": self.sum / self.count if self.count else None}


def letters(text: str) -> tuple[int, ...]:
    return (*(4 + ord(letter) % (LETTERS - 4) for letter in text), END)


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], batch_first=True, padding_value=value)


class Speech(_OfFiles):
    """``file``: a WAV file. ``text``: what is said in it."""

    @staticmethod
    def read(file: str) -> Tensor:
        with wave.open(file) as sound:
            samples = np.frombuffer(sound.readframes(sound.getnframes()), np.int16) / 2.0**15
        extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
        return extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features[0]

    def collate(self, examples: Sequence[Clip]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        begun = padded([(START, *e.ids[:-1]) for e in examples], END)
        inputs = {"input_features": torch.stack([e.values for e in examples]), "decoder_input_ids": begun}
        return inputs, {"labels": padded([e.ids for e in examples], -100)}


class Captions(_OfFiles):
    """``file``: a picture of 8 x 8 pixels. ``text``: its caption."""

    @staticmethod
    def read(file: str) -> Tensor:
        from PIL import Image

        return torch.from_numpy(np.asarray(Image.open(file), np.float32) / 255).permute(2, 0, 1)

    def collate(self, examples: Sequence[Clip]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        rows = [(*[IMAGE] * 4, START, *e.ids) for e in examples]  # four patches
        labels = [(*[-100] * 4, *e.ids, -100) for e in examples]  # each token learns the next
        inputs = {"input_ids": padded(rows, END), "pixel_values": torch.stack([e.values for e in examples])}
        return inputs, {"labels": padded(labels, -100)}


_SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def whisper(config: Any, task: Task) -> Any:
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ids = {"pad_token_id": END, "bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": START}
    return transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=LETTERS, num_mel_bins=8, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32,
            max_source_positions=50, max_target_positions=32, **sizes, **ids,
        )
    ).eval()  # fmt: skip


def llava(config: Any, task: Task) -> Any:
    eyes = transformers.CLIPVisionConfig(image_size=8, patch_size=4, projection_dim=16, **_SIZES)
    words = transformers.LlamaConfig(vocab_size=LETTERS, num_key_value_heads=2, pad_token_id=END, **_SIZES)
    whole = transformers.LlavaConfig(vision_config=eyes, text_config=words, image_token_index=IMAGE)
    return transformers.LlavaForConditionalGeneration(whole).eval()


def heard(local: Any) -> float:
    """The model's own loss on the file's rows, which the collator reads."""

    def collator(rows: list[Any]) -> dict[str, Tensor]:
        features = torch.stack([Speech.read(row["file"]) for row in rows])
        return {"input_features": features, "labels": padded([letters(row["text"]) for row in rows], -100)}

    return trainers.transformers(local, collator)
