"""Bytes and seconds of a round whose uploads are masked, against one whose uploads are not, by number of sites.

python benchmarks/masked_sums.py [--sites 10 100] [--numbers 100000 1000000] [--ring 32] [--repeats 3] [--out FILE]

Without training and network: uploads are random, and every letter is made into bytes and read back. Sites do their work
one after the other, so the seconds of a site are the mean over them. The broadcast is that of a method whose upload
has the form of what it was sent. Without protection a site encodes its upload, and the server reads it and adds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric import ec

from rondo.algorithm import Client, Upload
from rondo.engine.wire import masked
from rondo.engine.wire.envelope import Envelope, decode_upload, encode_upload
from rondo.federation.identity import peers
from rondo.privacy.masking.integers import FixedPoint, Ring
from rondo.privacy.masking.opening import ServerSession
from rondo.privacy.masking.session import SiteSession, Terms
from rondo.privacy.masking.shares import threshold_of

ENVELOPE = Envelope("0" * 16, 0, "site-000", "0" * 64, 100, 100.0)


@dataclass
class Cost:
    """Bytes and seconds per site, and seconds of the server, in one round."""

    up: float = 0.0
    down: float = 0.0
    site: float = 0.0
    server: float = 0.0

    @contextmanager
    def timed(self, who: str, among: int = 1) -> Iterator[None]:
        """Within, the work is that of one of ``among`` sites, or of the server."""
        start = time.perf_counter()
        yield
        setattr(self, who, getattr(self, who) + (time.perf_counter() - start) / among)


def plain(changes: Sequence[torch.Tensor]) -> tuple[Cost, torch.Tensor]:
    """A round without protection, and the mean."""
    cost, count = Cost(), len(changes)
    total = torch.zeros(len(changes[0]), dtype=torch.float64)
    for change in changes:
        with cost.timed("site", count):
            data = encode_upload(Upload(Client("site", 1), {"w": change.float()}, 1.0), ENVELOPE)
        with cost.timed("server"):
            total += decode_upload(data, len(data), len(data)).tensors()["w"].double()
        cost.up += len(data) / count
        cost.down += len(data) / count
    return cost, total / count


def protected(
    changes: Sequence[torch.Tensor], points: FixedPoint, keys: Sequence[ec.EllipticCurvePrivateKey]
) -> tuple[Cost, torch.Tensor]:
    """A round with masks, and the mean."""
    cost, count, numbers = Cost(), len(changes), len(changes[0])
    names = [f"site-{k:03}" for k in range(count)]
    facts = ("0" * 16, 0, "0" * 64, "0" * 64, "0" * 64, ("w",), points.ring, points.fraction)
    terms = Terms(*facts, largest=1.0, threshold=threshold_of(count))
    verifiers = {name: partial(peers.signed, key.public_key()) for name, key in zip(names, keys, strict=True)}
    sites = {name: SiteSession(name, terms, 2, verifiers) for name in names}
    server = ServerSession(terms, numbers)
    cost.down += len(encode_upload(Upload(Client("site", 1), {"w": changes[0].float()}, 1.0), ENVELOPE))
    for name, key in zip(names, keys, strict=True):
        asked = masked.AskReady(terms.run, 0, 0, terms.threshold, 1.0, (name,)).encode()
        with cost.timed("site", count):
            masked.AskReady.decode(asked)
            sites[name], said = sites[name].ready(0, terms, partial(peers.sign, key))
            data = masked.encode_ready(said)
        with cost.timed("server"):
            server = server.with_ready(masked.decode_ready(data, name))
        cost.up, cost.down = cost.up + len(data) / count, cost.down + len(asked) / count
    with cost.timed("server"):
        server, named = server.name_set()
        asked = masked.AskMasked(terms.run, 0, named).encode()
    for name, change in zip(names, changes, strict=True):
        with cost.timed("site", count):
            integers = points.encode(change, 1.0).numpy()
            sites[name], sent = sites[name].masked(masked.AskMasked.decode(asked).named, integers)
            data = masked.encode_sent(sent, names)
        with cost.timed("server"):
            server = server.with_sent(masked.decode_sent(data, name, names, numbers, points.ring))
        cost.up, cost.down = cost.up + len(data) / count, cost.down + len(asked) / count
    for name, letter in server.unmask().items():
        with cost.timed("server"):
            asked = masked.AskShares(terms.run, 0, letter).encode(name)
        with cost.timed("site", count):
            sites[name], given = sites[name].unmask(masked.AskShares.decode(asked, name).unmask)
            data = masked.encode_shares(given, names)
        with cost.timed("server"):
            server = server.with_shares(masked.decode_shares(data, name, names))
        cost.up, cost.down = cost.up + len(data) / count, cost.down + len(asked) / count
    with cost.timed("server"):
        mean = points.decode(torch.from_numpy(server.sum()), float(count), count) / count
    return cost, mean


def compared(sites: int, numbers: int, ring: Ring, repeats: int) -> dict[str, object]:
    """Both rounds: bytes of one, and the median seconds of the ``repeats``."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(numbers, generator=generator, dtype=torch.float64) for _ in range(sites)]
    changes = [d / d.norm() for d in drawn]
    points, keys = FixedPoint.of(ring, 1.0, sites), [ec.generate_private_key(ec.SECP384R1()) for _ in range(sites)]
    rounds = [(plain(changes), protected(changes, points, keys)) for _ in range(repeats)]
    error = max(float((one[1] - other[1]).abs().max()) for one, other in rounds)
    costs = []
    for turn in (0, 1):
        of_turn = [asdict(both[turn][0]) for both in rounds]
        costs.append({key: statistics.median(cost[key] for cost in of_turn) for key in of_turn[0]})
    traffic = [cost["up"] + cost["down"] for cost in costs]
    return {
        "sites": sites,
        "numbers": numbers,
        "ring": ring,
        "plain": costs[0],
        "masked": costs[1],
        "bytes_ratio": traffic[1] / traffic[0],
        "largest_error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--numbers", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--ring", type=int, choices=[32, 64], default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = []
    for sites in options.sites:
        for numbers in options.numbers:
            found = compared(sites, numbers, options.ring, options.repeats)
            results.append(found)
            print(f"{sites} sites, {numbers} numbers, {options.ring} bits: {found['bytes_ratio']:.4f} times the bytes")
            for name in ("plain", "masked"):
                cost = found[name]
                assert isinstance(cost, dict)
                parts = f"up {cost['up']:.0f} B, down {cost['down']:.0f} B per site; "
                print(f"  {name}: {parts}{cost['site']:.4f} s per site, {cost['server']:.4f} s at the server")
            print(f"  largest difference of the means: {found['largest_error']:.2g}")
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
