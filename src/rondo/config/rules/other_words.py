"""Other trainers' words (transformers, TRL, axolotl, bitsandbytes): Rondo's key for each, or why there is none."""

from __future__ import annotations

_KEYS = {
    "learning_rate": "train.lr",
    "per_device_train_batch_size": "train.batch_size",
    "train_batch_size": "train.batch_size",
    "micro_batch_size": "train.micro_batch",
    "per_device_eval_batch_size": "evaluation.batch_size",
    "eval_batch_size": "evaluation.batch_size",
    "gradient_accumulation_steps": "train.micro_batch, the rows in memory at a time, where train.batch_size is whole",
    "num_train_epochs": "train.local_epochs in a round, and rounds",
    "num_epochs": "train.local_epochs in a round, and rounds",
    "max_steps": "train.local_steps in a round, and rounds",
    "optim": "train.optimizer",
    "lr_scheduler_type": "train.schedule",
    "lr_scheduler": "train.schedule",
    "warmup_steps": "train.warmup_rounds, in rounds",
    "warmup_ratio": "train.warmup_rounds, in rounds",
    "gradient_checkpointing": "train.checkpointing",
    "group_by_length": "train.length_grouping",
    "sample_packing": "train.packing",
    "max_seq_length": "task.max_length",
    "max_seq_len": "task.max_length",
    "sequence_len": "task.max_length",
    "model_name_or_path": "model.name",
    "base_model": "model.name",
    "lora_r": "adapter.r",
    "lora_rank": "adapter.r",
    "lora_target_modules": "adapter.target_modules",
    "load_in_4bit": 'model.quantization = "nf4"',
    "load_in_8bit": 'model.quantization = "int8"',
    "int4": 'model.quantization = "nf4"',
    "int8": 'model.quantization = "int8"',
    "eval_steps": "evaluation.every, in rounds",
    "eval_strategy": "evaluation.every, in rounds",
    "early_stopping_patience": "evaluation.patience",
    "fp16": 'train.precision = "fast" or "exact"',
    "bf16": 'train.precision = "fast" or "exact"',
}
"""Keys to write in place of a word."""

_NONE = {
    "save_steps": "every round is committed to the disk",
    "save_strategy": "every round is committed to the disk",
    "report_to": "a run writes its record to its own folder, and an observer is told of every round",
    "logging_steps": "every round is recorded",
    "output_dir": "the folder of a run is named by --run-dir, or by run(run_dir=...)",
    "resume_from_checkpoint": "a stopped run goes on by rondo resume RUN_DIR",
}
"""The reason why there is no key for a word."""

_VALUES = {"int4": "nf4", "4bit": "nf4", "8bit": "int8"}
"""Values of ``model.quantization`` in other words."""

WORDS = frozenset({*_KEYS, *_NONE})


def other_word(word: str) -> str | None:
    """The message about a key of another trainer's; None for any other key."""
    if word in _KEYS:
        return f"unknown key; another trainer's word: here it is {_KEYS[word]}"
    return f"unknown key; Rondo has none, because {_NONE[word]}: remove it" if word in _NONE else None


def other_value(path: str, value: str) -> str | None:
    """Rondo's word for ``value`` of the key ``path``; None if ``value`` is no word of another trainer's there."""
    return _VALUES.get(value) if path == "model.quantization" else None
