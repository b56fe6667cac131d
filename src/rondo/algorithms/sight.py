"""The parties of a federation, and their sight of a method's tensors. Imports no torch.

Computed from the method's traits, as :mod:`rondo.algorithms.compatible` is: a method of one's own has its lines too.
"""

from __future__ import annotations

from collections.abc import Mapping

from rondo.algorithms.compatible import Option, refused
from rondo.roles import everything
from rondo.traits import Traits


def sight(traits: Traits, *, linear: bool) -> Mapping[str, str]:
    """A sentence per party. ``linear``: as :attr:`rondo.algorithm.Algorithm.linear`."""
    reasons = refused(traits, linear=linear)

    def under(option: Option, effect: str, name: str) -> str:
        return f"{name}: {effect}" if option not in reasons else f"{name} is refused: {reasons[option]}"

    masked = under("secure aggregation", "their sum alone", "secure aggregation")
    if "client DP, masked" not in reasons:
        masked += ", and of it at most epsilon about a client with client DP"
    client = under("client DP", "at most epsilon about a client", "client DP")
    example = under("example DP", "at most epsilon about a row", "example DP")
    if "example DP" not in reasons:
        masked += ". With example DP, at most epsilon about a row, masked or not"
    own = "nothing but its rows"
    if traits.keeps == everything:
        return {
            "server": "no tensor: nothing is sent",
            "other sites": "nothing",
            "reader of the adapter": "the start alone: no client's tensors are in it",
            "stays with the client": "its whole model",
        }
    if traits.personal:
        own = "tensors of its own, which no letter holds"
    mean = "the mean of the uploads, in the broadcast; of two clients each has the other's upload"
    single = "what the server makes of single uploads, which a broadcast may hold one by one"
    return {
        "server": f"every number of each upload. {masked}",
        "other sites": mean if linear else single,
        "reader of the adapter": f"whatever a model tells of its rows. {client}; {example}",
        "stays with the client": own,
    }
