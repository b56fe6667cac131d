"""The cost of a server's round: the dense forms of the papers beside Rondo's factored ones, on the same uploads.

    python benchmarks/server.py --threads 2 --json server.json

Factored is ``Algorithm.aggregate`` as a run calls it. Dense is written here from the papers, module by module and in
float32 as in their code: FlexLoRA takes the SVD of the mean of products, FedEx-LoRA forms the residual as a matrix,
FLoRG eigendecomposes the k x k mean of Gram matrices and aligns its root, FedIT loops over averages. Times cover all
modules. Where dense is slow, one module is timed and multiplied (``dense_modules`` says how many were timed).

Times are the best of several. ``max_abs_diff`` is the largest difference of an entry of delta W between Rondo's float32
result and the dense form in float64, over one module (for FLoRG without the orthogonal L and R, which are the same on
both sides). ``max_abs`` is delta W's largest entry. ``published_ms`` is from RoLoRA's Table 15: another machine, the
same number of clients and rank.

Floor: the bytes of all uploads, read once, and of the new float32 state, written once (for FedEx-LoRA with the
residual's factors), over the copying rate of this machine. A copied byte counts twice, once read and once written.

A memory peak is of one aggregation in a fresh process, above what the process held before with all uploads in memory.
Dense peaks are of ``Shape.dense`` modules.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from simulation import machine, versions
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import BaseState, Client, Round, ServerState, Upload
from rondo.algorithms.parts.gram import GramState, gram_sketch
from rondo.params import Packed, num_bytes

COPY_BYTES = 2**28


@dataclass(frozen=True)
class Shape:
    """Square modules of a model."""

    modules: int
    side: int
    rank: int
    dense: int
    """Modules that are timed in dense form."""

    @property
    def paths(self) -> list[str]:
        return [f"layer.{m}" for m in range(self.modules)]


SHAPES = {
    "roberta-large": Shape(18, 1024, 4, 18),
    "llama-2-7b": Shape(32, 4096, 8, 1),
    "smallest": Shape(2, 256, 2, 1),  # shows that this program works and nothing else
}
CLIENTS = {"fedit": 50, "fedex-lora": 50, "flexlora": 50, "florg": 20}
PUBLISHED_MS = {("roberta-large", "fedit"): 41.5, ("roberta-large", "flexlora"): 2252.0}

Adapter = tuple[Tensor, ...]
"""A module's (B, A), or (B, A, change of the base), or FLoRG's (G,)."""


def mean(tensors: Sequence[Tensor], p: Sequence[float]) -> Tensor:
    total = torch.zeros_like(tensors[0])
    for share, tensor in zip(p, tensors, strict=True):
        total += share * tensor
    return total


def fedit(sent: Sequence[Adapter], p: Sequence[float], start: Adapter) -> Adapter:
    return mean([b for b, _ in sent], p), mean([a for _, a in sent], p)


def fedex(sent: Sequence[Adapter], p: Sequence[float], start: Adapter) -> Adapter:
    b, a = fedit(sent, p, start)
    return b, a, mean_of_products(sent, p) - b @ a


def flexlora(sent: Sequence[Adapter], p: Sequence[float], start: Adapter) -> Adapter:
    rank = start[1].shape[0]
    u, s, vh = torch.linalg.svd(mean_of_products(sent, p), full_matrices=False)
    return u[:, :rank] * s[:rank], vh[:rank]


def florg(sent: Sequence[Adapter], p: Sequence[float], start: Adapter) -> Adapter:
    """Equations 4, 6, 7 and 11; the mean has rank K r at most."""
    (anchor,) = start
    gram = anchor.new_zeros(anchor.shape[1], anchor.shape[1])
    for share, (g,) in zip(p, sent, strict=True):
        gram += share * (g.mT @ g)
    values, vectors = torch.linalg.eigh(gram)
    rank = min(len(values), len(sent) * len(anchor))
    root = values[-rank:].clamp_min(0).sqrt()[:, None] * vectors[:, -rank:].mT
    u, _, vh = torch.linalg.svd(anchor @ root.mT, full_matrices=False)
    return (u @ vh @ root,)


def mean_of_products(sent: Sequence[Adapter], p: Sequence[float]) -> Tensor:
    b, a = sent[0]
    total = b.new_zeros(b.shape[0], a.shape[1])
    for share, (b, a) in zip(p, sent, strict=True):
        total += share * (b @ a)
    return total


DENSE = {"fedit": fedit, "fedex-lora": fedex, "flexlora": flexlora, "florg": florg}


@dataclass(frozen=True)
class Case:
    """A server before it aggregates."""

    shape: Shape
    method: str
    state: Any
    uploads: list[Upload]
    """The uploads of Rondo's clients."""
    sent: list[list[Adapter]]
    """The uploads of the paper's clients, by module and client."""

    @staticmethod
    def draw(shape: Shape, method: str) -> Case:
        """Clients with unequal weights. Their factors differ from a common start by as much as the start is large."""
        generator = torch.Generator().manual_seed(0)
        parts = {"G": (shape.rank, shape.side)}
        if method != "florg":
            parts = {"B": (shape.side, shape.rank), "A": (shape.rank, shape.side)}

        def draw() -> dict[str, Tensor]:
            sizes = {f"{path}.{part}": size for path in shape.paths for part, size in parts.items()}
            return {n: torch.randn(*size, generator=generator) / shape.side**0.5 for n, size in sizes.items()}

        start = draw()
        clients = [{n: start[n] + t for n, t in draw().items()} for _ in range(CLIENTS[method])]
        sent = [[tuple(c[f"{path}.{part}"] for part in parts) for c in clients] for path in shape.paths]
        state: Any = ServerState(start)
        if method == "florg":
            state, clients = GramState(start, {}), [{n: gram_sketch(start[n], c[n]) for n in c} for c in clients]
        elif method == "fedex-lora":
            state = BaseState(start, {}, dict.fromkeys(shape.paths, 1.0))
        # Each upload is one vector, as the gate passes it on.
        uploads = [Upload(Client(f"c{k:02}", 100 + k), Packed.of(c), 100.0 + k) for k, c in enumerate(clients)]
        return Case(shape, method, state, uploads, sent)

    def factored(self) -> Any:
        """The next state, as Rondo computes it."""
        return algorithms.get(self.method).aggregate(self.state, self.uploads, Round(0, 1, 0, len(self.uploads)))

    def dense(self, modules: int, dtype: torch.dtype = torch.float32) -> list[Adapter]:
        """The next adapters of the first modules, as the paper computes them."""
        weight = sum(u.weight for u in self.uploads)
        p = [u.weight / weight for u in self.uploads]
        adapters = []
        for path, sent in zip(self.shape.paths[:modules], self.sent, strict=False):
            cast = [tuple(t.to(dtype) for t in adapter) for adapter in sent]
            adapters.append(DENSE[self.method](cast, p, tuple(t.to(dtype) for t in self.adapter(self.state, path))))
        return adapters

    def adapter(self, state: Any, path: str) -> Adapter:
        """A module's adapter in one of Rondo's states."""
        if self.method == "florg":
            return (state.params[f"{path}.G"],)
        factors = (state.params[f"{path}.B"], state.params[f"{path}.A"])
        base = getattr(state, "base", {}).get(path)
        return factors if base is None else (*factors, base.factors().to(torch.float64).dense())

    def moved(self) -> int:
        """Bytes that have to be read and written."""
        new = self.factored()
        chunks = [tensor for base in getattr(new, "base", {}).values() for tensor in base.since(0)]
        written = num_bytes(new.params) + sum(t.numel() * t.element_size() for t in chunks)
        return sum(num_bytes(u.params) for u in self.uploads) + written


