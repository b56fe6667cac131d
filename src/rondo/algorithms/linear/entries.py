"""Methods for linear problems, by name. Imports no torch."""

from __future__ import annotations

from rondo.algorithms import formulas
from rondo.algorithms.entries import Entry

ENTRIES: dict[str, Entry] = {
    "rolora-linear": Entry(
        core=True,
        cls="rondo.algorithms.linear.rolora_linear:RoLoRALinear",
        summary="RoLoRA for linear regression: exact B in one round, a gradient step on unit A in the next",
        paper="Chen et al. 2025",
        up="r*out, r*in in turn",
        down="r*in, r*out in turn",
        up_numbers=formulas.alternating,
        down_numbers=formulas.alternating_down,
        whole="none",
    ),
    "ffa-linear": Entry(
        core=True,
        cls="rondo.algorithms.linear.ffa_linear:FFALinear",
        summary="FFA-LoRA for linear regression: A frozen, B exact",
        paper="Chen et al. 2025",
        up="r*out",
        down="r*out",
        up_numbers=formulas.up,
        down_numbers=formulas.up,
        whole="none",
    ),
    "fedrep-linear": Entry(
        core=True,
        cls="rondo.algorithms.linear.fedrep_linear:FedRepLinear",
        summary="FedRep for linear regression: exact personal heads, a gradient step on the representation, QR; "
        "starts from moments",
        paper="Collins et al., ICML 2021",
        up="0",
        down="0",
        up_numbers=formulas.none,
        down_numbers=formulas.none,
        whole="body",
    ),
}
