"""A random sample of rows that keeps the shares of labels and owners. The first rows of a sorted file would not."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def sample(
    count: int | None,
    total: int,
    labels: Sequence[str] | None,
    owners: Sequence[str] | None,
    generator: torch.Generator,
) -> Sequence[int]:
    """Numbers of ``count`` of ``total`` rows, in the order of the rows; all of them if ``count`` is None or no less.

    ``labels``, ``owners``: one per row, where rows have them.

    The sample is systematic: the rows are lined up by label, then by owner, and taken at equal distances from a random
    start. All rows are equally likely, and the rows of a label, and of a label and owner, keep their share to within
    one row. Each label lines up the owners in another order, so equal distances do not favour the same ones.
    """
    if count is None or count >= total:
        return range(total)
    strata: dict[str, dict[str, list[int]]] = {}
    for row in torch.randperm(total, generator=generator).tolist():
        by_owner = strata.setdefault(labels[row] if labels is not None else "", {})
        by_owner.setdefault(owners[row] if owners is not None else "", []).append(row)
    line = [row for by_owner in strata.values() for rows in by_owner.values() for row in rows]
    start = int(torch.randint(total, (1,), generator=generator))
    return sorted(line[(start + i * total) // count] for i in range(count))
