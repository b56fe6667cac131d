"""Words of other trainers (transformers, TRL, axolotl, bitsandbytes): Rondo's own word, or why there is none."""

from __future__ import annotations

_KEYS = {
    "learning_rate": "train.lr",
    **dict.fromkeys(("loraplus_lr_ratio", "loraplus", "lora_plus", "use_loraplus"), "train.lr_ratio"),
    "learning_rate_mapping": "train.lr_ratio, the rate of B over that of all other tensors",
    **{word: f"train.{word}" for word in ("weight_decay", "max_grad_norm", "packing")},
    **dict.fromkeys(("per_device_train_batch_size", "train_batch_size"), "train.batch_size"),
    "micro_batch_size": "train.micro_batch",
    "loss_type": "task.loss_type, for preferences alone",
    **{word: f"task.{word}, for preferences" for word in ("beta", "label_smoothing")},
    **dict.fromkeys(
        ("per_device_eval_batch_size", "eval_batch_size", "eval_accumulation_steps", "eval_packing"),
        "evaluation.batch_size",
    ),
    "gradient_accumulation_steps": "train.micro_batch, the rows in memory at a time, where train.batch_size is whole",
    "auto_find_batch_size": 'train.batch_size, and simulation.cohort = "auto" finds how many clients fit',
    **dict.fromkeys(("num_train_epochs", "num_epochs"), "train.local_epochs in a round, and rounds"),
    "max_steps": "train.local_steps in a round, and rounds",
    "optim": "train.optimizer",
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler"), "train.schedule"),
    **dict.fromkeys(("warmup_steps", "warmup_ratio"), "train.warmup_rounds, in rounds"),
    **dict.fromkeys(
        ("gradient_checkpointing", "activation_checkpointing", "activation_offloading"), "train.checkpointing"
    ),
    **dict.fromkeys(
        ("group_by_length", "train_sampling_strategy", "length_column_name"), "train.length_grouping, by tokens"
    ),
    **dict.fromkeys(("sample_packing", "packing_strategy", "padding_free"), "train.packing"),
    **dict.fromkeys(("max_length", "max_seq_length", "max_seq_len", "sequence_len"), "task.max_length"),
    "prompts": "task.prompt for answers; of an embedding, write the words into the texts, columns such as task.anchor",
    "truncation_mode": "task.max_length, to which rows are cut at their end",
    "dataset_text_field": "task.text",
    **dict.fromkeys(
        ("completion_only_loss", "assistant_only_loss"),
        "task.prompt with task.response, or task.messages, whose answers alone are learned; all of task.text is",
    ),
    "chat_template_path": "task.chat_template",
    **dict.fromkeys(("label_names", "remove_unused_columns"), "task.label, and columns that no key names are left out"),
    **dict.fromkeys(("model_name_or_path", "base_model"), "model.name"),
    "model_init_kwargs": "model.name, model.revision and model.quantization",
    "model_revision": "model.revision",
    **dict.fromkeys(("dtype", "torch_dtype"), 'train.precision = "fast" or "exact"'),
    "dataset_name": "data.source",
    "dataset_config": "data.subset",
    "dataset_train_split": "data.train_split",
    "dataset_test_split": "data.test_split",
    **dict.fromkeys(("lora_r", "lora_rank"), "adapter.r"),
    **dict.fromkeys(("lora_target_modules", "lora_target_parameters"), "adapter.target_modules"),
    "lora_modules_to_save": "train.what, which names tensors to train whole beside the factors",
    **dict.fromkeys(
        ("gptq", "awq", "quantize", "quant_method", "quantization_config"),
        'model.quantization = "nf4" or "int8", of plain weights',
    ),
    **dict.fromkeys(("load_in_4bit", "int4", "bnb_4bit_quant_type"), 'model.quantization = "nf4"'),
    **dict.fromkeys(("load_in_8bit", "int8"), 'model.quantization = "int8"'),
    **dict.fromkeys(
        ("eval_steps", "eval_strategy", "evaluation_strategy", "eval_delay", "do_eval"), "evaluation.every, in rounds"
    ),
    "early_stopping_patience": "evaluation.patience",
    **dict.fromkeys(
        ("metric_for_best_model", "load_best_model_at_end", "greater_is_better"),
        "task.metric, whose best round is the folder adapter-best",
    ),
    **dict.fromkeys(
        ("fp16", "bf16", "tf32", "fp16_full_eval", "bf16_full_eval"), 'train.precision = "fast" or "exact"'
    ),
    **dict.fromkeys(("seed", "data_seed"), "seed, above all sections"),
    **dict.fromkeys(
        ("async", "asynchronous", "async_aggregation", "async_mode", "server.mode"), 'clients.mode = "buffered"'
    ),
    "buffer_size": "clients.buffer",
    "max_staleness": "clients.staleness, by which old uploads count less",
}
"""Keys to write in place of a word."""

