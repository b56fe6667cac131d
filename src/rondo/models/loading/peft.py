"""The only file that imports peft: where adapters go, how they start, how they are written and read.

Adapters mean what PEFT's ``LoraConfig`` says, because PEFT itself places them: it injects adapters into the module, the
layers that it chose are read off, and the adapters are taken out again. Functions import peft when they need it,
because the import takes seconds and faults in the data are found without it.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pydantic
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from rondo.config.explain import explain
from rondo.config.explain import merged as per_key
from rondo.config.hub import POINTER, pointer_in
from rondo.config.inputs import AdapterConfig
from rondo.config.rules.peft_keys import NOT_BUILT
from rondo.errors import ConfigError
from rondo.models.kernels.quiet import quiet
from rondo.models.loading.learned_classes import LABELS
from rondo.models.loading.misfits import misfit, no_match, unfit, unknown_adapted, unknown_layers
from rondo.models.loading.result_factors import adapter_factors
from rondo.models.networks.adapted_layer import Site, UnsupportedLayer, frozen_matrix, layer_kind
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import Base
from rondo.params import HEAD_PREFIX, Params
from rondo.process import no_warnings, seeded

if TYPE_CHECKING:
    import peft

TaskType = Literal["SEQ_CLS", "TOKEN_CLS", "CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION"] | None
"""PEFT's name of a task. It has none for pictures, and such adapters carry none."""
_KEY = "base_model.model."
_LONGEST = 2**24
"""Characters of an adapter_config.json that are read. PEFT writes some hundred per adapted layer at most."""


@dataclass(frozen=True)
class AdapterPlan:
    """The adapted layers of a module, and the start values of their factors."""

    sites: tuple[Site, ...]
    params: Params
    """A (r, in), B (out, r) and any magnitude (out,) of every site, by name. With ``start_from``, the saved tensors of
    the head too."""
    lora: peft.LoraConfig
    """PEFT's configuration of the adapters."""


def plan(
    module: nn.Module, config: AdapterConfig, task: TaskType | None, head: Sequence[str], seed: int
) -> AdapterPlan:
    """Ask PEFT which layers of ``module`` the configuration adapts, with which rank, scale and initial factors.

    ``module`` is left as it was. ``head`` names the head's tensors, whose modules are never adapted. Raises
    :class:`ConfigError` if nothing matches, a layer cannot be adapted, a rank exceeds a layer's size, or the adapter
    in ``start_from`` cannot be read or does not fit.
    """
    import peft

    if config.start_from is not None:
        return _plan_from(module, config, config.start_from, task, head)
    paths = [path for path, _ in module.named_modules() if path]
    if problems := list(unknown_layers(config, paths, _adaptable(module, _head_modules(module, head)))):
        raise ConfigError(problems)
    options = {**config.model_dump(exclude={"start_from", "from_scratch"}), "init_lora_weights": config.fresh}
    if config.target_modules == "all-linear" and not hasattr(module, "config"):  # PEFT knows it for transformers alone
        heads = _head_modules(module, head)
        options["target_modules"] = [
            p for p, m in module.named_modules() if isinstance(m, nn.Linear) and p not in heads
        ]
        if not options["target_modules"]:
            names = ", ".join(_adaptable(module, heads))
            others = "none can be adapted here: train whole tensors (train.what), or name another model"
            message = f"name layers that can be adapted here: {names}" if names else others
            raise ConfigError.at(
                "adapter.target_modules", f"'all-linear' finds no linear layer below the head: {message}"
            )
    lora = peft.LoraConfig(task_type=task, modules_to_save=_head_modules(module, head) or None, **options)
    planned = _inject(module, lora, head, seed, "adapter.target_modules")
    if problems := list(unknown_adapted(config, [site.path for site in planned.sites])):
        raise ConfigError(problems)
    return planned


