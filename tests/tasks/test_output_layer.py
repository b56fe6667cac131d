"""The output layer's loss and gradient, against torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from rondo.tasks.language import output_layer
from rondo.tasks.language.output_layer import OutputLayer


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 7])
def test_loss_and_gradient_are_those_of_cross_entropy(
    dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch, logits_of: Callable[[int, int], None]
) -> None:
    """Also over several parts, several steps in a part, equal logits, and logits whose exponential overflows."""
    g = torch.Generator().manual_seed(0)
    tokens, width, words = 37, 5, 11
    weight = torch.randn(words, width, generator=g, dtype=torch.float64).to(dtype)
    states = torch.randn(tokens, width, generator=g, dtype=torch.float64).to(dtype)
    states[0], states[1] = 0, 200 * states[1]
    targets = torch.randint(words, (tokens,), generator=g)
    # In bfloat16, a gradient that is scaled after it is rounded differs from one that is scaled before.
    scale = torch.ones(tokens) if dtype == torch.bfloat16 else torch.rand(tokens, generator=g, dtype=dtype)
    logits_of(rows, words)
    monkeypatch.setattr(output_layer, "_STEP_BYTES", 2 * weight.element_size() * words)

    mine, plain = (states.clone().requires_grad_() for _ in range(2))
    layer = OutputLayer(lambda x: x @ weight.T, words)
    assert max(len(range(tokens)[part]) for part in layer.parts(states)) == rows
    losses = layer.losses(mine, targets)
    logits = plain @ weight.T
    expected = functional.cross_entropy(
        logits if dtype != torch.bfloat16 else logits.float(), targets, reduction="none"
    )
    assert losses.dtype == expected.dtype
    torch.testing.assert_close(losses, expected)
    (losses * scale).sum().backward()
    (expected * scale).sum().backward()
    torch.testing.assert_close(mine.grad, plain.grad)

    with torch.no_grad():
        torch.testing.assert_close(layer.losses(states, targets), expected)


def test_one_token_has_its_logits_however_many_words(logits_of: Callable[[int, int], None]) -> None:
    logits_of(1, 100)
    assert list(OutputLayer(lambda x: x, 101).parts(torch.zeros(2, 1))) == [slice(0, 1), slice(1, 2)]
