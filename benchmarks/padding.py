"""Share of padding in the steps of clients that draw rows of W9's lengths, with and without grouping by length.

    python benchmarks/padding.py --alpaca FOLDER

No model runs. Twenty clients alone, and ten cohorts of four whose steps are padded to the longest row of all.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from workloads import WORKLOADS, alpaca_texts, tokenizer

from rondo.engine.client.plain_step import batches
from rondo.tasks.language.text import TextExample


def share(steps: Sequence[Sequence[TextExample]]) -> float:
    """Padding over all places of ``steps``, each padded to its longest row."""
    real = sum(row.cost for step in steps for row in step)
    return 1 - real / sum(len(step) * max(row.cost for row in step) for step in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alpaca", type=Path, required=True)
    args = parser.parse_args()
    work, draw = WORKLOADS["W9"], random.Random(0)
    coder = tokenizer(work)
    lengths = [len(ids) + 1 for ids in coder(alpaca_texts(work, coder, args.alpaca))["input_ids"]]

    def epoch(rows: int, batch: int, grouped: bool, seed: int) -> list[list[TextExample]]:
        examples = [TextExample((0,) * draw.choice(lengths), 0) for _ in range(rows)]
        return list(batches(examples, batch, torch.Generator().manual_seed(seed), group_by_length=grouped))

    print(f"{'rows':>5} {'batch':>5} {'grouped':>8} {'alone':>7} {'four together':>14}")
    for rows, batch in ((8, 8), (32, 8), (128, 8), (64, 4), (64, 16)):
        for grouped in (True, False):
            alone = share([step for k in range(20) for step in epoch(rows, batch, grouped, k)])
            together = []
            for k in range(10):
                four = [epoch(rows, batch, grouped, 4 * k + i) for i in range(4)]
                together += [[row for step in steps for row in step] for steps in zip(*four, strict=True)]
            print(f"{rows:5} {batch:5} {grouped!s:>8} {alone:7.0%} {share(together):14.0%}")


if __name__ == "__main__":
    main()