def _inject(module: nn.Module, lora: peft.LoraConfig, head: Sequence[str], seed: int, key: str) -> AdapterPlan:
    import peft
    from peft.tuners.lora import LoraLayer

    head_modules = _head_modules(module, head)
    available = ", ".join(_adaptable(module, head_modules))
    # A model without weights takes factors without weights, so that a rank of any size costs nothing to look at.
    bare = any(p.is_meta for p in module.parameters())
    trainable = [p for p in module.parameters() if p.requires_grad]  # PEFT freezes all
    with no_warnings(), seeded(seed), torch.device("meta") if bare else contextlib.nullcontext():
        try:
            # No modules_to_save: a wrapped head would hide its tensors, and PEFT does not train it here.
            tuner = peft.LoraModel(module, peft.LoraConfig(**{**lora.to_dict(), "modules_to_save": None}), "default")
        except (ValueError, re.error) as error:
            raise ConfigError.at(key, no_match(lora.target_modules, available, error)) from None
    sites: list[Site] = []
    params: dict[str, Tensor] = {}
    unsupported: dict[str, dict[nn.Module, str]] = {}
    for path, layer in tuner.model.named_modules():
        if not isinstance(layer, LoraLayer) or any(path == h or path.startswith(h + ".") for h in head_modules):
            continue
        base = layer.get_base_layer()
        try:
            kind, shape = layer_kind(base)
            if lora.use_dora and kind == "conv2d":
                raise UnsupportedLayer("a convolution cannot have magnitudes (use_dora) here; Linear and Conv1D can")
        except UnsupportedLayer as error:
            unsupported.setdefault(str(error), {}).setdefault(base, path)
            continue
        rank = int(layer.r["default"])
        scale, dropout = float(layer.scaling["default"]), float(lora.lora_dropout)
        sites.append(Site(path, kind, shape, rank, scale, dropout, bool(lora.use_dora)))
        params[f"{path}.A"] = _flat(layer.lora_A["default"].weight).reshape(rank, shape[1])
        params[f"{path}.B"] = _flat(layer.lora_B["default"].weight).reshape(shape[0], rank)
        if lora.use_dora:
            params[f"{path}.magnitude"] = _flat(torch.linalg.vector_norm(frozen_matrix(base, sites[-1]), dim=1))
    tuner.unload()
    for parameter in trainable:
        parameter.requires_grad_()
    if problems := list(unfit(key, lora, sites, params, unsupported, available)):
        raise ConfigError(problems)
    return AdapterPlan(tuple(sites), params, lora)


def _flat(tensor: Tensor) -> Tensor:
    copied = tensor.detach().to(torch.float32).clone()
    return copied if copied.is_meta else copied.cpu()  # a model without weights still shows where adapters go


def has_adapters(module: nn.Module) -> bool:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return any(isinstance(layer, BaseTunerLayer) for layer in module.modules())


def _head_modules(module: nn.Module, head: Sequence[str]) -> list[str]:
    """The largest modules that hold the head and nothing else, for PEFT's ``modules_to_save``. RoBERTa's is
    "classifier", not the two layers in it, which PEFT would wrap twice."""
    body_names = [n for n, _ in module.named_parameters() if n not in head]
    modules = set()
    for name in head:
        parts = name.split(".")[:-1]
        paths = [".".join(parts[: i + 1]) for i in range(len(parts))]
        pure = [p for p in paths if not any(b.startswith(p + ".") for b in body_names)]
        modules.add(pure[0] if pure else paths[-1])
    return sorted(modules)


def _adaptable(module: nn.Module, head_modules: Sequence[str]) -> list[str]:
    """Names of the layers that can be adapted. Read them before PEFT wraps the layers."""
    names = []
    for path, layer in module.named_modules():
        try:
            layer_kind(layer)
        except UnsupportedLayer:
            continue
        if path not in head_modules:
            names.append(path.rpartition(".")[2])
    return list(dict.fromkeys(names))


def _plan_from(
    module: nn.Module, config: AdapterConfig, folder: str, task: TaskType | None, head: Sequence[str]
) -> AdapterPlan:
    """The plan of an adapter that PEFT or an earlier run wrote: its configuration and its factors."""
    import peft

    if (pointer := pointer_in(Path(folder))) is not None:
        raise ConfigError.at("adapter.start_from", f"{str(pointer)!r} {POINTER}")
    options = _read_options(folder)
    if config.use_dora and not options["use_dora"]:
        raise ConfigError.at("adapter.use_dora", f"{folder!r} has no magnitudes: remove it, or name another adapter")
    planned = _inject(module, peft.LoraConfig(task_type=task, **options), head, 0, "adapter.start_from")
    if not Path(folder, "adapter_model.safetensors").is_file():
        message = f"{folder!r} has no adapter_model.safetensors: name a folder that has its tensors too"
        if Path(folder, "adapter_model.bin").is_file():
            message += " (adapter_model.bin is a pickle, which can run code: save it with PEFT as safetensors)"
        raise ConfigError.at("adapter.start_from", message)
    try:
        saved = read_tensors(folder)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).split("\n")[0]
        raise ConfigError.at("adapter.start_from", f"{folder!r} has no adapter that can be read: {reason}") from None
    parameters = dict(module.named_parameters())
    expected = {n: tuple(t.shape) for n, t in planned.params.items()}
    expected |= {HEAD_PREFIX + n: tuple(parameters[n].shape) for n in head if HEAD_PREFIX + n in saved}
    actual = {n: tuple(t.shape) for n, t in saved.items()}
    if any(p.is_meta for p in module.parameters()):
        # Only loading tells which tensors (a pooler) the checkpoint lacks, and the head has.
        shapes = {HEAD_PREFIX + n: tuple(p.shape) for n, p in parameters.items()}
        expected |= {n: shape for n, shape in actual.items() if shapes.get(n) == shape}
    if expected != actual:
        raise ConfigError.at("adapter.start_from", f"{folder!r} {misfit(expected, actual)}")
    for name, tensor in saved.items():
        if not tensor.is_floating_point() or not bool(tensor.float().isfinite().all()):
            message = f"{folder!r}: {name} has values that are no finite numbers: name another adapter"
            raise ConfigError.at("adapter.start_from", message)
    params = {**planned.params, **{name: tensor.float() for name, tensor in saved.items()}}
    return AdapterPlan(planned.sites, params, planned.lora)


