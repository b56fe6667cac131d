"""FedLoRU's Figure 1: the stable rank of the Hessian of a loss on 50 images and on 500, every five epochs.

    python benchmarks/fedloru_hessian.py --data ~/datasets/cifar100 [--seeds 5] [--epochs 30]

The paper trains a ResNet-18 on so many images of CIFAR-100 and estimates stable ranks from a smoothed spectral density
(appendix D.3). Here it is FedRep's CNN on images of 16 x 16 pixels, and the stable rank is ``rondo.hessian``'s. One
client holds the images, so five epochs are one round. Every step is a run that is resumed for one round more. Without
``--data`` the images are scikit-learn's digits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from simulation import machine, versions

import rondo

SIZES, EPOCHS = (50, 500), 5
"""Images, and epochs between two measurements."""


def config(data: Path | None, images: int, seed: int) -> dict[str, Any]:
    """The training of one network."""
    source = {} if data is None else {"source": str(data), "test_split": "test"}
    return {
        "rounds": 1,
        "seed": seed,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "builtin:cnn"},
        "task": {"kind": "image-classification", "image_size": 16, "normalize": "half"},
        "data": {**source, "validation_fraction": 0.0, "max_train_rows": images},
        "partition": {"kind": "iid", "clients": 1},
        "train": {"what": "all", "optimizer": "sgd", "lr": 0.05, "batch_size": 10, "local_epochs": EPOCHS},
        "evaluation": {"every": 0, "diagnostics_every": 0},
    }


def ranks(data: Path | None, images: int, seed: int, epochs: int, probes: int, folder: Path) -> list[dict[str, float]]:
    """Stable rank and training loss after every five epochs."""
    run, found = folder / f"{images}-{seed}", []
    for done in range(EPOCHS, epochs + 1, EPOCHS):
        if done == EPOCHS:
            result = rondo.run(config(data, images, seed), run_dir=run, device="cpu")
        else:
            result = rondo.resume(run, rounds=done // EPOCHS, device="cpu")
        spectrum = rondo.hessian(run, probes=probes, device="cpu")
        found.append({"epochs": done, "stable_rank": spectrum.stable_rank, "loss": result.history[-1]["loss"]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="CIFAR-100, as rondo reads it")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--probes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "fedloru-hessian.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[int, list[list[dict[str, float]]]] = {images: [] for images in SIZES}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            for images, of_size in found.items():
                of_size.append(ranks(args.data, images, seed, args.epochs, args.probes, Path(folder)))
    few, many = SIZES
    print("epochs  " + "  ".join(f"{images} images (loss)" for images in SIZES) + "  seeds where few are higher")
    for place, row in enumerate(found[few][0]):
        columns = {images: [of_seed[place] for of_seed in of_size] for images, of_size in found.items()}
        means = [{key: statistics.fmean(c[key] for c in column) for key in row} for column in columns.values()]
        texts = [f"{mean['stable_rank']:.2f} ({mean['loss']:.2f})" for mean in means]
        higher = sum(a["stable_rank"] > b["stable_rank"] for a, b in zip(columns[few], columns[many], strict=True))
        print(f"{int(row['epochs']):6}  {texts[0]:>18}  {texts[1]:>19}  {higher} of {args.seeds}")
    content = {"machine": machine(), "versions": versions(), "data": "digits" if args.data is None else "CIFAR-100"}
    content |= {"seeds": args.seeds, "probes": args.probes, "ranks": found}
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
