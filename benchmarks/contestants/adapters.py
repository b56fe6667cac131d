"""Parts that the contestants on adapters share: the model under stock PEFT, and plain local training."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import contestant  # noqa: F401  (puts this folder's parent on the path, and notes the start)
from workloads import Workload, model_folder, tokenizer


def build_model(workload: Workload) -> Any:
    """The pre-trained model in float32 with fresh PEFT adapters, in eval mode because no contestant uses dropout."""
    import peft
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = model_folder(workload)
    torch.manual_seed(workload.seed)
    if workload.kind == "causal-lm":
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    else:
        auto = transformers.AutoModelForSequenceClassification
        model = auto.from_pretrained(folder, num_labels=2, dtype=torch.float32)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM" if workload.kind == "causal-lm" else "SEQ_CLS",
        r=workload.rank,
        lora_alpha=workload.alpha,
        target_modules=list(workload.targets),
        layers_to_transform=None if workload.layers is None else list(workload.layers),
    )
    return peft.get_peft_model(model, config).eval()


def trained(model: Any) -> list[Any]:
    """The tensors that are trained."""
    return [p for p in model.parameters() if p.requires_grad]


def adapter_state(model: Any) -> dict[str, Any]:
    """PEFT's state dict of the trained tensors. Looking for embeddings is off: it may ask the model hub each time."""
    import peft

    state: dict[str, Any] = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    return state


@functools.cache
def clients(workload: Workload, file: Path) -> list[Any]:
    """The tokenised rows of every client as a ``TensorDataset`` of ids, mask and labels, read once per process; where
    rows differ in length, as a list of ids that end with the end token."""
    import torch

    coder = tokenizer(workload)
    rows: dict[str, list[dict[str, str]]] = {}
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            rows.setdefault(row["client"], []).append(row)
    datasets = []
    for client_rows in rows.values():
        if workload.lengths is not None:
            coded = coder([r["text"] for r in client_rows])["input_ids"]
            datasets.append([torch.tensor([*ids, coder.eos_token_id]) for ids in coded])
            continue
        coded = coder([r["text"] for r in client_rows], truncation=True, max_length=workload.tokens)
        ids = torch.tensor(coded["input_ids"])
        labels = ids if workload.kind == "causal-lm" else torch.tensor([int(r["label"]) for r in client_rows])
        datasets.append(torch.utils.data.TensorDataset(ids, torch.tensor(coded["attention_mask"]), labels))
    return datasets


def padded(rows: list[Any]) -> tuple[Any, Any, Any]:
    """Ids, mask and labels of rows of ids, padded to the longest."""
    from torch.nn.utils.rnn import pad_sequence

    ids = pad_sequence(rows, batch_first=True)
    mask = pad_sequence([row.new_ones(len(row)) for row in rows], batch_first=True)
    return ids, mask, pad_sequence(rows, batch_first=True, padding_value=-100)


def train(model: Any, workload: Workload, dataset: Any) -> float:
    """Train one client in place, with a fresh optimizer. Returns the mean loss of its steps."""
    import torch

    tensors = trained(model)
    optimizer = torch.optim.AdamW(tensors, lr=workload.lr, weight_decay=0.0)
    together = padded if workload.lengths is not None else None
    loader = torch.utils.data.DataLoader(dataset, batch_size=workload.batch, shuffle=True, collate_fn=together)
    losses = []
    while len(losses) < workload.local_steps:
        for ids, mask, labels in loader:
            if len(losses) == workload.local_steps:
                break
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(tensors, workload.clip)
            optimizer.step()
            losses.append(loss.detach())
    return float(torch.stack(losses).mean())
