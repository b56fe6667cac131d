"""Uploads as vectors, and their mean."""

from __future__ import annotations

import pytest
import torch

from rondo.messages import Client, Upload, weighted_mean
from rondo.privacy.masking.changes import Changes


def uploads(count: int) -> list[Upload]:
    draw = torch.Generator().manual_seed(0)
    return [
        Upload(
            Client(str(k), k + 1),
            {"m.B": torch.randn(3, 2, generator=draw), "head:b": torch.randn(4, generator=draw).double()},
            float(k + 1),
        )
        for k in range(count)
    ]


def test_mean_of_changes_is_mean_of_uploads() -> None:
    sent = uploads(5)
    changes = Changes.around(sent[0].params)
    total = sum((u.weight * changes.of(u) for u in sent), torch.zeros(10, dtype=torch.float64))
    mean, expected = changes.mean(total, 15.0, 5), weighted_mean(sent)
    assert (mean.weight, mean.count) == (expected.weight, expected.count)
    for name, tensor in expected.params.items():
        torch.testing.assert_close(mean.params[name], tensor, rtol=1e-12, atol=1e-12)


def test_client_that_learned_nothing_adds_nothing() -> None:
    (upload,) = uploads(1)
    assert Changes.around(upload.params).of(upload).count_nonzero() == 0


def test_order_of_tensors_does_not_matter() -> None:
    one, other = uploads(2)
    turned = Upload(other.client, dict(reversed(other.params.items())), other.weight)
    changes = Changes.around(one.params)
    assert changes.of(turned).equal(changes.of(other))


@pytest.mark.parametrize("params", [{"m.B": torch.zeros(3, 2)}, {"m.B": torch.zeros(2, 3), "head:b": torch.zeros(4)}])
def test_other_tensors_are_refused(params: dict[str, torch.Tensor]) -> None:
    (upload,) = uploads(1)
    with pytest.raises(ValueError, match="client 9"):
        Changes.around(upload.params).of(Upload(Client("9", 1), params, 1.0))
