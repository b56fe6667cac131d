"""Do two commits compute the same bits? Runs small configurations of every kind and writes SHA-256 digests.

    python tests/parity/record.py before.json                       # on one commit
    python tests/parity/record.py after.json --compare before.json  # on another, same machine and versions

Digests are of the adapter, the checkpoint (server's state, ledger, clients' tensors), the metrics and the reports.
Seconds, memory, dates and the positions in files that contain them are left out. Exit code 1 if a digest differs.
Only :func:`rondo.run` is used, so that the script runs unchanged on any commit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

WORDS = ("good", "great", "fine", "bad", "awful", "poor", "the", "film", "plot", "was", "very", "a")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
TEXT = {"text": "text", "label": "label", "max_length": 32}

BASE: dict[str, Any] = {
    "rounds": 4,
    "algorithm": {"name": "fedit"},
    "adapter": {"r": 4, "lora_alpha": 8, "target_modules": ["query", "value"]},
    "model": {"name": "./bert"},
    "task": TEXT,
    "data": {"source": "./rows.csv", "test_source": "./test.csv", "validation_fraction": 0.2},
    "partition": {"kind": "dirichlet", "clients": 6, "alpha": 1.0},
    "clients": {"per_round": 4},
    "train": {"lr": 0.01, "batch_size": 4, "local_epochs": 1},
    "evaluation": {"clients_every": 2, "diagnostics_every": 2},
}
PRIVATE: dict[str, Any] = {
    "task": {**TEXT, "labels": ["neg", "pos"]},
    "privacy": {"adversary": "reader", "unit": "client", "clip": 0.5, "noise": 1.0, "delta": 1e-3, "debug_seed": 7},
    "clients": {"sampling": "poisson", "per_round": 3, "weighting": "uniform"},
    "data": {"validation_fraction": 0.0},
    "evaluation": {"clients_every": 0, "diagnostics_every": 0},
}
"""Noise of a known seed, so that the bits are those of another commit."""
LM = {
    "model": {"name": "./llama"},
    "adapter": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "task": {"kind": "causal-lm", "prompt": "first", "response": "second", "max_length": 32},
    "partition": {"kind": "iid", "clients": 6},
}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "demo": {},  # rondo's own starter, four rounds of it
    "head-shared": {"model": {"head": "shared"}},
    "head-local": {"model": {"head": "local"}},
    "head-frozen": {"model": {"head": "frozen"}},
    "personal": {"algorithm": {"name": "fedsa-lora"}},
    "personal-pairs": {"algorithm": {"name": "pfedloru", "tau": 2}},
    "ranks": {"algorithm": {"name": "flexlora"}, "clients": {"ranks": {"2": 0.5, "4": 0.5}}},
    "bytes-budget": {"algorithm": {"name": "hetlora"}, "clients": {"bytes_budget": 1200}},
    "server-optimizer": {"algorithm": {"name": "rolora"}, "server": {"optimizer": "adam"}},
    "robust": {"robust": {"rule": "nnm-trimmed-mean", "byzantine": 1}, "clients": {"min_clients": 3}},
    "faults": {
        "algorithm": {"name": "rolora"},
        "rounds": 6,
        "clients": {"per_round": 3, "over_select": 1.0, "deadline": 100.0},
        "faults": {
            "crash": 0.1, "hang": 0.1, "slow": 0.1, "out_of_memory": 0.1, "nonfinite_loss": 0.1,
            "corrupt_upload": 0.1, "late": 0.1, "duplicate": 0.1, "wrong_round": 0.1,
        },
    },
    "causal-lm": LM,
    "causal-lm-upper-layers": {**LM, "adapter": {**LM["adapter"], "layers_to_transform": [1]}},
    "poisson": {"clients": {"sampling": "poisson", "per_round": 3}},
    "cohort-1": {"simulation": {"cohort": 1}},
    "cohort-3-steps": {"simulation": {"cohort": 3}, "train": {"local_epochs": None, "local_steps": 5}},
    "base-changes": {"algorithm": {"name": "fedex-lora"}, "train": {"precision": "exact"}},
    "slots": {"algorithm": {"name": "lora-a2"}, "admission": {"max_norm": 1.0, "clip": True}},
    "gram": {"algorithm": {"name": "florg"}, "train": {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05}},
    "upper-layers": {"adapter": {"layers_to_transform": [1], "lora_dropout": 0.1}, "evaluation": {"local_only": True}},
    "private-clients": PRIVATE,
    "private-adaptive": {**PRIVATE, "privacy": {**PRIVATE["privacy"], "clip": "adaptive"}},
    "private-rows": {
        **PRIVATE, "privacy": {**PRIVATE["privacy"], "unit": "example"}, "adapter": {"lora_dropout": 0.1},
    },
    "masked": {
        **PRIVATE,
        "privacy": {"adversary": "server", "secure_aggregation": True, "clip": 10.0},
        "clients": {"per_round": 3, "weighting": "examples"},
    },
    "masked-noise": {
        **PRIVATE,
        "privacy": {**PRIVATE["privacy"], "adversary": "server", "secure_aggregation": True, "ring": 64},
        "clients": {"sampling": "full", "per_round": None, "weighting": "uniform"},
    },
}  # fmt: skip


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the keys of ``changes``, section by section; None takes a key away."""
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in base.items()}
    for key, value in changes.items():
        if key == "task" and isinstance(value, Mapping):
            result[key] = dict(value)
        elif isinstance(value, Mapping):
            result[key] = {k: v for k, v in {**result.get(key, {}), **value}.items() if v is not None}
        else:
            result[key] = value
    if result.get("partition", {}).get("kind") != "dirichlet":
        result.get("partition", {}).pop("alpha", None)
    return result


