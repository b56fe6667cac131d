"""Robust rules, server optimizers and methods, by name. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from rondo.algorithms import formulas
from rondo.algorithms.formulas import Numbers, Whole

Rule: TypeAlias = Literal[
    "clip", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "nnm-trimmed-mean"
]
"""A rule of robust aggregation; :mod:`rondo.algorithms.wrappers.robust` defines each."""

RULES: tuple[Rule, ...] = get_args(Rule)
"""Every :data:`Rule`, in its order."""

SERVER_OPTIONS: dict[str, tuple[str, ...]] = {
    "none": (),
    "sgd": ("lr",),
    "momentum": ("lr", "beta1"),
    "adam": ("lr", "beta1", "beta2", "tau"),
    "yogi": ("lr", "beta1", "beta2", "tau"),
    "adagrad": ("lr", "beta1", "tau"),
}
"""The server optimizers, and the keys of ``[server]`` that each one takes."""


@dataclass(frozen=True)
class Entry:
    """The facts about an algorithm that are known without importing it. A test compares every field with the class."""

    cls: str
    """``package.module:Class``."""
    summary: str
    """One line for ``rondo list``."""
    paper: str
    """First author, venue if any, year."""
    exact: bool
    linear: bool
    personal: bool
    head: Literal["shared", "local", "frozen"]
    up: str
    """Numbers that a client uploads per adapted module, in words, for a client that has the run's rank r."""
    down: str
    """The same for the numbers that a client receives."""
    up_numbers: Numbers
    """``up`` as a function."""
    down_numbers: Numbers
    """``down`` as a function."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters: name and type."""
    client_ranks: bool = False
    """Whether clients may have their own ranks."""
    needs_factors: bool = True
    """Whether it is about low-rank factors. Other methods train whole tensors too, and nothing else if there are no
    factors."""
    whole: Whole = "all"
    """Whole tensors that travel, up and down, of those that the method is given. A head that is local or frozen by
    ``model.head`` is not."""

    @property
    def flags(self) -> tuple[str, str, str]:
        """Exact, linear and personal, in words. "whole": exact where whole tensors are trained alone. "one rank":
        linear where clients have no ranks of their own."""
        exact = ("yes" if self.needs_factors else "whole") if self.exact else "no"
        linear = ("one rank" if self.client_ranks else "yes") if self.linear else "no"
        return exact, linear, "yes" if self.personal else "no"


_CYCLE_FIELDS = {"tau": int, "restart": Literal["random", "momentum"]}

_CLIENT_SCALE = Literal["run", "rank"]

_UNITS = Literal["scale", "weight"]

_FLORG_FIELDS = {
    "bases": Literal["orthogonal", "kaiming", "svd"],
    "gram_init": Literal["gaussian", "kaiming", "orthogonal"],
    "gram_std": float,
    "offset": bool,
}