def delta(adapter: Adapter) -> Tensor:
    """The change of the weight, in float64."""
    first, *rest = (t.double() for t in adapter)
    if not rest:
        return first.mT @ first
    return sum(rest[1:], first @ rest[0])


def best_ms(work: Callable[[], object], seconds: float) -> float:
    """Milliseconds of the fastest of the tries of so many seconds; at least one."""
    best, until = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < until:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def copy_rate(seconds: float) -> float:
    """Bytes read and written per second while a large tensor is copied."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8)
    copy = torch.empty_like(source)
    return 2 * COPY_BYTES / best_ms(lambda: copy.copy_(source), seconds) * 1e3


def peak_mb(shape: str, method: str, form: str, threads: int) -> float:
    """Peak memory of one aggregation in a fresh process."""
    command = [sys.executable, __file__, "--peak", shape, method, form, "--threads", str(threads)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def own_peak_mb(case: Case, form: str) -> float:
    """Peak memory of one aggregation in this process, above what the process holds before."""
    before = psutil.Process().memory_info().rss
    result = case.factored() if form == "factored" else case.dense(case.shape.dense)
    # getrusage will not do: it gives the parent's peak where that was higher.
    peak = next(
        line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM")
    )
    del result
    return int(peak.split()[1]) / 2**10 - before / 2**20


def compare(name: str, method: str, rate: float, threads: int, seconds: float) -> dict[str, Any]:
    """A row of the table."""
    shape = SHAPES[name]
    case = Case.draw(shape, method)
    timed = shape.modules if method == "fedit" else shape.dense
    factored = best_ms(case.factored, seconds)
    dense = best_ms(lambda: case.dense(timed), seconds) * shape.modules / timed
    path = shape.paths[0]
    exact = delta(case.dense(1, torch.float64)[0])
    return {
        "shape": name,
        "method": method,
        "modules": shape.modules,
        "side": shape.side,
        "rank": shape.rank,
        "clients": CLIENTS[method],
        "dense_ms": dense,
        "dense_modules": timed,
        "factored_ms": factored,
        "ratio": dense / factored,
        "peak_mb": peak_mb(name, method, "factored", threads),
        "dense_peak_mb": peak_mb(name, method, "dense", threads),
        "floor_ms": case.moved() / rate * 1e3,
        "max_abs_diff": float((delta(case.adapter(case.factored(), path)) - exact).abs().max()),
        "max_abs": float(exact.abs().max()),
        "published_ms": PUBLISHED_MS.get((name, method)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["roberta-large", "llama-2-7b"])
    parser.add_argument("--methods", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="in which each form is tried, at least once")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peak:
        shape, method, form = args.peak
        print(own_peak_mb(Case.draw(SHAPES[shape], method), form))
        return

    result: dict[str, Any] = {"threads": args.threads, "rows": []}
    rate = copy_rate(args.seconds)
    result["copy_gb_per_second"] = rate / 1e9
    print(f"copy: {rate / 1e9:.1f} GB/s, read and written")
    heads = ("dense ms", "ms", "ratio", "floor ms", "x floor", "peak MB", "dense MB", "max diff")
    print(f"{'shape':14}{'method':11}" + "".join(f"{head:>10}" for head in heads), flush=True)
    for shape in args.shapes:
        for method in args.methods:
            row = compare(shape, method, rate, args.threads, args.seconds)
            result["rows"].append(row)
            cells = [row["dense_ms"], row["factored_ms"], row["ratio"], row["floor_ms"]]
            cells += [row["factored_ms"] / row["floor_ms"], row["peak_mb"], row["dense_peak_mb"]]
            text = "".join(f"{cell:10.{0 if cell >= 1000 else 2}f}" for cell in cells)
            print(f"{shape:14}{method:11}{text}{row['max_abs_diff']:10.1e}", flush=True)
    result |= {"machine": machine(), "versions": versions()}
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