def write_models() -> None:
    """Two models with random weights, and rows, in the working folder."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    def tokenizer(kind: str) -> Any:
        inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
        inner.pre_tokenizer = pre_tokenizers.Whitespace()
        special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[SEP]"}
        if kind == "bert":
            pair, marks = "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
            inner.post_processor = processors.TemplateProcessing(
                single="[CLS] $A [SEP]", pair=pair, special_tokens=marks
            )
            special |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
        return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special)

    sizes = {
        "vocab_size": len(SPECIAL + WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2, eos_token_id=3))
    for name, model in (("bert", bert), ("llama", llama)):
        model.save_pretrained(name)
        tokenizer(name).save_pretrained(name)
    draw = random.Random(0)
    for name, count in (("rows.csv", 120), ("test.csv", 24)):
        lines = ["text,label,first,second"]
        for i in range(count):
            words = [*draw.choices(WORDS[6:], k=draw.randint(2, 9)), draw.choice((WORDS[3:6], WORDS[:3])[i % 2])]
            draw.shuffle(words)
            lines.append(f"{' '.join(words)},{('neg', 'pos')[i % 2]},{' '.join(words[:2])},{' '.join(words[2:])}")
        Path(name).write_text("\n".join(lines) + "\n")


def sha256(content: bytes) -> str:
    """The first half of the digest, enough to tell contents apart."""
    return hashlib.sha256(content).hexdigest()[:32]


def content(path: Path) -> bytes:
    """The bytes of a file, without the name of the working folder, which is another one in every record."""
    return path.read_bytes().replace(str(Path.cwd()).encode(), b".")


def timeless(tree: Any) -> Any:
    """JSON without the values that differ from run to run."""
    if isinstance(tree, Mapping):
        unequal = ("seconds", "seconds_per_round", "memory_bytes")
        left_out = ("journal", "started", "platform", "versions", "sha256")
        return {k: timeless(v) for k, v in tree.items() if k not in left_out and not k.endswith(unequal)}
    return [timeless(v) for v in tree] if isinstance(tree, list) else tree


def digests(folder: Path) -> dict[str, str]:
    """The digests of a finished run directory, by file or by group of files."""
    checkpoint = folder / "checkpoint"
    kept = [p for p in sorted(checkpoint.rglob("*")) if p.is_file() and p.name != "manifest.json"]
    sealed = [timeless(json.loads(content(p))) for p in sorted(checkpoint.rglob("manifest.json"))]
    lines = [timeless(json.loads(line)) for line in content(folder / "metrics.jsonl").splitlines()]
    adapter = [p for p in sorted((folder / "adapter").iterdir()) if p.suffix in (".safetensors", ".json")]
    reports = {n: timeless(json.loads(content(folder / n))) for n in ("summary.json", "partition.json")}
    return {
        "adapter": sha256(b"".join(p.name.encode() + content(p) for p in adapter)),
        "checkpoint": sha256(b"".join(str(p.relative_to(folder)).encode() + p.read_bytes() for p in kept)),
        "checkpoint/manifest": sha256(json.dumps(sealed, sort_keys=True).encode()),
        "metrics": sha256(json.dumps(lines, sort_keys=True).encode()),
        **{n: sha256(json.dumps(report, sort_keys=True).encode()) for n, report in reports.items()},
        "manifest.json": sha256(
            json.dumps(timeless(json.loads(content(folder / "manifest.json"))), sort_keys=True).encode()
        ),
        "config.toml": sha256(content(folder / "config.toml")),
        **{f.name: sha256(content(f)) for f in folder.glob("privacy.jsonl")},
    }


def record(names: list[str]) -> dict[str, dict[str, str]]:
    """The digests of each configuration, run in a temporary working folder."""
    import torch

    import rondo

    torch.set_num_threads(2)
    before, folder = Path.cwd(), tempfile.mkdtemp(prefix="parity-")
    os.chdir(folder)
    recorded = {}
    try:
        write_models()
        for name in names:
            began = time.perf_counter()
            config: Any = merged(BASE, CONFIGURATIONS[name])
            sets: list[str] = []
            if name == "demo":
                (config,) = Path(rondo.__file__).parent.rglob("starter.toml")
                sets = ["rounds=4"]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rondo.run(config, sets=sets, run_dir=f"run-{name}", device="cpu")
            recorded[name] = digests(Path(f"run-{name}"))
            print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    finally:
        os.chdir(before)
        shutil.rmtree(folder)
    return recorded


def main() -> int:
    """Record the digests and, if asked to, compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="where to write the digests, as JSON")
    parser.add_argument("--compare", help="an earlier record that must be equal")
    parser.add_argument("--only", help="names of configurations with commas between; left out: all")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(CONFIGURATIONS)
    recorded = record(names)
    Path(options.out).write_text(json.dumps(recorded, indent=1) + "\n")
    if options.compare is None:
        return 0
    before = json.loads(Path(options.compare).read_text())
    differing = [f"{n}: {k}" for n in names for k, v in recorded[n].items() if before[n].get(k) != v]
    print("\n".join(differing) if differing else f"all {len(names)} configurations are equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
