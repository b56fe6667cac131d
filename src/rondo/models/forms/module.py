"""A model without a hub: a built-in network, or a ``torch.nn.Module`` of the user's own."""

from __future__ import annotations

import copy
import difflib
import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import safetensors.torch
import torch
from torch import Tensor, nn

from rondo.config.schema import RunConfig, SimulationConfig
from rondo.errors import ConfigError
from rondo.models.forms.model import Form, Model, Verification
from rondo.models.kernels.precision import products
from rondo.models.loading import peft
from rondo.models.loading.lent import Lent, lend
from rondo.models.loading.pretrained import fingerprint
from rondo.models.networks.adapted_layer import Site, merged_weight
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.checks import check_module
from rondo.models.networks.network import Base, Network
from rondo.models.networks.whole_network import WholeNetwork
from rondo.models.shortcuts.head_inputs import keep_head_inputs
from rondo.params import BUFFER_PREFIX, HEAD_PREFIX, Params, Role, kaiming, magnitude, pick, role
from rondo.tasks.task import Batch, Example, Task

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Stock:
    """A module without adapters and hooks that shares its weights with a network, and the adapters that go there."""

    module: nn.Module
    lora: Any
    """PEFT's configuration."""


@dataclass
class WholeModel(Model):
    """A :class:`rondo.models.forms.model.Model` around a module."""

    name: str
    identity: Mapping[str, Any]
    network: Network
    precision: torch.dtype
    fresh: Callable[[], nn.Module]
    """Makes the module anew."""
    simulation: SimulationConfig
    shortcuts: Mapping[str, Any] = field(default_factory=dict)
    """The manifest's entry about shortcuts."""
    stock: Stock | None = None
    """The module for a trainer of the user's own."""

    form: ClassVar[Form] = "weights"

    def shorten(self, task: Task, examples: Sequence[Example]) -> tuple[Task, None]:
        """The only shortcut is to keep the inputs of the head, where whole tensors are trained."""
        if self.network.head_alone:
            self.shortcuts = keep_head_inputs(self.network, task, examples, self.simulation)
        return task, None

    def record(self) -> Mapping[str, Any]:
        return {"kernels": kernels_of(self.network, self.precision), **self.shortcuts}

    def save(self, folder: Path, seen: Params, base: Base, labels: Sequence[str]) -> None:
        """Write the module's state, as ``load_state_dict`` takes it, to one safetensors file, and the label names."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {n: t.contiguous().clone() for n, t in state_of(self.network, seen, base).items()}
        safetensors.torch.save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        peft.write_labels(folder, labels)

    def read(self, folder: Path) -> tuple[Params, Base]:
        """The module gets all tensors that the network does not take, and weights with their factors added, so factors
        are zero and there are no magnitudes."""
        file, module = folder / WEIGHTS, self.network.module
        try:
            state = safetensors.torch.load_file(file)
        except (OSError, safetensors.SafetensorError) as error:
            raise ConfigError.at("ADAPTER_DIR", f"{str(file)!r} cannot be read: {error}") from None
        # A trained head is no longer part of the module, so a fresh one is asked.
        try:
            self.fresh().load_state_dict(state)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            message = f"the tensors in {str(file)!r} are not those of {self.name!r}: {reason:.300}"
            raise ConfigError.at("ADAPTER_DIR", message) from None
        module.load_state_dict(state, strict=False)
        seen = {
            n: state[_own_name(n)].to(t) if role(n) in _WHOLE else torch.zeros_like(t)
            for n, t in pick(self.network.initial, ~magnitude).items()
        }
        return seen, {}

    def lend(self, seen: Params, base: Base, train: Collection[str]) -> Lent:
        if self.stock is None:
            return super().lend(seen, base, train)
        return lend(self.stock.module, self.stock.lora, tuple(self.network.sites.values()), None, seen, base, train)

    def verified(self, folder: Path, seen: Params, base: Base, task: Task, rows: Callable[[], Batch]) -> Verification:
        batch, stock = rows(), self.fresh()
        stock.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS), strict=True)
        stock.to(task.precision)
        stock.eval()
        return self._compared(stock, seen, base, batch)


_WHOLE = (Role.HEAD, Role.BUFFER, Role.BODY)
"""Roles of the tensors that a module has itself."""


def _own_name(name: str) -> str:
    """The module's own name of one of these tensors."""
    return name.removeprefix(HEAD_PREFIX).removeprefix(BUFFER_PREFIX)


