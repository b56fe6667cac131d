"""Golden files of the methods that train whole tensors: a third independent oracle, in NumPy and float64.

    python tests/golden/generate_whole.py            (re)write one JSON per method into whole/
    python tests/golden/generate_whole.py --check    exit 1 if the files on disk differ

Five clients of different size, of which some miss rounds, one joins late and one never takes part; batches of four
consecutive rows, so that clients take different numbers of steps; fields other than the default. Written from the
original papers' equations as our cards give them and from FedRep's paper, none from the code under test. Conventions
that a paper leaves open are in each method's docstring. L2GD's coins are an input, so nothing is drawn here.
"""

import json
import sys

import whole_personal as personal
import whole_shared as shared
from files import HERE, difference, write_or_compare
from whole_problem import LR, ROWS, SCALES, SEED, Network, check_gradients

FOLDER = HERE / "whole"
EVERYBODY = ("abcde",) * 4
COINS = (0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 0)  # six rounds
N, P = len(ROWS), 0.4
L2GD = {"alpha": LR * N * (1 - P), "lambda": 0.7, "p": P, "n": N, "coins": COINS}
FEDREP = {"head_epochs": 3, "body_epochs": 1}
MAML = {"inner_lr": 0.15, "delta": 0.01}
DITTO = {"lambda": 0.7, "epochs": 3}
SCAFFOLD = {"server_lr": 0.8}
FULL = {"batch": max(ROWS.values())}  # one batch holds all rows
LITERAL = FULL | {"epochs": 1}

METHODS = {
    "fedavg": (shared.FedAvg, "plain", {}, {}),
    "fedavg-norm": (shared.FedAvg, "norm", FULL, {}),
    "fedprox": (shared.FedProx, "plain", {}, {"mu": 0.3}),
    "fedprox-factors": (shared.FedProx, "factors", {}, {"mu": 0.3}),
    "fedper": (shared.FedPer, "plain", {}, {}),
    "lg-fedavg": (shared.LGFedAvg, "plain", {}, {}),
    "fedrep": (shared.FedRepUniform, "plain", {}, FEDREP | {"unit": "epochs"}),
    "fedrep-updates": (shared.FedRep, "plain", {}, FEDREP | {"unit": "updates"}),
    "fedrep-norm": (shared.FedRep, "norm", FULL, FEDREP | {"unit": "epochs"}),
    "fedrep-factors": (shared.FedRep, "factors", {}, FEDREP | {"unit": "epochs"}),
    "local": (shared.Local, "plain", {}, {}),
    "per-fedavg": (shared.PerFedAvg, "plain", {}, MAML | {"form": "first-order", "support": None}),
    "per-fedavg-split": (shared.PerFedAvg, "plain", {}, MAML | {"form": "first-order", "support": 0.75}),
    "per-fedavg-free": (shared.PerFedAvg, "plain", {}, MAML | {"form": "hessian-free", "support": None}),
    "per-fedavg-free-split": (shared.PerFedAvg, "plain", {}, MAML | {"form": "hessian-free", "support": 0.75}),
    "scaffold-1": (shared.Scaffold, "plain", FULL | {"epochs": 3}, SCAFFOLD | {"option": 1}),
    "scaffold-1-batches": (shared.Scaffold, "plain", {}, SCAFFOLD | {"option": 1, "present": shared.PRESENT[:3]}),
    "scaffold-2": (shared.Scaffold, "plain", {}, SCAFFOLD | {"option": 2}),
    "scaffold-norm": (shared.Scaffold, "norm", FULL, SCAFFOLD | {"option": 2, "present": shared.PRESENT[:5]}),
    "scaffold-factors": (shared.Scaffold, "factors", {}, SCAFFOLD | {"option": 2}),
    "ditto": (personal.Ditto, "plain", {}, DITTO),
    "ditto-norm": (personal.Ditto, "norm", FULL, DITTO),
    "ditto-factors": (personal.Ditto, "factors", {}, DITTO),
    "apfl": (personal.APFL, "plain", {}, {"alpha": 0.3}),
    "apfl-factors": (personal.APFL, "factors", {}, {"alpha": 0.3}),
    "apfl-norm": (personal.APFL, "norm", FULL, {"alpha": 0.3, "present": shared.PRESENT[:5]}),
    "apfl-adaptive": (personal.APFLAdaptive, "plain", {}, {"alpha": 0.3}),
    "apfl-blend": (personal.APFLBlend, "plain", {}, {"alpha": 0.3}),
    "l2gd": (personal.L2GD, "plain", LITERAL, L2GD | {"coins": COINS[:13], "present": EVERYBODY}),
    "l2gd-absent": (personal.L2GD, "plain", {}, L2GD),
    "fed-mtl": (personal.FedMTL, "plain", {}, {"lambda": 0.7}),
    "fed-mtl-norm": (personal.FedMTL, "norm", FULL, {"lambda": 0.7, "present": shared.PRESENT[:5]}),
}


def golden(name):
    """The problem, the method's inputs and the expected result of each round, as plain lists and numbers."""
    cls, kind, training, fields = METHODS[name]
    net = Network(kind, **training)
    method = cls(net, fields)
    found = {"fields": {k: v for k, v in fields.items() if k != "present"}, "network": kind, "seed": SEED, "lr": LR}
    found |= {"epochs": net.epochs, "batch": net.batch, "weighting": method.weighting, "scale": SCALES}
    found |= {"W0": net.base, "clients": {c: {"x": x, "y": y} for c, (x, y) in net.data.items()}, "init": net.init}
    found |= {"expected": method.run(), "adapted": method.adapted(shared.NEWCOMER)}
    return json.loads(json.dumps(found, default=lambda v: v.tolist()))


def check_reductions():
    """Methods agree where their fields say so. Returns the number of comparisons."""

    def of(key, cls, rounds=6, **fields):
        method = cls(Network("plain"), fields)
        results = [{c: v for c, v in r[key].items() if "control:" not in c} for r in method.run()[:rounds]]
        return json.loads(json.dumps(results, default=lambda v: v.tolist()))

    uniform = type("Uniform", (shared.FedAvg,), {"weighting": "uniform"})
    apart = L2GD | {"lambda": 0.0, "coins": (1, 0) * 6}
    fedavg = of("state", shared.FedAvg)
    pairs = [
        (of("state", shared.FedProx, mu=0.0), fedavg),
        (of("state", personal.Ditto, **DITTO), fedavg),
        (of("state", personal.APFL, alpha=0.3), fedavg),
        (of("state", shared.PerFedAvg, inner_lr=0.0, form="hessian", support=None), fedavg),
        (of("state", shared.Scaffold, 1, option=1, server_lr=1.0), of("state", uniform, 1)),
        (of("state", shared.Scaffold, 1, option=2, server_lr=1.0), of("state", uniform, 1)),
        (of("local", personal.APFL, alpha=1.0), of("local", personal.Ditto, **{"lambda": 0.0, "epochs": 2})),
        (of("local", personal.L2GD, 1, **apart), of("local", shared.Local, 1)),
        (of("local", personal.FedMTL, 1, **{"lambda": 0.0}), of("local", shared.Local, 1)),
    ]
    gaps = [difference(one, other) for one, other in pairs]
    assert [gap for gap in gaps if not gap < 1e-12] == []
    return len(pairs)


def main():
    print(f"gradients agree with finite differences to {check_gradients():.1e}")
    print(f"{check_reductions()} reductions hold")
    return write_or_compare(__doc__, FOLDER, METHODS, golden)


if __name__ == "__main__":
    sys.exit(main())
