"""The gradient of a private step: one row at a time, the clip and the law of the noise."""

from functools import partial

import torch
from torch import Tensor

from rondo.params import Params
from rondo.privacy.mechanism.noise import SecretStream
from rondo.privacy.steps import add_noise, clipped_sums, row_gradients

OWNER = torch.tensor([0, 0, 1, 1, 1])


def _problem() -> tuple[Params, Tensor]:
    made = torch.Generator().manual_seed(1)
    shapes = {"m.A": (2, 3, 6), "m.B": (2, 4, 3)}
    return (
        {n: torch.randn(s, generator=made, dtype=torch.float64) for n, s in shapes.items()},
        torch.randn(5, 6, generator=made, dtype=torch.float64),
    )


def _loss(seen: Params, rows: Tensor) -> Tensor:
    return (seen["m.B"] @ seen["m.A"] @ rows.unsqueeze(-1)).tanh().square().flatten(1).sum(1)


def test_row_gradients_equal_a_loop_over_rows() -> None:
    trained, rows = _problem()
    found = row_gradients(trained, OWNER, partial(_loss, rows=rows))
    for i, k in enumerate(OWNER.tolist()):
        one = {n: t[k : k + 1].clone().requires_grad_() for n, t in trained.items()}
        _loss(one, rows[i : i + 1]).sum().backward()
        for name, tensor in one.items():
            torch.testing.assert_close(found[name][i], tensor.grad[0], rtol=1e-12, atol=1e-14)


def test_clip_is_over_all_tensors_of_a_row() -> None:
    gradients = {"a": torch.tensor([[3.0], [0.3], [0.0]]), "b": torch.tensor([[4.0], [0.4], [0.0]])}
    sums = clipped_sums(gradients, torch.tensor([0, 1, 1]), 2, 1.0)
    torch.testing.assert_close(sums["a"], torch.tensor([[0.6], [0.3]], dtype=torch.float64))
    torch.testing.assert_close(sums["b"], torch.tensor([[0.8], [0.4]], dtype=torch.float64))


def test_huge_and_non_finite_rows_stay_within_the_clip() -> None:
    values = [1e30, float("inf"), float("nan"), -1e-40]
    sums = clipped_sums({"a": torch.tensor(values)[:, None]}, torch.arange(4), 4, 0.5)
    assert sums["a"].flatten().abs().le(0.5).all()
    assert sums["a"][:3].flatten().tolist() == [0.5, 0.0, 0.0]


def test_noise_has_its_law_where_a_client_has_no_rows() -> None:
    sums = clipped_sums({"a": torch.zeros(0, 200_000)}, torch.zeros(0, dtype=torch.long), 2, 1.0)
    streams = [SecretStream(3, f"client {k}") for k in range(2)]
    first = add_noise(sums, 2.0, streams, torch.tensor([4.0, 8.0]))["a"]
    second = add_noise(sums, 2.0, streams, torch.tensor([4.0, 8.0]))["a"]
    torch.testing.assert_close(first.std(1), torch.tensor([0.5, 0.25], dtype=torch.float64), rtol=0.01, atol=0)
    for other in (first[1], second[0]):
        assert abs(float(torch.corrcoef(torch.stack([first[0], other]))[0, 1])) < 0.01
