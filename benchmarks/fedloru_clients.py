"""FedLoRU's Table 6 and Figure 8 in small: accuracy, alignment and stable rank with 20, 100 and 200 clients.

    python benchmarks/fedloru_clients.py OUT [--seeds 0,1] [--clients 20,100,200] [--set KEY=VALUE ...]

Run from the folder that holds `fashion_mnist`. The setting is `benchmarks/runs/fedloru-clients.toml`. FedLoRU,
LoRA (`fedit`) and FedHM are runs under OUT, whose diagnostics are read; what OUT holds already is not run again. FedAvg
trains whole tensors, which the diagnostics leave out: its rounds are run here, and the same numbers taken of the layers
that the others factorise. OUT.csv has a line per method, number of clients, seed and measured round.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rondo
from rondo.algorithm import Round, ServerState, Upload
from rondo.algorithms.whole.fedavg import FedAvg
from rondo.config import load
from rondo.config.schema import RunConfig
from rondo.params import Params
from rondo.runs.assemble import assemble

RUN = Path(__file__).parent / "runs" / "fedloru-clients.toml"
FACTORISED = ("fedloru", "fedit", "fedhm")
FEDAVG = ('algorithm.name="fedavg"', "algorithm.tau=", "adapter=")


class Measured(FedAvg):
    """FedAvg that notes each round's uploads."""

    held: list[Upload]

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        object.__setattr__(self, "held", list(uploads))
        return super().aggregate(state, self.held, round)


def fedavg(config: RunConfig, layers: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The lines of FedAvg's run. A line has alignment and stable rank of the weights of ``layers`` together."""
    names = [f"{layer}.weight" for layer in layers]
    assembly = assemble(config, "cpu")
    federation = assembly.federation(assembly.start(), {})
    server, scorer = federation.server, federation.scorer
    server.algorithm = algorithm = Measured()
    first = server.state.params
    for index in range(config.rounds):
        before = server.state.params
        server.run_round(index)
        now = server.state.params
        step = _difference(now, before, names)
        cosines = [
            float(torch.cosine_similarity(_difference(u.params, before, names), step, dim=0)) for u in algorithm.held
        ]
        line: dict[str, Any] = {"round": index, "alignment_mean": statistics.mean(cosines)}
        line["stable_rank"] = statistics.mean(_stable_rank(now[n] - first[n]) for n in names)
        if (index + 1) % config.evaluation.diagnostics_every == 0:
            line["accuracy"] = scorer.on_test(server.state, server.round(index + 1))["global"]["accuracy"]
            yield line


def _difference(params: Params, others: Params, names: Iterable[str]) -> Tensor:
    return torch.cat([(params[n] - others[n]).double().flatten() for n in names])


def _stable_rank(change: Tensor) -> float:
    values = torch.linalg.svdvals(change.double().flatten(1)).square()
    return float(values.sum() / values[0])


def factorised(run_dir: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run that have diagnostics."""
    for text in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line.get("diagnostics"):
            measured = {key: line["diagnostics"][key] for key in ("alignment_mean", "stable_rank")}
            yield {"round": line["round"], "accuracy": line["scores"]["global"]["accuracy"], **measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--clients", default="20,100,200")
    parser.add_argument("--methods", default="fedavg,fedloru,fedit,fedhm")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    args = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for clients in map(int, args.clients.split(",")):
        for method in args.methods.split(","):
            last = []
            for seed in map(int, args.seeds.split(",")):
                sets = [f"partition.clients={clients}", f"clients.per_round={clients // 2}", f"seed={seed}", *args.sets]
                run_dir = args.out / f"{method}-{clients}-seed-{seed}"
                layers = load(RUN, args.sets).adapter.target_modules
                if method == "fedavg":
                    kept = run_dir.with_suffix(".json")
                    if not kept.exists():
                        args.out.mkdir(parents=True, exist_ok=True)
                        kept.write_text(json.dumps(list(fedavg(load(RUN, [*sets, *FEDAVG]), layers))), encoding="utf-8")
                    found = json.loads(kept.read_text(encoding="utf-8"))
                else:
                    if not (run_dir / "summary.json").exists():
                        tau = () if method == "fedloru" else ("algorithm.tau=",)
                        rondo.run(RUN, sets=[f"algorithm.name={method}", *tau, *sets], run_dir=run_dir)
                    found = list(factorised(run_dir))
                lines += [{"method": method, "clients": clients, "seed": seed, **line} for line in found]
                last.append(found[-1])
            means = {key: statistics.mean(line[key] for line in last) for key in last[0] if key != "round"}
            print(f"{clients} clients, {method}: {means}, by seed {[line['accuracy'] for line in last]}", flush=True)
    with args.out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        keys = ("method", "clients", "seed", "round", "accuracy", "alignment_mean", "stable_rank")
        table = csv.DictWriter(file, keys, lineterminator="\n")
        table.writeheader()
        table.writerows(lines)


if __name__ == "__main__":
    main()
