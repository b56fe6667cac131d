"""PEFT's keys that Rondo does not take, with the reasons. Frozen here because importing peft takes seconds."""

from __future__ import annotations

_SET_BY_RONDO = {
    "task_type": "from task.kind",
    "peft_type": "to LORA",
    "auto_mapping": "from the model's class",
    "peft_version": "in the exported adapter",
    "base_model_name_or_path": "from model.name",
    "revision": "from model.revision",
    "inference_mode": "in the exported adapter",
    "fan_in_fan_out": "from the kind of each layer",
    "runtime_config": "where a finished adapter is used",
}

_BY_NAME = "the task head is trained anyway, and train.what names other tensors to train whole beside the factors"
_HEAD_ONLY = "Rondo trains factors, the task head (model.head) and the tensors that train.what names"
_CHANGES_BASE = "it changes the base weights, which is a method's part here"
_NEEDS_DATA = "it starts from activations or gradients of data, and the server has no rows"
_TWO_FACTORS = "methods combine plain A and B, whose product is added to the weight"
_WHOLE_LAYERS = "adapters sit on whole linear layers of the model as published"

NOT_BUILT = {
    "bias": _HEAD_ONLY,
    "lora_bias": _HEAD_ONLY,
    "trainable_token_indices": _HEAD_ONLY,
    "use_bdlora": _TWO_FACTORS,
    "use_qalora": _TWO_FACTORS,
    "qalora_group_size": _TWO_FACTORS,
    "kasa_config": _TWO_FACTORS,
    "monteclora_config": _TWO_FACTORS,
    "velora_config": _TWO_FACTORS,
    "arrow_config": "a run trains one adapter, which is used for every token",
    "alora_invocation_tokens": "a run trains one adapter, which is used for every token",
    "layer_replication": _WHOLE_LAYERS,
    "target_parameters": _WHOLE_LAYERS,
    "ensure_weight_tying": _WHOLE_LAYERS,
    "megatron_config": "models are not split over machines",
    "megatron_core": "models are not split over machines",
    "loftq_config": _CHANGES_BASE,
    "corda_config": _NEEDS_DATA,
    "eva_config": _NEEDS_DATA,
    "lora_ga_config": _NEEDS_DATA,
}
"""Keys whose effect Rondo does not have."""

NOT_TAKEN = {**_SET_BY_RONDO, **NOT_BUILT, "modules_to_save": _BY_NAME}
"""All keys of PEFT's ``LoraConfig`` that the section ``[adapter]`` does not take."""

_STARTS = {
    "pissa_niter": "take 'pissa', whose decomposition is exact",
    "olora": _CHANGES_BASE,
    "loftq": _CHANGES_BASE,
    "corda": _NEEDS_DATA,
    "eva": _NEEDS_DATA,
    "lora_ga": _NEEDS_DATA,
    "mica": "it freezes B, and the method decides which factors are trained",
}


def not_taken(key: str) -> str | None:
    """The message about a key of PEFT's that Rondo does not take; None for any other key."""
    if key in _SET_BY_RONDO:
        return f"Rondo sets this key of PEFT's itself, {_SET_BY_RONDO[key]}: remove it"
    return f"PEFT has it, Rondo does not: {NOT_TAKEN[key]}; remove it" if key in NOT_TAKEN else None


def start_not_taken(value: object) -> str | None:
    """The reason if ``value`` is a start of PEFT's (``init_lora_weights``) that Rondo does not take, else None."""
    name = "pissa_niter" if isinstance(value, str) and value.startswith("pissa_niter_") else value
    if name is False:
        return "PEFT has it, Rondo does not: with B other than zero, training would not start from the model"
    return f"PEFT has it, Rondo does not: {_STARTS[name]}" if isinstance(name, str) and name in _STARTS else None
