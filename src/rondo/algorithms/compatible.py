"""Options of a run that a method takes, or refuses with the reason; and what each party sees of its tensors. Imports
no torch.

Computed from the method's traits and from whether it is linear, so a method of one's own has its row too. The run's
configuration is refused with these reasons, and ``rondo list --compat`` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from rondo.roles import everything, head
from rondo.traits import Traits

Option: TypeAlias = Literal[
    "secure aggregation",
    "client DP",
    "client DP, masked",
    "example DP",
    "robust choice",
    "robust mean",
    "server optimizer",
    "own ranks",
    "magnitudes",
    "local head",
    "diagnostics",
    "client scores",
    "rounding",
    "top-k",
    "buffered rounds",
]
"""Options: the server opens the sum of uploads alone; differential privacy of clients, by noise of the server or of the
sites in a masked sum, or of examples (``[privacy]``); robust rules that choose or scale uploads, and those that make a
mean; ``[server]``; ``clients.ranks``; ``adapter.use_dora``; ``model.head = "local"``; ``evaluation.diagnostics_every``;
``evaluation.clients_every``; both kinds of ``[compression]``; ``clients.mode = "buffered"``."""

OPTIONS: tuple[Option, ...] = get_args(Option)
"""Every :data:`Option`, in its order."""

_PACKED: tuple[Option, ...] = ("rounding", "top-k")
_OF_MEANS: tuple[Option, ...] = ("secure aggregation", "client DP", "server optimizer", *_PACKED, "buffered rounds")
_LOST = "numbers that a client held back mean nothing"


def refused(traits: Traits, *, linear: bool) -> Mapping[Option, str]:
    """The options that a method of these ``traits`` refuses, with the reason. ``linear``: as
    :attr:`rondo.algorithm.Algorithm.linear`."""
    reasons: dict[Option, str] = {}
    if traits.keeps == everything:
        robust: tuple[Option, ...] = ("robust choice", "robust mean")
        reasons |= dict.fromkeys((*_OF_MEANS, *robust), "it sends nothing, so its server has nothing to work on")
    else:
        reasons |= _of_sums(traits, linear)
    both = reasons.get("client DP", reasons.get("secure aggregation"))
    if both is not None:
        reasons["client DP, masked"] = both
    if traits.least_squares:
        reasons["example DP"] = "its clients minimise exactly, and noise belongs to the steps of a gradient"
    elif not traits.row_steps:
        reasons["example DP"] = "it uses gradients otherwise than for steps of single rows, and noise is in these alone"
    if not traits.client_ranks:
        reasons["own ranks"] = "it does not define clients of different ranks"
    plain_mean = linear and traits.server == "mean" and traits.form == "full" and traits.weighting != "tensors"
    if traits.least_squares or (traits.needs_factors and not plain_mean):
        reasons["magnitudes"] = "it does more than average each tensor, and there B A is not a layer's change"
    if traits.least_squares and not traits.keeps.roles:
        reasons["local head"] = "the problem that it is for has no task head"
    elif traits.keeps != everything and (~traits.keeps).roles <= head.roles:
        reasons["local head"] = "it sends the head alone, so nothing would be sent"
    return reasons


def _of_sums(traits: Traits, linear: bool) -> dict[Option, str]:
    """The refused ones of those options that work on the sum of uploads, or on their mean."""
    if not linear:
        single = "its server works on single uploads, not on their mean"
        return dict.fromkeys((*_OF_MEANS, "robust mean"), single)
    reasons: dict[Option, str] = {}
    if traits.weighting == "tensors":
        reasons["secure aggregation"] = "an upload's weight follows from its tensors, which the server would not see"
        reasons["client DP"] = "an upload's weight follows from its tensors, so one client may count any amount"
        reasons |= dict.fromkeys(_PACKED, "an upload's weight follows from its tensors, and packed ones have another")
    elif traits.form == "chosen":
        reasons |= dict.fromkeys(_PACKED, "an upload holds some slots of the factors, and packing takes whole tensors")
    if traits.form == "chosen":
        reasons["buffered rounds"] = "an upload holds some slots of the factors, which later factors may have elsewhere"
    if traits.server == "other":
        other = "its server puts what it gets into other coordinates, where"
        reasons.setdefault("top-k", f"{other} {_LOST}")
        reasons["buffered rounds"] = f"{other} the change of an older model means nothing"
        reasons["server optimizer"] = (
            "its server puts what it gets into other coordinates than what it sent, so the difference is no direction "
            "to step in"
        )
    elif traits.server == "restart":
        reasons.setdefault("top-k", f"its server starts factors anew, and to them {_LOST}")
        reasons["buffered rounds"] = (
            "its server starts factors anew, and to them the change of older ones means nothing"
        )
    elif traits.server == "step":
        reasons["server optimizer"] = "it defines its server's step itself, so no optimizer can take its place"
        reasons["buffered rounds"] = "it defines its server's step itself, for the uploads of one model"
    return reasons


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
