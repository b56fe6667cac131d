"""Secret streams: their laws, and who can repeat them."""

import torch

from rondo.privacy.mechanism.noise import SecretStream


def test_normal_numbers_follow_their_law() -> None:
    x = SecretStream(1).normal(200_001)
    assert len(x) == 200_001
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.std()) - 1) < 0.01
    distance = (torch.special.ndtr(x.sort().values) - torch.linspace(0, 1, len(x), dtype=x.dtype)).abs().max()
    assert float(distance) < 1.95 / len(x) ** 0.5


def test_poisson_draws_each_place_by_itself() -> None:
    stream = SecretStream(2)
    counts = torch.tensor([float(len(stream.chosen(100, 0.05))) for _ in range(4000)])
    assert abs(float(counts.mean()) - 5) < 0.15
    assert abs(float(counts.var()) - 4.75) < 0.5
    assert counts.min() == 0


def test_only_a_debug_seed_repeats_a_stream() -> None:
    assert SecretStream(5, "a").normal(4).equal(SecretStream(5, "a").normal(4))
    assert not SecretStream(5, "a").normal(4).equal(SecretStream(5, "b").normal(4))
    assert not SecretStream(None, "a").normal(4).equal(SecretStream(None, "a").normal(4))
