"""Shamir's sharing: pinned shares, any threshold of them, and what fewer tell."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.privacy.masking.shares import PRIME, join, split


def test_prime_is_one() -> None:
    """Miller and Rabin's test to the first twelve primes."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        power = pow(base, odd, PRIME)
        assert power == 1 or any(pow(power, 2**k, PRIME) == PRIME - 1 for k in range(twos))


def test_shares_of_a_line_are_as_written_by_hand() -> None:
    """Secret 5 and slope 7: 12, 19, 26."""
    shares = split((5).to_bytes(32), 2, 3, lambda below: 7)
    assert {point: int.from_bytes(share) for point, share in shares.items()} == {1: 12, 2: 19, 3: 26}


def test_shares_of_a_curve_wrap_around_the_prime() -> None:
    """Secret 2^256 - 1 and both coefficients p - 1: s - x - x^2."""
    shares = split(b"\xff" * 32, 3, 3, lambda below: below - 1)
    expected = {x: 2**256 - 1 - x - x * x for x in (1, 2, 3)}
    assert {point: int.from_bytes(share) for point, share in shares.items()} == expected


@given(secret=st.binary(min_size=32, max_size=32), count=st.integers(1, 6), data=st.data())
def test_any_threshold_of_shares_opens(secret: bytes, count: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, count))
    shares = split(secret, threshold, count)
    for points in itertools.combinations(shares, threshold):
        assert join({point: shares[point] for point in points}) == secret


@given(secret=st.binary(min_size=32, max_size=32), other=st.binary(min_size=32, max_size=32))
def test_fewer_shares_fit_every_secret(secret: bytes, other: bytes) -> None:
    """One share of a line lies on a line through any other secret."""
    share = split(secret, 2, 3)[3]
    slope = (int.from_bytes(share) - int.from_bytes(other)) * pow(3, -1, PRIME) % PRIME
    assert split(other, 2, 3, lambda below: slope)[3] == share


@pytest.mark.parametrize(("secret", "threshold", "count"), [(b"x", 1, 1), (bytes(32), 0, 2), (bytes(32), 3, 2)])
def test_split_refuses(secret: bytes, threshold: int, count: int) -> None:
    with pytest.raises(ValueError, match=r"bytes|threshold"):
        split(secret, threshold, count)


@pytest.mark.parametrize("shares", [{}, {0: bytes(33)}, {1: bytes(32)}, {1: b"\xff" * 33}, {1: (2**256).to_bytes(33)}])
def test_join_refuses(shares: dict[int, bytes]) -> None:
    with pytest.raises(ValueError, match="share"):
        join(shares)