_PASSED_ON = (*(set(AdapterConfig.model_fields) - {"start_from", "from_scratch"}), "fan_in_fan_out")
"""Keys of ``adapter_config.json`` that decide where adapters go and how they act."""

_NOT_USED = (
    "peft_type", "task_type", "peft_version", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode",
    "modules_to_save",
)  # fmt: skip
"""Keys that say what PEFT does with the adapter; the run knows its model, task and head itself."""


def _read_options(folder: str) -> dict[str, Any]:
    """The LoRA options of the adapter in ``folder``, as PEFT would take them. The file may be anybody's, so the keys
    that make PEFT import modules, read files or replace layers (``megatron_core``, ``corda_config``,
    ``layer_replication``) never reach PEFT. Raises :class:`ConfigError` for a key or value that Rondo does not have."""
    import peft

    def refused(message: str) -> ConfigError:
        return ConfigError.at("adapter.start_from", f"{folder!r} {message}")

    try:
        with Path(folder, "adapter_config.json").open(encoding="utf-8") as file:
            written = json.loads(file.read(_LONGEST))
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error).split("\n")[0]
        raise refused(f"has an adapter_config.json that cannot be read: {reason}") from None
    if not isinstance(written, dict) or written.get("peft_type") != "LORA":
        raise refused("is not a LoRA adapter: name one that is")
    defaults = vars(peft.LoraConfig())
    for key, value in written.items():
        if key not in (*_PASSED_ON, *_NOT_USED) and value and value != defaults.get(key):
            reason = f": {NOT_BUILT[key]}" if key in NOT_BUILT else ""
            raise refused(f"has {key}: PEFT has it, Rondo does not{reason}; name an adapter without it")
    options = {key: written.get(key, defaults[key]) for key in _PASSED_ON}
    if options["init_lora_weights"] not in (True, False, "gaussian", "orthogonal"):
        raise refused(f"was started by {options['init_lora_weights']!r}, which changed the base weights too")
    options |= {"init_lora_weights": True, "fan_in_fan_out": options["fan_in_fan_out"] is True}
    for key in ("rank_pattern", "alpha_pattern"):
        options[key] = options[key] or {}
    try:
        AdapterConfig.model_validate({k: v for k, v in options.items() if k != "fan_in_fan_out"})
    except pydantic.ValidationError as error:
        fault = per_key(explain(e, options) for e in error.errors(include_url=False))[0]
        raise refused(f"has an adapter_config.json with {fault}") from None
    return options


_ENDINGS = {".lora_A.weight": ".A", ".lora_B.weight": ".B", ".lora_magnitude_vector": ".magnitude"}
"""Ends of PEFT's names in a file, and Rondo's."""


def read_tensors(folder: str | Path) -> dict[str, Tensor]:
    """Read a saved adapter's tensors under Rondo's names: ``<path>.A``, ``.B``, ``.magnitude``, ``head:<name>``."""
    import peft

    loaded = peft.load_peft_weights(str(folder), device="cpu")
    result = {}
    for key, tensor in loaded.items():
        name = key.removeprefix(_KEY)
        if name.endswith(".base_layer.weight"):  # PEFT saves the frozen weight of an adapted output layer too
            continue
        for ending, factor in _ENDINGS.items():
            if name.endswith(ending):
                result[name.removesuffix(ending) + factor] = tensor.flatten(1) if tensor.dim() > 2 else tensor
                break
        else:
            result[HEAD_PREFIX + name] = tensor
    return result


