"""The embedded default of image tasks: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, downloaded nowhere."""

from __future__ import annotations

import numpy as np

from rondo.data.files.tables import Rows

_TEST_SHARE = 5
"""One picture in so many is a test picture."""


def digits() -> tuple[Rows, Rows]:
    """Training and test rows with the columns ``image``, (8, 8) in uint8, and ``label``.

    The file lists its pictures writer by writer, so the last fifth of each digit's pictures, which is the test set,
    comes from other hands than most of the rest. Raises ImportError without scikit-learn.
    """
    from sklearn.datasets import load_digits

    content = load_digits()
    pictures = np.rint(content.images * (255 / 16)).astype(np.uint8)  # grey levels from 0 to 16
    train: Rows = []
    test: Rows = []
    seen, total = [0] * 10, np.bincount(content.target)
    for picture, label in zip(pictures, content.target.tolist(), strict=True):
        seen[label] += 1
        last = seen[label] > total[label] - total[label] // _TEST_SHARE
        (test if last else train).append({"image": picture, "label": label})
    return train, test
