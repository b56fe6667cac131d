"""The Hessian's spectrum against dense matrices: of random ones, and of the loss of a run's own model."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import rondo
from kinds_of_runs import Pixels, configured, make_sources, pictures
from rondo.errors import ConfigError
from rondo.results.hessian import lanczos, spectrum


def symmetric(size: int, seed: int = 0) -> Tensor:
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return matrix + matrix.mT


def unit(size: int) -> Tensor:
    vector = torch.randn(size, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return vector / vector.norm()


def test_lanczos_with_all_steps_has_all_eigenvalues() -> None:
    matrix = symmetric(30)
    values, weights = lanczos(matrix.mv, unit(30), 100)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(matrix), rtol=0, atol=1e-10)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 9])
def test_lanczos_integrates_polynomials(degree: int) -> None:
    """Five steps are exact up to degree nine."""
    matrix, start = symmetric(30) / 10, unit(30)
    values, weights = lanczos(matrix.mv, start, 5)
    exact = float(start @ torch.linalg.matrix_power(matrix, degree) @ start)
    assert float(weights @ values**degree) == pytest.approx(exact, abs=1e-10)


def test_lanczos_ends_where_the_space_is_closed() -> None:
    """Three steps give three different eigenvalues, without a step into rounding errors."""
    matrix = torch.diag(torch.tensor([2.0, 2.0, -1.0, 0.5, 0.5, 0.5], dtype=torch.float64))
    values, _ = lanczos(matrix.mv, unit(6), 6)
    torch.testing.assert_close(values, torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64))


def test_stable_rank_of_a_diagonal_matrix_is_exact() -> None:
    """With signs for a start, |H v|^2 of a diagonal H is the mean of its squares."""
    diagonal = torch.tensor([-4.0, 3.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    estimate = spectrum(lambda v: diagonal * v, 5, 7, 2, 5, torch.Generator().manual_seed(0))
    assert (estimate.size, estimate.rows) == (5, 7)
    assert estimate.spectral == pytest.approx(4)
    assert estimate.frobenius == pytest.approx(27**0.5)
    assert estimate.stable_rank == pytest.approx(27 / 16)
    assert estimate.error == pytest.approx(0, abs=1e-12)
    assert sum(estimate.weights) == pytest.approx(1)


def test_estimate_comes_close_with_many_vectors() -> None:
    matrix = symmetric(40)
    exact = np.linalg.svd(matrix.numpy())[1]
    estimate = spectrum(matrix.mv, 40, 1, 400, 30, torch.Generator().manual_seed(0))
    assert estimate.spectral == pytest.approx(exact[0], rel=1e-6)
    assert abs(estimate.stable_rank - float((exact**2).sum() / exact[0] ** 2)) < 3 * estimate.error  # type: ignore[operator]
    assert estimate.error < 0.05 * estimate.stable_rank  # type: ignore[operator]


def test_zero_hessian_is_told() -> None:
    with pytest.raises(ConfigError, match="no curvature"):
        spectrum(lambda v: 0 * v, 3, 1, 1, 3, torch.Generator())


# --- of a run ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> rondo.RunResult:
    """A small convolutional network, trained whole."""
    folder = tmp_path_factory.mktemp("whole")
    rows = pictures(80)
    images, labels = np.stack([r["image"] for r in rows]), np.array([r["label"] for r in rows])
    np.savez(folder / "rows.npz", x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    config, _ = configured("whole tensors", folder, algorithm={"name": "fedavg"})
    config["data"] = {"source": str(folder / "rows.npz"), "validation_fraction": 0.0}
    return rondo.run(config, run_dir=folder / "run", device="cpu")


def dense(result: rondo.RunResult, rows: list[dict[str, Any]]) -> np.ndarray:
    """The Hessian of the mean cross-entropy by torch's own double derivative, in float64, from the run's files."""
    from safetensors.torch import load_file

    (file,) = (result.run_dir / "adapter").glob("*.safetensors")
    state = {n: t.double() for n, t in load_file(file).items()}
    module = Pixels(3).double().eval()
    names = [n for n, _ in module.named_parameters()]
    labels = json.loads((result.run_dir / "adapter" / "labels.json").read_text())
    images = torch.stack([torch.tensor(np.asarray(r["image"])) for r in rows]).permute(0, 3, 1, 2).double()
    targets = torch.tensor([labels.index(r["label"]) for r in rows])
    shapes = [state[n].shape for n in names]

    def loss(flat: Tensor) -> Tensor:
        parts = torch.split(flat, [s.numel() for s in shapes])
        tensors = {n: p.reshape(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        output = torch.func.functional_call(module, {**state, **tensors}, (images / 255,))
        return functional.cross_entropy(output, targets)

    flat = torch.cat([state[n].flatten() for n in names])
    return torch.autograd.functional.hessian(loss, flat).numpy()  # type: ignore[no-untyped-call, no-any-return]


@pytest.mark.slow
def test_run_equals_its_dense_hessian(finished: rondo.RunResult) -> None:
    """The same vectors see the same matrix; the run computes in float32."""
    estimate = rondo.hessian(finished.run_dir, probes=12, steps=20, device="cpu", allow_code=True)
    matrix = dense(finished, pictures(80))
    seen = spectrum(torch.from_numpy(matrix).mv, len(matrix), 80, 12, 20, torch.Generator().manual_seed(0))
    assert (estimate.size, estimate.rows) == (seen.size, seen.rows) == (155, 80)
    assert estimate.frobenius == pytest.approx(seen.frobenius, rel=1e-4)
    values = np.linalg.svd(matrix)[1]
    assert estimate.spectral == pytest.approx(values[0], rel=1e-4)
    exact = float((values**2).sum() / values[0] ** 2)
    assert abs(estimate.stable_rank - exact) < 3 * estimate.error  # type: ignore[operator]


def test_rows_and_clients_are_chosen(finished: rondo.RunResult) -> None:
    """The model is the server's in both cases; the same seed draws the same rows."""
    entry = finished.run_dir / "partition.json"
    clients = json.loads(entry.read_text())["clients"]
    name = next(iter(clients))
    of_client = rondo.hessian(finished.run_dir, client=name, probes=1, steps=4, device="cpu", allow_code=True)
    assert (of_client.rows, of_client.error) == (clients[name]["train"], None)
    five = partial(rondo.hessian, finished.run_dir, rows=5, probes=1, steps=4, device="cpu", allow_code=True)
    some = [five(seed=seed) for seed in (1, 1, 2)]
    assert some[0] == some[1] != some[2]
    assert some[0].rows == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probes": 0}, "probes: must be at least 1, got 0"),
        ({"steps": 0}, "steps: must be at least 1, got 0"),
        ({"rows": 81}, "rows: there are 80: lower it"),
        ({"client": "nobody"}, "client: no client 'nobody'; there are: "),
    ],
)
def test_bad_options_are_told(finished: rondo.RunResult, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        rondo.hessian(finished.run_dir, device="cpu", allow_code=True, **options)
    assert message in str(raised.value)


def test_factors_in_a_transformer_are_refused(tmp_path: Path) -> None:
    config, given = configured("shared factors", make_sources(tmp_path), rounds=1)
    run = rondo.run(config, run_dir=tmp_path / "run", device="cpu", **given)
    with pytest.raises(ConfigError, match="can be differentiated once only"):
        rondo.hessian(run.run_dir, probes=1, steps=2, device="cpu")