def kernels_of(network: Network, precision: torch.dtype) -> dict[str, Any]:
    """The manifest's entry about a network whose tensors are trained in ``precision``."""
    types = {"dtype": precision, "products": network.products or precision}
    return {n: str(t).removeprefix("torch.") for n, t in types.items()} | {"reason": "weights are trained in it"}


def state_of(network: Network, seen: Params, base: Base) -> dict[str, Tensor]:
    """The state of the network's module, by its own names, with the tensors ``seen`` in their places and all factors
    added to their weights. A tensor with several names has its value under each."""
    module = network.module
    changed = {_own_name(name): tensor for name, tensor in seen.items() if role(name) in _WHOLE}
    for path, site in network.sites.items():
        changed[f"{path}.weight"] = merged_weight(module.get_submodule(path), site, seen, base)
    state: dict[str, Tensor] = {n: t.detach().cpu() for n, t in module.state_dict().items()}
    aliases = _aliases(module)
    for name, tensor in changed.items():
        value = tensor.detach().cpu()
        state |= dict.fromkeys(aliases.get(name, [name]), value)
    return state


def _aliases(module: nn.Module) -> dict[str, list[str]]:
    """By the name of every tensor, all names that it has: tied weights and layers that occur twice have several."""
    parameters, buffers = (m(remove_duplicate=False) for m in (module.named_parameters, module.named_buffers))
    named: list[tuple[str, Tensor]] = [*parameters, *buffers]
    names: dict[int, list[str]] = {}
    for name, tensor in named:
        names.setdefault(id(tensor), []).append(name)
    return {name: names[id(tensor)] for name, tensor in named}


def head_names(config: RunConfig, module: nn.Module) -> tuple[str, ...]:
    """Names of the parameters in the layers ``model.head_layers``, or in the last layer that has any. Raises
    :class:`ConfigError` for a layer that does not exist or has none."""
    layers = config.model.head_layers
    if layers is None:
        # Tied weights count where they are first named. A module whose parameters are all its own has no head.
        layers = [n.rpartition(".")[0] for n, _ in module.named_parameters() if "." in n][-1:]
    names: list[str] = []
    for layer in layers:
        of_layer = [n for n, _ in module.named_parameters() if n.startswith(f"{layer}.")]
        if not of_layer:
            known = ", ".join(p for p, m in module.named_modules() if p and [*m.parameters(recurse=False)])
            message = f"no layer {layer!r} with parameters; layers here: {known}"
            raise ConfigError.at("model.head_layers", message)
        names += of_layer
    return tuple(dict.fromkeys(names))


def trained_names(config: RunConfig, module: nn.Module, head: Sequence[str], sites: Sequence[Site]) -> tuple[str, ...]:
    """Names of the parameters that ``train.what`` names, the head's included. The weights of adapted layers stay
    frozen: their factors are trained. So do parameters without ``requires_grad``. Raises :class:`ConfigError` for a
    pattern without a parameter, and for names that mean something else here."""
    what = config.whole_tensors
    frozen = {f"{s.path}.weight" for s in sites}
    names = [n for n, p in module.named_parameters() if n not in frozen and p.requires_grad]
    if isinstance(what, list):
        for pattern in what:
            if not fnmatch.filter(names, pattern):
                raise ConfigError.at("train.what", f"{pattern!r} {_not_trained(module, pattern, names, frozen)}")
        names = [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in what)]
    elif what != "all":
        names = [n for n in names if n in head]
    for name in names:
        if name not in head and role(name) is not Role.BODY:
            message = f"the parameter {name!r} ends like a factor's name, so it cannot be trained whole: name others"
            raise ConfigError.at("train.what", message)
    return tuple(names)


def _not_trained(module: nn.Module, pattern: str, names: Sequence[str], adapted: Collection[str]) -> str:
    """The reason why ``pattern`` names none of the parameters ``names``, and the remedy."""
    if pattern in adapted:
        return "is the weight of an adapted layer, whose factors are trained: remove it, or do not adapt the layer"
    same = next((name for name in _aliases(module).get(pattern, ()) if name in names), None)
    if same is not None:
        return f"is the same tensor as {same!r}: name that"
    near = difflib.get_close_matches(pattern, names, n=3)
    if near:
        return f"is no parameter that can be trained; did you mean {' or '.join(near)}?"
    return f"is no parameter that can be trained; there are: {', '.join(names[:20])}{' ...' if len(names) > 20 else ''}"