_ONE_DEVICE = (
    *("fsdp", "fsdp_config", "deepspeed", "parallelism_config", "accelerator_config", "local_rank"),
    *("ddp_backend", "ddp_broadcast_buffers", "ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_static_graph"),
    *("ddp_timeout", "average_tokens_across_devices", "eval_use_gather_object", "tpu_num_cores"),
)
_DATALOADER = (
    *("dataloader_drop_last", "dataloader_in_order", "dataloader_multiprocessing_context", "dataloader_num_workers"),
    *("dataloader_persistent_workers", "dataloader_pin_memory", "dataloader_prefetch_factor", "dataset_num_proc"),
    "dataset_kwargs",
)
_SAVED = (
    *("save_steps", "save_strategy", "save_total_limit", "save_on_each_node", "save_only_model", "save_safetensors"),
    "enable_jit_checkpoint",
)
_TOLD = (
    *("report_to", "trackio_bucket_id", "trackio_space_id", "trackio_static_space_id", "log_level_replica"),
    *("log_on_each_node", "log_level", "debug", "disable_tqdm", "include_num_input_tokens_seen", "skip_memory_metrics"),
)
_SCORED = (
    *("include_for_metrics", "prediction_loss_only", "batch_eval_metrics", "eval_do_concat_batches", "eval_on_start"),
)
_OF_LOSSES = (
    *("label_smoothing_factor", "neftune_noise_alpha", "router_aux_loss_coef", "center_rewards_coefficient"),
    *("f_divergence_type", "f_alpha_divergence_coef", "discopop_tau", "ld_alpha", "use_weighting", "loss_weights"),
)
_OF_REFERENCES = (
    *("precompute_ref_log_probs", "precompute_ref_batch_size"),
    *("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"),
)
_KERNELS = (
    *("torch_compile", "torch_compile_backend", "torch_compile_mode", "use_liger_kernel", "liger_kernel_config"),
    *("torch_empty_cache_steps", "pad_to_multiple_of", "use_cache"),
    *("attn_implementation", "ignore_bias_buffers"),
    *("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"),
)
_ROUNDED = ("use_bnb_nested_quant", "bnb_4bit_quant_storage")
_NUMBERS = ("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "optim_target_modules", "lr_scheduler_kwargs")

_NONE = {
    **dict.fromkeys(_SAVED, "every round is committed to the disk"),
    **dict.fromkeys(_TOLD, "a run writes its record to its own folder, and an observer is told of every round"),
    **dict.fromkeys(
        ("logging_steps", "logging_strategy", "logging_first_step", "logging_nan_inf_filter"), "every round is recorded"
    ),
    **dict.fromkeys(
        ("output_dir", "overwrite_output_dir", "logging_dir", "run_name", "project"),
        "the folder of a run is named by --run-dir, or by run(run_dir=...)",
    ),
    **dict.fromkeys(
        ("resume_from_checkpoint", "ignore_data_skip", "restore_callback_states_from_checkpoint"),
        "a stopped run goes on by rondo resume RUN_DIR, with the bits of one that was not stopped",
    ),
    **dict.fromkeys(("do_train", "do_predict"), "rondo run trains, and rondo predict predicts"),
    **dict.fromkeys(("use_cpu", "no_cuda"), "the device is named by --device, or by run(device=...)"),
    "full_determinism": "the same seed gives the same bits anyway",
    "shuffle_dataset": "every pass over the rows has an order of its own",
    **dict.fromkeys(_ONE_DEVICE, "a model trains on one device"),
    **dict.fromkeys(_DATALOADER, "rows are read once, and batches made in the process that trains, of all rows"),
    **dict.fromkeys(_SCORED, "a task has its scores, the first of them before training"),
    **dict.fromkeys(_OF_LOSSES, "the loss is the task's: another is a class of yours in task.kind, or train.trainer"),
    **dict.fromkeys(
        _OF_REFERENCES,
        "the reference is the model with its adapter switched off, and its log-probabilities are computed once a row",
    ),
    "disable_dropout": "the base's dropout is off, and that of factors is adapter.lora_dropout",
    **dict.fromkeys(
        ("batch_sampler", "multi_dataset_batch_sampler"),
        "a client's rows are drawn without replacement, and a text that equals a row's positive is never its negative",
    ),
    "router_mapping": "all texts go through one model",
    **dict.fromkeys(_KERNELS, "Rondo chooses how a model is computed"),
    **dict.fromkeys(_NUMBERS, "optimizers and schedules have no other numbers: train.trainer takes code of yours"),
    **dict.fromkeys(("eos_token", "pad_token"), "tokens are those of the tokenizer's own files"),
    **dict.fromkeys(_ROUNDED, "rounded weights have bitsandbytes' own form"),
    "use_peft": "factors are what the section [adapter] says",
    "lora_task_type": "it follows from task.kind",
    "dataset_streaming": "rows are read once, before the first round",
    "trust_remote_code": "code that comes with a model is not run",
    **dict.fromkeys(
        (
            *("push_to_hub", "hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push"),
            "hub_revision",
        ),
        "nothing is sent to a hub: the folder adapter of a run is what PEFT loads",
    ),
    "loraplus_lr_embedding": "embeddings have no factors",
}
"""The reason why there is no key for a word."""

_VALUES = {"int4": "nf4", "4bit": "nf4", "8bit": "int8"}
"""Values of ``model.quantization`` in other words."""

_NOT_ROUNDED = dict.fromkeys(
    ("gptq", "awq"), "is rounded beforehand, by rows of data, and runs by a package of its own"
)
"""Values of ``model.quantization`` that Rondo does not have, with the reason."""

WORDS = frozenset({*_KEYS, *_NONE})


def other_word(path: str) -> str | None:
    """The message about a key of another trainer's, by its path or its last word; None for any other key."""
    word = path if path in WORDS else path.rpartition(".")[2]
    if word in _KEYS:
        return f"unknown key; another trainer's word: here it is {_KEYS[word]}"
    return f"unknown key; Rondo has none, because {_NONE[word]}: remove it" if word in _NONE else None


def value_not_taken(path: str, value: object) -> str | None:
    """The reason if ``value`` of the key ``path`` is another library's that Rondo does not have, else None."""
    if path != "model.quantization" or not isinstance(value, str) or value.lower() not in _NOT_ROUNDED:
        return None
    return f"{value} {_NOT_ROUNDED[value.lower()]}: take 'nf4' or 'int8', and name the plain weights"


def other_value(path: str, value: str) -> str | None:
    """Rondo's word for ``value`` of the key ``path``; None if ``value`` is no word of another trainer's there."""
    return _VALUES.get(value) if path == "model.quantization" else None
