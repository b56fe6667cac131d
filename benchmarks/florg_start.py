"""The distance of FLoRG's first model from the pre-trained one, per adapted matrix of the built-in model.

python benchmarks/florg_start.py
"""

from __future__ import annotations

import torch

from rondo import algorithms
from rondo.algorithm import Round, Shared
from rondo.config import load
from rondo.lowrank import LowRank
from rondo.models.forms.outline import look


def main() -> None:
    print("layers, rank, fields: least, largest and joint |delta W| / |W|")
    for targets, rank in ((["query", "value"], 4), (["query", "value"], 8), ("all-linear", 8)):
        config = load({"adapter": {"r": rank, "target_modules": targets}})
        network = look(config, ("a", "b")).load(config, torch.device("cpu")).network
        weights = network.weights()
        for fields in ({}, {"gram_init": "kaiming"}, {"offset": True}):
            algorithm = algorithms.get("florg", **fields)
            state = algorithm.init(network.initial, weights, Round(0, 1, 0, 1))
            seen = algorithm.view(Shared(state.params), {})
            changes, sizes = [], []
            for path, weight in weights.items():
                product = LowRank(weight.scale * seen[f"{path}.B"].double(), seen[f"{path}.A"].double())
                base = state.base.get(path)
                change = product if base is None else product + base.factors().to(torch.float64)
                changes.append(change.norm())
                sizes.append(weight.matrix().double().norm())
            change_norms, weight_norms = torch.stack(changes), torch.stack(sizes)
            shares = change_norms / weight_norms
            joint = change_norms.norm() / weight_norms.norm()
            print(f"{len(weights)}, {rank}, {fields}: {shares.min():.3f} {shares.max():.3f} {joint:.3f}")


if __name__ == "__main__":
    main()