TABLE: dict[str, Entry] = {
    "fedit": Entry(
        cls="rondo.algorithms.fedit:FedIT",
        summary="FedAvg of LoRA: both factors trained, sent and averaged",
        paper="Zhang et al. 2023",
        exact=False,
        linear=True,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        client_ranks=True,
    ),
    "ffa-lora": Entry(
        cls="rondo.algorithms.ffa_lora:FFALoRA",
        summary="A frozen at a common random start; only B trained and averaged",
        paper="Sun et al., ICLR 2024",
        exact=True,
        linear=True,
        personal=False,
        head="shared",
        up="r*out",
        down="r*out",
        up_numbers=formulas.up,
        down_numbers=formulas.up,
    ),
    "rolora": Entry(
        cls="rondo.algorithms.rolora:RoLoRA",
        summary="the factors take turns: B in one round, A in the next",
        paper="Chen et al. 2025",
        exact=True,
        linear=True,
        personal=False,
        head="shared",
        up="r*out, r*in in turn",
        down="r*in, r*out in turn",
        up_numbers=formulas.alternating,
        down_numbers=formulas.alternating_down,
        fields={"alternate_for": float},
    ),
    "fedsa-lora": Entry(
        cls="rondo.algorithms.fedsa_lora:FedSALoRA",
        summary="both factors trained; A averaged, B stays with its client",
        paper="Guo et al., ICLR 2025",
        exact=False,
        linear=True,
        personal=True,
        head="local",
        up="r*in",
        down="r*in",
        up_numbers=formulas.down,
        down_numbers=formulas.down,
    ),
    "florg": Entry(
        cls="rondo.algorithms.florg:FLoRG",
        summary="one matrix per module; its Gram matrix averaged, the root aligned (Procrustes); "
        "starts off the pre-trained model unless offset",
        paper="Meng et al. 2026",
        exact=False,
        linear=True,
        personal=False,
        head="shared",
        up="r*min(in,out)",
        down="r*min(in,out)",
        up_numbers=formulas.gram,
        down_numbers=formulas.gram,
        fields=_FLORG_FIELDS,
    ),
    "florg-unaligned": Entry(
        cls="rondo.algorithms.florg_unaligned:FLoRGUnaligned",
        summary="FLoRG without the alignment (the paper's ablation); starts as FLoRG does",
        paper="Meng et al. 2026",
        exact=False,
        linear=False,
        personal=False,
        head="shared",
        up="r*min(in,out)",
        down="r*min(in,out)",
        up_numbers=formulas.gram,
        down_numbers=formulas.gram,
        fields=_FLORG_FIELDS,
    ),
    "flexlora": Entry(
        cls="rondo.algorithms.flexlora:FlexLoRA",
        summary="the mean of the products, truncated to each client's rank by SVD; scores are of the truncated model",
        paper="Bai et al., NeurIPS 2024",
        exact=False,
        linear=False,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"split": Literal["up", "both"], "client_scale": _CLIENT_SCALE},
        client_ranks=True,
    ),
    "flora": Entry(
        cls="rondo.algorithms.flora:FLoRA",
        summary="factors are stacked and added to the base; every round starts from fresh ones",
        paper="Wang et al., NeurIPS 2024",
        exact=True,
        linear=False,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="min(K*r(in+out),in*out)",
        up_numbers=formulas.both,
        down_numbers=formulas.stack,
        fields={"client_scale": _CLIENT_SCALE},
        client_ranks=True,
    ),
    "fedex-lora": Entry(
        cls="rondo.algorithms.fedex_lora:FedExLoRA",
        summary="FedIT, and what averaging the factors loses is added to the base",
        paper="Singhal et al. 2024",
        exact=True,
        linear=False,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out)+min((K-1)*r(in+out),in*out)",
        up_numbers=formulas.both,
        down_numbers=formulas.residual,
    ),
    "federa": Entry(
        cls="rondo.algorithms.federa:FeDeRA",
        summary="FedIT from the leading singular directions of the pre-trained weight",
        paper="Yan et al. 2024",
        exact=False,
        linear=True,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"aggregation": Literal["factors", "product"]},
    ),
    "fedsvd": Entry(
        cls="rondo.algorithms.fedsvd:FedSVD",
        summary="FFA-LoRA whose A turns into the singular vectors of what was learned",
        paper="Lee et al. 2025",
        exact=True,
        linear=True,
        personal=False,
        head="frozen",
        up="r*out",
        down="r(in+out) after every period rounds, else r*out",
        up_numbers=formulas.up,
        down_numbers=formulas.turned,
        fields={"period": int},
    ),
    "hetlora": Entry(
        cls="rondo.algorithms.hetlora:HetLoRA",
        summary="clients of different ranks: cut, padded with zeros, weighted by their norm; pruning is off by default",
        paper="Cho et al., EMNLP 2024",
        exact=False,
        linear=True,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"penalty": float, "keep": float, "prune": bool},
        client_ranks=True,
    ),
    "lora-fair": Entry(
        cls="rondo.algorithms.lora_fair:LoRAFAIR",
        summary="FedIT whose B is corrected towards the mean of the products",
        paper="Bian et al. 2024",
        exact=False,
        linear=False,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"objective": Literal["cosine", "frobenius"], "penalty": float},
    ),
    "fedloru": Entry(
        cls="rondo.algorithms.fedloru:FedLoRU",
        summary="FedIT whose factors are added to the base every tau rounds",
        paper="Park et al. 2024",
        exact=False,
        linear=True,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out), and min(r(in+out),in*out) more after every tau rounds",
        up_numbers=formulas.both,
        down_numbers=formulas.accumulated,
        fields=_CYCLE_FIELDS,
    ),
    "pfedloru": Entry(
        cls="rondo.algorithms.pfedloru:PFedLoRU",
        summary="FedLoRU beside a personal pair of factors",
        paper="Park et al. 2024",
        exact=False,
        linear=True,
        personal=True,
        head="shared",
        up="r(in+out)",
        down="r(in+out), and min(r(in+out),in*out) more after every tau rounds",
        up_numbers=formulas.both,
        down_numbers=formulas.accumulated,
        fields=_CYCLE_FIELDS,
    ),
    "mfedloru": Entry(
        cls="rondo.algorithms.mfedloru:MFedLoRU",
        summary="FedLoRU whose clients change A and B by nested factors of their rank",
        paper="Park et al. 2024",
        exact=False,
        linear=True,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out), and min(r(in+out),in*out) more after every tau rounds",
        up_numbers=formulas.both,
        down_numbers=formulas.accumulated,
        fields={**_CYCLE_FIELDS, "nested_scale": float},
        client_ranks=True,
    ),
    "pfedlora": Entry(
        cls="rondo.algorithms.pfedlora:PFedLoRA",
        summary="a shared change of full rank beside a personal pair of factors",
        paper="Park et al. 2024",
        exact=False,
        linear=True,
        personal=True,
        head="shared",
        up="in*out",
        down="in*out",
        up_numbers=formulas.whole,
        down_numbers=formulas.whole,
        fields={"phases": Literal["separate", "together"], "units": _UNITS},
    ),
    "fedhm": Entry(
        cls="rondo.algorithms.fedhm:FedHM",
        summary="whole weights averaged, factorised for each client at its rank; scores are of the truncated model",
        paper="Yao et al. 2021",
        exact=False,
        linear=False,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        client_ranks=True,
    ),
    "slora": Entry(
        cls="rondo.algorithms.slora:SLoRA",
        summary="sparse fine-tuning first; FedIT from its singular vectors",
        paper="Babakniya et al. 2023",
        exact=False,
        linear=True,
        personal=False,
        head="shared",
        up="density*in*out, then r(in+out)",
        down="density*in*out, then r(in+out)",
        up_numbers=formulas.sparse,
        down_numbers=formulas.sparse,
        fields={"sparse_rounds": int, "density": float, "units": _UNITS},
    ),
    "lora-a2": Entry(
        cls="rondo.algorithms.lora_a2:LoRAA2",
        summary="RoLoRA whose clients train and send only the slots that matter most to them; "
        "without client ranks they keep all",
        paper="Koo et al., ACL 2025",
        exact=True,
        linear=True,
        personal=False,
        head="frozen",
        up="r*out, r*in in turn",
        down="r*in, r*out in turn",
        up_numbers=formulas.alternating,
        down_numbers=formulas.alternating_down,
        fields={"lr_ratio": float},
        client_ranks=True,
    ),
    "fedavg": Entry(
        cls="rondo.algorithms.fedavg:FedAvg",
        summary="everything that is trained is sent and averaged: whole tensors, factors, or both",
        paper="McMahan et al., AISTATS 2017",
        exact=True,
        linear=True,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        needs_factors=False,
    ),
    "fedprox": Entry(
        cls="rondo.algorithms.fedprox:FedProx",
        summary="FedAvg whose clients are held near the model that they received",
        paper="Li et al., MLSys 2020",
        exact=True,
        linear=True,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"mu": float},
        needs_factors=False,
    ),
    "fedper": Entry(
        cls="rondo.algorithms.fedper:FedPer",
        summary="body and head trained together; the body averaged, the head stays with its client",
        paper="Arivazhagan et al. 2019",
        exact=False,
        linear=True,
        personal=True,
        head="local",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        needs_factors=False,
        whole="body",
    ),
    "lg-fedavg": Entry(
        cls="rondo.algorithms.lg_fedavg:LGFedAvg",
        summary="body and head trained together; the head averaged, the body stays with its client",
        paper="Liang et al. 2020",
        exact=False,
        linear=True,
        personal=True,
        head="shared",
        up="0",
        down="0",
        up_numbers=formulas.none,
        down_numbers=formulas.none,
        needs_factors=False,
        whole="head",
    ),
    "fedrep": Entry(
        cls="rondo.algorithms.fedrep:FedRep",
        summary="a personal head trained first, then the shared body below it; the head never travels",
        paper="Collins et al., ICML 2021",
        exact=False,
        linear=True,
        personal=True,
        head="local",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"head_epochs": int, "body_epochs": int, "unit": Literal["epochs", "updates"]},
        needs_factors=False,
        whole="body",
    ),
    "local": Entry(
        cls="rondo.algorithms.local:LocalTraining",
        summary="every client trains its own model alone; nothing travels",
        paper="Collins et al., ICML 2021",
        exact=False,
        linear=True,
        personal=True,
        head="local",
        up="0",
        down="0",
        up_numbers=formulas.none,
        down_numbers=formulas.none,
        needs_factors=False,
        whole="none",
    ),
    "scaffold": Entry(
        cls="rondo.algorithms.scaffold:Scaffold",
        summary="FedAvg whose clients correct their gradients by control variates",
        paper="Karimireddy et al., ICML 2020",
        exact=False,
        linear=True,
        personal=False,
        head="shared",
        up="2*r(in+out)",
        down="2*r(in+out), but r(in+2*out) in round 1",
        up_numbers=formulas.twice,
        down_numbers=formulas.corrected,
        fields={"option": Literal["I", "II"], "server_lr": float},
        needs_factors=False,
        whole="twice all",
    ),
    "ditto": Entry(
        cls="rondo.algorithms.ditto:Ditto",
        summary="FedAvg, and a personal model held near the global one",
        paper="Li et al., ICML 2021",
        exact=False,
        linear=True,
        personal=True,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"lam": float, "personal_epochs": int},
        needs_factors=False,
    ),
    "apfl": Entry(
        cls="rondo.algorithms.apfl:APFL",
        summary="FedAvg, mixed at each client with a model of its own",
        paper="Deng et al. 2020",
        exact=False,
        linear=True,
        personal=True,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"mixing": Literal["during", "after"], "alpha": float, "adaptive": bool},
        needs_factors=False,
    ),
    "l2gd": Entry(
        cls="rondo.algorithms.l2gd:L2GD",
        summary="a model per client; a coin decides between local training and a pull to their mean",
        paper="Hanzely et al. 2020",
        exact=False,
        linear=True,
        personal=True,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"lam": float, "p": float},
        needs_factors=False,
    ),
    "fed-mtl": Entry(
        cls="rondo.algorithms.fed_mtl:FedMTL",
        summary="a model per client, held near the mean of all",
        paper="Smith et al., NIPS 2017",
        exact=False,
        linear=True,
        personal=True,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"lam": float},
        needs_factors=False,
    ),
    "per-fedavg": Entry(
        cls="rondo.algorithms.per_fedavg:PerFedAvg",
        summary="FedAvg of a model that is good after one local step (MAML); scores are after that step",
        paper="Fallah et al., NeurIPS 2020",
        exact=True,
        linear=True,
        personal=False,
        head="shared",
        up="r(in+out)",
        down="r(in+out)",
        up_numbers=formulas.both,
        down_numbers=formulas.both,
        fields={"variant": Literal["fo", "hf"], "inner_lr": float, "support": float, "delta": float},
        needs_factors=False,
    ),
}