def write_adapter(
    folder: str | Path,
    network: AdaptedNetwork,
    lora: peft.LoraConfig,
    seen: Params,
    base: Base,
    *,
    model_name: str | None,
    tokenizer: Any = None,
    labels: Sequence[str] = (),
) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors`` as stock PEFT reads them, with the head in
    ``modules_to_save``, and the tokenizer and the label names beside them.

    ``seen`` holds the tensors that the network takes, without a client axis.
    """
    import peft

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    factors = adapter_factors(tuple(network.sites.values()), seen, base)
    head = {**network.initial_head, **{n: t for n, t in seen.items() if n.startswith(HEAD_PREFIX)}}
    tensors: dict[str, Tensor] = {}
    for path, (a, b, _) in factors.items():
        module = network.module.get_submodule(path)
        if isinstance(module, nn.Conv2d):
            a, b = a.reshape(-1, module.in_channels, *module.kernel_size), b[:, :, None, None]
        tensors[f"{_KEY}{path}.lora_A.weight"] = a.contiguous()
        tensors[f"{_KEY}{path}.lora_B.weight"] = b.contiguous()
        if network.sites[path].magnitude:
            tensors[f"{_KEY}{path}.lora_magnitude_vector"] = seen[f"{path}.magnitude"].float().cpu().contiguous()
    for name, tensor in head.items():
        tensors[_KEY + name.removeprefix(HEAD_PREFIX)] = tensor.float().cpu().contiguous()
    config = peft.LoraConfig(**lora.to_dict())
    config.base_model_name_or_path = model_name
    config.modules_to_save = _head_modules(network.module, [n.removeprefix(HEAD_PREFIX) for n in head]) or None
    _write_config(folder, config, factors)
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))
    write_labels(folder, labels)


def write_labels(folder: Path, labels: Sequence[str]) -> None:
    """Write the label names of a classifier, in the order of the classes, beside its weights."""
    if labels:
        content = json.dumps(list(labels), ensure_ascii=False, indent=2)
        (folder / LABELS).write_text(content + "\n", encoding="utf-8")


def _write_config(folder: Path, config: peft.LoraConfig, factors: Mapping[str, tuple[Tensor, Tensor, float]]) -> None:
    """Write ``config``, with ranks and alphas by which PEFT's own scaling gives every site its scale."""
    config.inference_mode = config.init_lora_weights = True
    _place(config, {path: (a.shape[0], scale) for path, (a, _, scale) in factors.items()})
    config.save_pretrained(str(folder))
    # save_pretrained turns the target modules into a set; sort them, so that the file does not depend on hashing.
    config_file = folder / "adapter_config.json"
    content = json.loads(config_file.read_text(encoding="utf-8"))
    content["target_modules"] = sorted(factors)
    config_file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _place(config: peft.LoraConfig, sites: Mapping[str, tuple[int, float]]) -> None:
    """Make ``config`` name exactly the layers of ``sites``, each with its rank and scale."""
    config.target_modules = sorted(sites)
    config.exclude_modules = config.layers_to_transform = config.layers_pattern = None
    ranks = {path: rank for path, (rank, _) in sites.items()}
    units = {path: math.sqrt(rank) if config.use_rslora else rank for path, rank in ranks.items()}
    alphas = {path: scale * units[path] for path, (_, scale) in sites.items()}
    config.r = max(set(ranks.values()), key=list(ranks.values()).count)
    config.lora_alpha = max(set(alphas.values()), key=list(alphas.values()).count)
    config.rank_pattern = {f"^{p}$": r for p, r in ranks.items() if r != config.r}
    config.alpha_pattern = {f"^{p}$": a for p, a in alphas.items() if a != config.lora_alpha}


def to_train(module: nn.Module, lora: peft.LoraConfig, sites: Sequence[Site]) -> Any:
    """PEFT's model around ``module``, to be trained."""
    import peft

    config = peft.LoraConfig(**lora.to_dict())
    _place(config, {site.path: (site.rank, site.scale) for site in sites})
    return peft.get_peft_model(module, config)


def stock_model(module: nn.Module, folder: str | Path) -> nn.Module:
    """A base model with the adapter in ``folder``, loaded by PEFT alone."""
    import peft

    with quiet():
        loaded: nn.Module = peft.PeftModel.from_pretrained(module, str(folder)).eval()
    return loaded
