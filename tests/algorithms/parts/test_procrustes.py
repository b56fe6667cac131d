"""FLoRG's Theorem 1 and Lemma 2, written in NumPy from the paper, against the server's step: where they hold, and where
they cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rondo.algorithms.parts.gram import gram_align, gram_sketch

Array = np.ndarray[Any, np.dtype[np.float64]]


def root(*clients: Array) -> Array:
    """Gtil of equations (4), (6) and (7), (r', k)."""
    values, vectors = np.linalg.eigh(sum(g.T @ g for g in clients) / len(clients))
    kept = values > 1e-12 * values[-1]
    return np.sqrt(values[kept])[:, None] * vectors[:, kept].T


def best(anchor: Array, gtil: Array) -> tuple[Array, float]:
    """U V^T of equation (11), and the smallest positive singular value of G Gtil^T."""
    u, s, vt = np.linalg.svd(anchor @ gtil.T, full_matrices=False)
    return u @ vt, float(s[s > 1e-12 * s[0]][-1])


def server(anchor: Array, *clients: Array) -> Array:
    """The server's next G."""
    old, uploads = torch.from_numpy(anchor), [torch.from_numpy(g) for g in clients]
    mean = torch.stack([gram_sketch(old, g) for g in uploads]).mean(0)
    return gram_align(old, mean).numpy()


def distance(a: Array, b: Array) -> float:
    return float(((a - b) ** 2).sum())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("r", "kept"), [(3, 3), (4, 2), (3, 1)])
def test_up_to_the_rank_the_servers_step_is_the_nearest_as_lemma_2_says(r: int, kept: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    anchor = rng.standard_normal((r, 7))
    client = rng.standard_normal((r, kept)) @ rng.standard_normal((kept, 7))
    gtil = root(client)
    assert gtil.shape == (kept, 7)
    s_best, sigma = best(anchor, gtil)
    new = server(anchor, client)
    np.testing.assert_allclose(new, s_best @ gtil, atol=1e-9)
    for width in np.geomspace(1e-3, 10, 100):
        s = np.linalg.qr(s_best + width * rng.standard_normal((r, kept)))[0]
        for other in (s, s * np.sign((s * s_best).sum(0))):  # QR leaves the signs of the columns open
            more = distance(other @ gtil, anchor) - distance(new, anchor)
            assert more >= sigma * distance(other, s_best) - 1e-9


def test_beyond_the_rank_no_s_meets_theorem_1_and_its_solution_is_not_the_nearest() -> None:
    """The example of FLoRG's card: r = 1 and two clients, so r' = 2."""
    anchor, clients = np.array([[1.0, 0.0]]), [np.array([[1.0, 0.5]]), np.array([[1.0, -0.1]])]
    gtil = root(*clients)
    s_best, _ = best(anchor, gtil)
    new = server(anchor, *clients)
    np.testing.assert_allclose(new, s_best @ gtil, atol=1e-12)
    assert np.linalg.matrix_rank(s_best.T @ s_best) == 1  # equation (8b) asks for the identity of size 2
    assert distance(new, anchor) == pytest.approx(0.04)
    turns = np.linspace(0, 2 * np.pi, 100_001)
    reached = np.stack([np.cos(turns), np.sin(turns)], 1) @ gtil  # every S with a row of norm 1
    assert ((reached - anchor) ** 2).sum(1).min() == pytest.approx(0.010632, abs=1e-5)
    assert (reached @ anchor[0]).max() == pytest.approx(float(new[0] @ anchor[0]))  # the largest trace, equation (10)


def test_lemma_2_fails_where_a_singular_value_is_zero() -> None:
    """Two alignments are equally near, and the smallest positive singular value bounds nothing between them."""
    anchor, gtil = np.diag([1.0, 0.0]), np.eye(2)
    (s_best, sigma), other = best(anchor, gtil), np.diag([1.0, -1.0])
    if distance(other, s_best) < 1:
        other = np.eye(2)
    more = distance(other @ gtil, anchor) - distance(s_best @ gtil, anchor)
    assert (more, sigma) == pytest.approx((0, 1))
    assert distance(other, s_best) == pytest.approx(4)
