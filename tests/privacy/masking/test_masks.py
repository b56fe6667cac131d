"""Masks cancel in a sum, look like noise, and come from published primitives."""

from __future__ import annotations

import hmac
import random

import numpy
import pytest
from scipy.stats import chisquare

pytest.importorskip("cryptography")

from rondo.privacy.masking import masks
from rondo.privacy.masking.integers import Ring

RINGS: tuple[Ring, ...] = (32, 64)


def test_stream_is_that_of_the_standard() -> None:
    """RFC 8439, appendix A.1, test vector 1."""
    expected = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert masks.stream(bytes(32), 8, 32).tobytes().hex() == expected
    assert masks.stream(bytes(32), 4, 64).tobytes().hex() == expected


def test_agreed_key_follows_the_standards() -> None:
    """The first vector of RFC 7748, section 5.2, and RFC 5869 written out."""
    private = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    public = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    secret = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    extracted = hmac.digest(b"context", secret, "sha256")
    assert masks.agreed(private, public, "mask", b"context") == hmac.digest(extracted, b"rondo mask\1", "sha256")


def test_both_sides_agree_on_a_key() -> None:
    one, other = b"\1" * 32, b"\2" * 32
    key = masks.agreed(one, masks.public_key(other), "mask", b"context")
    assert key == masks.agreed(other, masks.public_key(one), "mask", b"context")


def test_agreed_key_refuses_a_key_of_low_order() -> None:
    with pytest.raises(ValueError, match=r".+"):
        masks.agreed(b"\1" * 32, bytes(32), "mask", b"context")


@pytest.mark.parametrize("ring", RINGS)
def test_numbers_return_from_the_ring(ring: Ring) -> None:
    edge = 2 ** (ring - 1)
    numbers = numpy.array([0, 1, -1, edge - 1, -edge], numpy.int64)
    assert masks.from_ring(masks.to_ring(numbers, ring), ring).tolist() == numbers.tolist()
    if ring == 32:
        assert masks.from_ring(masks.to_ring(numpy.array([edge], numpy.int64), 32), 32).tolist() == [-edge]


@pytest.mark.parametrize("ring", RINGS)
def test_mask_adds_its_own_stream_and_those_of_pairs(ring: Ring) -> None:
    own, one, other = (bytes([k]) * 32 for k in range(3))
    streams = [masks.stream(seed, 5, ring) for seed in (own, one, other)]
    assert masks.mask(own, [one], [other], 5, ring).tolist() == (streams[0] - streams[1] + streams[2]).tolist()
    assert masks.opened(streams[0], [own], ring).tolist() == [0] * 5


@pytest.mark.parametrize("ring", RINGS)
def test_bytes_of_a_masked_vector_are_uniform(ring: Ring) -> None:
    draw = random.Random(0)
    own, other = draw.randbytes(32), draw.randbytes(32)
    numbers = numpy.arange(-100_000, 100_000, 2, dtype=numpy.int64)
    masked = masks.to_ring(numbers, ring) + masks.mask(own, [other], [], len(numbers), ring)
    assert chisquare(numpy.bincount(numpy.frombuffer(masked.tobytes(), numpy.uint8), minlength=256)).pvalue > 1e-3
    plain = numpy.frombuffer(masks.to_ring(numbers, ring).tobytes(), numpy.uint8)
    assert chisquare(numpy.bincount(plain, minlength=256)).pvalue < 1e-9


def test_sealed_share_opens_for_its_reader_and_set_only() -> None:
    sealed = masks.seal(b"k" * 32, b"share", b"set")
    assert masks.unseal(b"k" * 32, sealed, b"set") == b"share"
    for key, box, context in (
        (b"l" * 32, sealed, b"set"),
        (b"k" * 32, sealed[:-1] + bytes([sealed[-1] ^ 1]), b"set"),
        (b"k" * 32, sealed, b"another set"),
    ):
        with pytest.raises(ValueError, match="not sealed for this site and set"):
            masks.unseal(key, box, context)
