"""Golden files of the harder problem: a second independent oracle, in NumPy and float64.

    python tests/golden/generate_wide.py            (re)write one JSON per method into wide/
    python tests/golden/generate_wide.py --check    exit 1 if the files on disk differ

Two layers of different shape and scale, three clients of different size and rank of which some miss rounds, and
fields other than the default. RoLoRA, FLoRG and the four methods of FedLoRU's paper are written from the papers' text,
the others from the equations of their cards; none from the code under test. Conventions that a paper leaves open (a
sign, a split, a rounding) are our cards' or code's. All matrices are dense. Weights are p_k = n_k / sum of n_j over the
round's clients. Every method trains and averages the head H.
"""

import json
import sys

import wide_averages as averages
import wide_products as products
from files import HERE, write_or_compare
from wide_problem import NESTED, RANKS, SCALES, SEED, STEPS, check_gradients, make_problem

FOLDER = HERE / "wide"

METHODS = {
    "fedit": (averages.FedIT, {}),
    "ffa-lora": (averages.FFALoRA, {}),
    "fed-sb": (averages.FedSB, {}),
    "ravan": (averages.Ravan, {"heads": 2}),
    "rolora": (averages.RoLoRA, {"alternate_for": 0.5}),
    "fedsa-lora": (averages.FedSALoRA, {}),
    "florg": (products.FLoRG, {"offset": True}),
    "florg-unaligned": (products.FLoRGUnaligned, {"offset": True}),
    "flexlora": (products.FlexLoRA, {"split": "both", "client_scale": "rank"}),
    "flora": (products.FLoRA, {"client_scale": "rank"}),
    "florist": (products.FLoRIST, {"tau": 0.8, "client_scale": "rank"}),
    "fedex-lora": (products.FedExLoRA, {}),
    "federa": (products.FeDeRA, {"aggregation": "product"}),
    "fedsvd": (products.FedSVD, {"period": 2}),
    "hetlora": (averages.HetLoRA, {"penalty": 0.3, "keep": 0.6, "prune": True}),
    "lora-fair": (products.LoRAFAIR, {"objective": "cosine", "penalty": 0.002}),
    "lora-fair-frobenius": (products.LoRAFAIR, {"objective": "frobenius", "penalty": 0.05}),
    "fedloru": (averages.FedLoRU, {"tau": 2}),
    "pfedloru": (averages.PFedLoRU, {"tau": 2, "restart": "momentum"}),
    "mfedloru": (averages.MFedLoRU, {"tau": 2, "nested_scale": NESTED}),
    "pfedlora": (averages.PFedLoRA, {"phases": "together", "units": "weight"}),
    "fedhm": (products.FedHM, {}),
    "fedrot-lora": (averages.FedRotLoRA, {"strength": 0.7}),
    "raflora": (products.RaFLoRA, {"split": "both"}),
    "fslora": (averages.FSLoRA, {}),
    "fed-plora": (averages.FedPLoRA, {}),
    "fedmomentum": (products.FedMomentum, {"tau": 2}),
    "slora": (products.SLoRA, {"sparse_rounds": 2, "density": 0.4}),
    "lora-a2": (averages.LoRAA2, {"lr_ratio": 3.0}),
}


def golden(name):
    """The problem, the method's inputs and the expected result of each round, as plain lists and numbers."""
    w0, data, lora, gram, _ = problem = make_problem()
    cls, fields = METHODS[name]
    method = cls(problem, fields)
    start = {"state": method.state, "base": {m: c for m, c in method.base.items() if c.any()}}
    expected = method.run()
    init = gram if name.startswith("florg") else start["state"] if name == "ravan" else lora
    clients = {c: {"x": x, "y": y} for c, (x, y) in data.items()}
    if method.ranked:
        clients = {c: d | {"rank": RANKS[c]} for c, d in clients.items()}
    found = {
        "method": name.removesuffix("-frobenius"),
        "fields": fields,
        "seed": SEED,
        "scale": SCALES,
        "lr": method.lr,
        "steps": STEPS,
    }
    found |= {"W0": w0, "clients": clients, "init": init, "draws": method.draws, "start": start}
    return json.loads(json.dumps(found | {"expected": expected}, default=lambda v: v.tolist()))


def main():
    print(f"gradients agree with finite differences to {check_gradients():.1e}")
    return write_or_compare(__doc__, FOLDER, METHODS, golden)


if __name__ == "__main__":
    sys.exit(main())