def make_network(
    config: RunConfig, module: nn.Module, head: Sequence[str], peft_task: peft.TaskType | None, device: torch.device
) -> Network:
    """The network of a run around ``module``: one that trains whole tensors of its body in :class:`WholeNetwork`, with
    factors alone in :class:`AdaptedNetwork`, whose clients share calls. Raises :class:`ConfigError`."""
    sites: tuple[Site, ...] = ()
    factors: dict[str, Tensor] = {}
    if config.has_factors:
        plan = peft.plan(module, config.adapter, peft_task, head, config.seed)
        precision = next(p.dtype for p in module.parameters() if p.is_floating_point())
        sites, factors = plan.sites, {n: t.to(precision) for n, t in plan.params.items()}
        if config.adapter.from_scratch:
            factors |= from_scratch(module, sites, factors, config.seed)
        _own_weights(module, sites)
    names = trained_names(config, module, head, sites)
    if not names and not sites:
        message = "it selects no parameter that asks for a gradient (requires_grad): name others"
        raise ConfigError.at("train.what", message)
    if config.has_factors and set(names) <= set(head):
        return AdaptedNetwork(module, sites, head, factors)
    if config.has_factors and config.adapter.lora_dropout:
        message = "factors are added to the weights of a network that is trained whole, where nothing can drop: set 0"
        raise ConfigError.at("adapter.lora_dropout", message)
    single = all(t.dtype is torch.float32 for t in module.parameters())
    return WholeNetwork(
        module,
        names,
        head,
        statistics=config.model.buffers != "frozen",
        sites=sites,
        factors=factors,
        products=products(config.train.precision, device, module) if single else None,
    )


def _own_weights(module: nn.Module, sites: Sequence[Site]) -> None:
    """Raises :class:`ConfigError` for an adapted layer whose weight is another layer's too."""
    aliases, owners = _aliases(module), dict(module.named_modules(remove_duplicate=False))
    for site in sites:
        for alias in aliases[f"{site.path}.weight"]:
            path = alias.removesuffix(".weight")
            if owners[path] is not owners[site.path]:
                message = f"{site.path} shares its weight with {path}, so factors would change both: name other layers"
                raise ConfigError.at("adapter.target_modules", message)


def from_scratch(module: nn.Module, sites: Sequence[Site], factors: Params, seed: int) -> dict[str, Tensor]:
    """Set the weights of all sites to zero, and draw B as A is drawn, so that their product is the layer.

    Source: FedLoRU's official code, which trains from scratch; its paper starts from W0 and B = 0.
    """
    start: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(seed)
    for site in sites:
        weight = module.get_submodule(site.path).weight
        assert isinstance(weight, Tensor)
        with torch.no_grad():
            weight.zero_()
        start[f"{site.path}.B"] = kaiming(site.shape[0], site.rank, generator).to(factors[f"{site.path}.B"])
    return start


def whole_model(
    config: RunConfig,
    fresh: Callable[[], nn.Module],
    task: Task,
    device: torch.device,
    peft_task: peft.TaskType | None = None,
) -> WholeModel:
    """The model of a run around the module that ``fresh`` makes, in the task's precision. Raises
    :class:`ConfigError`."""
    module = fresh()
    check_module(module)
    module.to(task.precision)
    head = head_names(config, module)
    stock = None
    if config.train.trainer is not None:
        lora = peft.plan(module, config.adapter, peft_task, head, config.seed).lora
        module.to(device)
        stock = Stock(copy.deepcopy(module, {id(p): p for p in module.parameters()}), lora)
    network = make_network(config, module, head, peft_task, device)
    identity = {
        "model_sha256": fingerprint(module),
        "model_config": {"name": config.model.name, "trained": sorted(network.initial), "text": str(module)},
    }
    network.move(device)
    facts = (config.model.name, identity, network, task.precision, fresh, config.simulation)
    return WholeModel(*facts, stock=stock)
