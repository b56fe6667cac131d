"""The traits and hyperparameters that the methods' classes declare, by class. Imports no torch.

Written by ``python tests/algorithms/declare.py`` from the classes; a test says when it is out of date.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rondo.roles import everything, head
from rondo.traits import Traits

TRAITS: Mapping[str, Traits] = {
    "rondo.algorithms.factors.fedit:FedIT": Traits(exact=False, client_ranks=True),
    "rondo.algorithms.factors.ffa_lora:FFALoRA": Traits(exact=True),
    "rondo.algorithms.factors.fed_sb:FedSB": Traits(exact=True),
    "rondo.algorithms.factors.rolora:RoLoRA": Traits(exact=True),
    "rondo.algorithms.factors.fedsa_lora:FedSALoRA": Traits(exact=False, personal=True, default_head="local"),
    "rondo.algorithms.factors.florg:FLoRG": Traits(exact=False, same_coordinates=False, readable=False),
    "rondo.algorithms.factors.florg_unaligned:FLoRGUnaligned": Traits(exact=False),
    "rondo.algorithms.factors.flexlora:FlexLoRA": Traits(exact=False, client_ranks=True, same_coordinates=False),
    "rondo.algorithms.factors.flora:FLoRA": Traits(exact=True, client_ranks=True, same_coordinates=False),
    "rondo.algorithms.factors.fedex_lora:FedExLoRA": Traits(exact=True),
    "rondo.algorithms.factors.federa:FeDeRA": Traits(exact=False),
    "rondo.algorithms.factors.fedsvd:FedSVD": Traits(exact=True, default_head="frozen", same_coordinates=False),
    "rondo.algorithms.factors.hetlora:HetLoRA": Traits(exact=False, client_ranks=True, weighting="tensors"),
    "rondo.algorithms.factors.lora_fair:LoRAFAIR": Traits(exact=False),
    "rondo.algorithms.factors.fedloru:FedLoRU": Traits(exact=False, renews_factors=True),
    "rondo.algorithms.factors.pfedloru:PFedLoRU": Traits(exact=False, personal=True, renews_factors=True),
    "rondo.algorithms.factors.mfedloru:MFedLoRU": Traits(exact=False, client_ranks=True, renews_factors=True),
    "rondo.algorithms.factors.pfedlora:PFedLoRA": Traits(exact=False, personal=True),
    "rondo.algorithms.factors.fedhm:FedHM": Traits(exact=False, client_ranks=True, same_coordinates=False),
    "rondo.algorithms.factors.slora:SLoRA": Traits(exact=False, same_coordinates=False),
    "rondo.algorithms.factors.lora_a2:LoRAA2": Traits(
        exact=True, default_head="frozen", client_ranks=True, varying_shapes=True
    ),
    "rondo.algorithms.factors.fedrot_lora:FedRotLoRA": Traits(exact=False),
    "rondo.algorithms.factors.raflora:RaFLoRA": Traits(exact=False, client_ranks=True, same_coordinates=False),
    "rondo.algorithms.factors.fedmomentum:FedMomentum": Traits(exact=True, same_coordinates=False),
    "rondo.algorithms.whole.fedavg:FedAvg": Traits(exact=True, needs_factors=False),
    "rondo.algorithms.whole.fedprox:FedProx": Traits(exact=True, needs_factors=False),
    "rondo.algorithms.whole.fedper:FedPer": Traits(
        exact=False, needs_factors=False, personal=True, keeps=head, default_head="local"
    ),
    "rondo.algorithms.whole.lg_fedavg:LGFedAvg": Traits(exact=False, needs_factors=False, personal=True, keeps=~head),
    "rondo.algorithms.whole.fedrep:FedRep": Traits(
        exact=False, needs_factors=False, personal=True, keeps=head, default_head="local"
    ),
    "rondo.algorithms.whole.local:LocalTraining": Traits(
        exact=False, needs_factors=False, personal=True, keeps=everything, default_head="local"
    ),
    "rondo.algorithms.whole.scaffold:Scaffold": Traits(
        exact=False, needs_factors=False, weighting="equal", server_step=True, row_steps=False
    ),
    "rondo.algorithms.whole.ditto:Ditto": Traits(exact=False, needs_factors=False, personal=True),
    "rondo.algorithms.whole.apfl:APFL": Traits(exact=False, needs_factors=False, personal=True),
    "rondo.algorithms.whole.l2gd:L2GD": Traits(exact=False, needs_factors=False, personal=True, server_step=True),
    "rondo.algorithms.whole.fed_mtl:FedMTL": Traits(exact=False, needs_factors=False, personal=True, server_step=True),
    "rondo.algorithms.whole.per_fedavg:PerFedAvg": Traits(
        exact=True, needs_factors=False, scored_after_adapting=True, row_steps=False
    ),
    "rondo.algorithms.linear.rolora_linear:RoLoRALinear": Traits(
        exact=False, default_head="frozen", plain_sgd=True, least_squares=True
    ),
    "rondo.algorithms.linear.ffa_linear:FFALinear": Traits(exact=True, default_head="frozen", least_squares=True),
    "rondo.algorithms.linear.fedrep_linear:FedRepLinear": Traits(
        exact=False,
        needs_factors=False,
        personal=True,
        keeps=head,
        default_head="local",
        plain_sgd=True,
        least_squares=True,
        same_coordinates=False,
        readable=False,
    ),
}

NOT_LINEAR = frozenset(
    {
        "rondo.algorithms.factors.florg_unaligned:FLoRGUnaligned",
        "rondo.algorithms.factors.flexlora:FlexLoRA",
        "rondo.algorithms.factors.flora:FLoRA",
        "rondo.algorithms.factors.fedex_lora:FedExLoRA",
        "rondo.algorithms.factors.lora_fair:LoRAFAIR",
        "rondo.algorithms.factors.fedhm:FedHM",
        "rondo.algorithms.factors.raflora:RaFLoRA",
        "rondo.algorithms.factors.fedmomentum:FedMomentum",
    }
)
"""Their servers work on single uploads."""

NOT_PLAIN = frozenset(
    {
        "rondo.algorithms.factors.fed_sb:FedSB",
        "rondo.algorithms.factors.florg:FLoRG",
        "rondo.algorithms.factors.florg_unaligned:FLoRGUnaligned",
        "rondo.algorithms.factors.flexlora:FlexLoRA",
        "rondo.algorithms.factors.flora:FLoRA",
        "rondo.algorithms.factors.hetlora:HetLoRA",
        "rondo.algorithms.factors.pfedloru:PFedLoRU",
        "rondo.algorithms.factors.mfedloru:MFedLoRU",
        "rondo.algorithms.factors.pfedlora:PFedLoRA",
        "rondo.algorithms.factors.slora:SLoRA",
        "rondo.algorithms.whole.fedprox:FedProx",
        "rondo.algorithms.whole.scaffold:Scaffold",
        "rondo.algorithms.whole.ditto:Ditto",
        "rondo.algorithms.whole.apfl:APFL",
        "rondo.algorithms.whole.fed_mtl:FedMTL",
        "rondo.algorithms.whole.per_fedavg:PerFedAvg",
        "rondo.algorithms.linear.rolora_linear:RoLoRALinear",
        "rondo.algorithms.linear.ffa_linear:FFALinear",
        "rondo.algorithms.linear.fedrep_linear:FedRepLinear",
    }
)
"""Their clients minimise more than the plain loss."""

FIELDS: Mapping[str, Mapping[str, Any]] = {
    "rondo.algorithms.factors.rolora:RoLoRA": {"alternate_for": float},
    "rondo.algorithms.factors.florg:FLoRG": {
        "bases": Literal["orthogonal", "kaiming", "svd"],
        "gram_init": Literal["gaussian", "kaiming", "orthogonal"],
        "gram_std": float,
        "offset": bool,
    },
    "rondo.algorithms.factors.florg_unaligned:FLoRGUnaligned": {
        "bases": Literal["orthogonal", "kaiming", "svd"],
        "gram_init": Literal["gaussian", "kaiming", "orthogonal"],
        "gram_std": float,
        "offset": bool,
    },
    "rondo.algorithms.factors.flexlora:FlexLoRA": {
        "split": Literal["up", "both"],
        "client_scale": Literal["run", "rank"],
        "sketch": int,
    },
    "rondo.algorithms.factors.flora:FLoRA": {"client_scale": Literal["run", "rank"]},
    "rondo.algorithms.factors.fedex_lora:FedExLoRA": {"sketch": int},
    "rondo.algorithms.factors.federa:FeDeRA": {"aggregation": Literal["factors", "product"]},
    "rondo.algorithms.factors.fedsvd:FedSVD": {"period": int},
    "rondo.algorithms.factors.hetlora:HetLoRA": {"penalty": float, "keep": float, "prune": bool},
    "rondo.algorithms.factors.lora_fair:LoRAFAIR": {"objective": Literal["cosine", "frobenius"], "penalty": float},
    "rondo.algorithms.factors.fedloru:FedLoRU": {"tau": int, "restart": Literal["random", "momentum"]},
    "rondo.algorithms.factors.pfedloru:PFedLoRU": {"tau": int, "restart": Literal["random", "momentum"]},
    "rondo.algorithms.factors.mfedloru:MFedLoRU": {
        "tau": int,
        "restart": Literal["random", "momentum"],
        "nested_scale": float,
    },
    "rondo.algorithms.factors.pfedlora:PFedLoRA": {
        "phases": Literal["separate", "together"],
        "units": Literal["scale", "weight"],
    },
    "rondo.algorithms.factors.slora:SLoRA": {
        "sparse_rounds": int,
        "density": float,
        "units": Literal["scale", "weight"],
    },
    "rondo.algorithms.factors.lora_a2:LoRAA2": {"lr_ratio": float},
    "rondo.algorithms.factors.fedrot_lora:FedRotLoRA": {"strength": float},
    "rondo.algorithms.factors.raflora:RaFLoRA": {"split": Literal["up", "both"]},
    "rondo.algorithms.factors.fedmomentum:FedMomentum": {"tau": int},
    "rondo.algorithms.whole.fedprox:FedProx": {"mu": float},
    "rondo.algorithms.whole.fedrep:FedRep": {
        "head_epochs": int,
        "body_epochs": int,
        "unit": Literal["epochs", "updates"],
    },
    "rondo.algorithms.whole.scaffold:Scaffold": {"option": Literal["I", "II"], "server_lr": float},
    "rondo.algorithms.whole.ditto:Ditto": {"lam": float, "personal_epochs": int},
    "rondo.algorithms.whole.apfl:APFL": {"mixing": Literal["during", "after"], "alpha": float, "adaptive": bool},
    "rondo.algorithms.whole.l2gd:L2GD": {"lam": float, "p": float},
    "rondo.algorithms.whole.fed_mtl:FedMTL": {"lam": float},
    "rondo.algorithms.whole.per_fedavg:PerFedAvg": {
        "variant": Literal["fo", "hf"],
        "inner_lr": float,
        "support": float,
        "delta": float,
    },
    "rondo.algorithms.linear.fedrep_linear:FedRepLinear": {
        "head_steps": int,
        "start": Literal["moments", "given"],
        "start_rounds": int,
    },
}
