"""A finished run, used again: exported as a stock PEFT adapter or a merged model, verified, evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rondo.errors import ConfigError, Problem
from rondo.models import peft
from rondo.params import Params, add_client_axis
from rondo.runs.assemble import Reopened, load_model, reopen, write_adapter
from rondo.runs.storage.directory import RunDirectory, to_toml


@dataclass(frozen=True)
class Verification:
    """Logits of Rondo's network and of stock PEFT on the same texts: the largest difference, and the largest logit."""

    max_difference: float
    largest: float
    tolerance: float = 1e-4

    @property
    def passed(self) -> bool:
        """Whether the difference is within ``tolerance`` of the largest logit (float32 rounding)."""
        return self.max_difference <= self.tolerance * max(1.0, self.largest)


@dataclass(frozen=True)
class Exported:
    """What was written: the largest rank of its layers, what truncation lost (of the change's Frobenius norm; 0 where
    nothing was truncated), and how it compared, if it was verified."""

    rank: int
    relative_error: float
    verification: Verification | None


def export(
    run_dir: str | Path,
    to: str | Path,
    *,
    client: str | None = None,
    merged: bool = False,
    rank: int | None = None,
    verify: bool = False,
) -> Exported:
    """Write a run's result to ``to`` as a PEFT adapter, or ``merged`` into a whole model.

    ``client``: that client's model (for personal methods), else the global or cold-start one. ``rank``: truncate to it;
    else the adapter has the rank that it needs, which for methods that change the base is above the run's. With
    ``verify`` it is loaded again by stock libraries and its logits are compared. Raises :class:`ConfigError`.
    """
    if rank is not None and rank < 1:
        raise ConfigError([Problem("--rank", f"must be at least 1, got {rank}")])
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        what = "is not empty" if to.is_dir() else "is not a folder"
        raise ConfigError([Problem("--to", f"{str(to)!r} {what}; name another folder")])
    if merged and RunDirectory.open(run_dir).config().model.quantization is not None:
        words = "the base is int8, and merging would round the adapter away with it; export the adapter alone"
        raise ConfigError([Problem("--merged", words)])
    # Stock libraries load the model in float32, so that is what their logits are compared with.
    opened = reopen(run_dir, device="cpu", exact=True)
    seen, base = opened.model(client)
    error = 0.0
    sites = tuple(opened.prepared.network.sites.values())
    if rank is not None:
        seen, error = peft.truncated(sites, seen, base, rank)
        base = {}
    adapter = to if not merged else to / "adapter"
    write_adapter(opened.prepared, adapter, seen, base, opened.labels)
    (adapter / "rondo.toml").write_text(to_toml(opened.directory.config()))
    if merged:
        prepared = opened.prepared
        config = prepared.config
        module, _ = load_model(config, prepared.model_config, prepared.tokenizer, config.seed + 1)
        peft.merged(module, adapter).save_pretrained(str(to))  # type: ignore[operator]
        prepared.tokenizer.save_pretrained(str(to))
        (adapter / "README.md").unlink(missing_ok=True)
    ranks = [a.shape[0] for a, _, _ in peft.adapter_factors(sites, seen, base).values()]
    return Exported(max(ranks), error, _verify(opened, seen, base, to, merged) if verify else None)


_TEXTS = (
    "Turn on the lights in the kitchen.",
    "The film is a charming and often affecting journey.",
    "No weapons of mass destruction were found.",
    "What is the capital of France?",
    "It rains; it pours, and nobody minds.",
    "A",
)


@torch.no_grad()
def _verify(opened: Reopened, seen: Params, base: Any, folder: Path, merged: bool) -> Verification:
    """Load ``folder`` with transformers and peft only. The base model is drawn with another seed, so that a head that
    was not saved would show."""
    import transformers

    prepared = opened.prepared
    config = prepared.config
    tokenizer = prepared.tokenizer
    batch = dict(tokenizer(list(_TEXTS), padding=True, return_tensors="pt"))
    ours = prepared.network(add_client_axis(seen), base, batch).logits
    if merged:
        auto = transformers.AutoModelForCausalLM
        if config.task.kind == "sequence-classification":
            auto = transformers.AutoModelForSequenceClassification
        stock = auto.from_pretrained(str(folder)).eval()
    else:
        module, _ = load_model(config, prepared.model_config, tokenizer, config.seed + 1)
        stock = peft.stock_model(module, folder)
    theirs = stock(**batch).logits
    mask = torch.ones_like(ours, dtype=torch.bool)
    if ours.dim() == 3:  # positions of padding mean nothing
        mask = batch["attention_mask"].bool()[:, :, None].expand_as(ours)
    difference = float((ours - theirs).abs()[mask].max())
    return Verification(difference, float(ours.abs()[mask].max()))
