"""What a torch module exposes to federated low-rank training, and the one way in which tensors enter it.

A :class:`Network` is an unchanged frozen module with a forward hook on every adapted layer, so any layer that is
linear in its input will do (``nn.Linear``, GPT-2's ``Conv1D``, ``nn.Conv2d``, a quantised linear). The tensors of a
call stay in place until the next call, through ``backward`` too, so that activation checkpointing recomputes with the
tensors of its own forward pass.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from rondo.algorithm import Weight
from rondo.lowrank import LowRank, total
from rondo.params import HEAD_PREFIX, Params

Batch: TypeAlias = Mapping[str, Tensor]
LayerKind: TypeAlias = Literal["linear", "conv1d", "conv2d"]


@dataclass(frozen=True)
class Site:
    """An adapted layer: its module path, kind, matrix shape (out, in), the adapter's rank, scale and dropout.

    For a convolution ``in`` is in_channels * kernel height * kernel width.
    """

    path: str
    kind: LayerKind
    shape: tuple[int, int]
    rank: int
    scale: float
    dropout: float


class UnsupportedLayer(ValueError):
    """A layer that the user targets cannot carry a low-rank adapter; the message says why."""


def layer_kind(module: nn.Module, path: str) -> tuple[LayerKind, tuple[int, int]]:
    """The kind of a layer and the shape (out, in) of its matrix. Raises :class:`UnsupportedLayer`."""
    if isinstance(module, nn.Conv2d):
        if module.groups != 1 or module.padding_mode != "zeros" or module.dilation != (1, 1):
            # Groups and padding modes are not one matrix product; dilation PEFT's own adapter leaves out.
            raise UnsupportedLayer(f"{path}: a convolution with groups, dilation or a padding mode cannot be adapted")
        height, width = module.kernel_size
        return "conv2d", (module.out_channels, module.in_channels * height * width)
    if isinstance(module, nn.Linear):  # quantised linears (bitsandbytes, torchao) derive from it
        return "linear", (module.out_features, module.in_features)
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        weight = module.weight
        assert isinstance(weight, Tensor)
        return "conv1d", (weight.shape[1], weight.shape[0])  # stored transposed: in x out
    raise UnsupportedLayer(f"{path}: a {type(module).__name__} cannot be adapted; Linear, Conv1D and Conv2d can")


class _Token:
    """Lives as long as the graph of the call that it was made for."""


class _Calls:
    """What the slots of a network must know of its calls, because activation checkpointing runs layers again in
    ``backward``: whether a call is under way, and which calls have a graph whose layers could yet run again."""

    def __init__(self) -> None:
        self.inside = False
        self.open: list[weakref.ref[_Token]] = []
        self.again = False

    def begin(self) -> None:
        if self.again:  # the backward that ran layers again was the earlier calls' own
            self.open, self.again = [], False
        self.inside = True

    def end(self, output: Any) -> None:
        """Note the call as open for as long as its graph lives."""
        self.inside = False
        self.open = [ref for ref in self.open if ref() is not None]
        logits = getattr(output, "logits", output)
        if isinstance(logits, Tensor) and logits.grad_fn is not None:
            token = _Token()
            logits.grad_fn.metadata["rondo call"] = token  # type: ignore[index]
            self.open.append(weakref.ref(token))

    def layer_runs(self) -> None:
        """Raises RuntimeError where a layer runs again with another call's tensors in place."""
        if not self.inside:
            self.again = True
            if sum(ref() is not None for ref in self.open) > 1:
                raise RuntimeError("activation checkpointing allows one network call before each backward")


class _Slot:
    """One adapted layer of a network: the tensors of the current call, and the hook that adds their effect."""

    def __init__(self, site: Site, module: nn.Module, calls: _Calls) -> None:
        self.site, self.module, self.calls = site, module, calls
        self.masks: list[Tensor] = []
        self.a: Tensor | None = None
        self.b: Tensor | None = None
        self.base: LowRank | None = None
        self.dropout: Sequence[torch.Generator] | None = None
        module.register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.calls.layer_runs()
        x = args[0]
        if self.base is not None:
            output = output + self._apply(x, self.base.down.unsqueeze(0), self.base.up.unsqueeze(0)).to(output.dtype)
        if self.a is not None and self.b is not None:
            x = self._drop(x, self.a.shape[0])
            output = output + self.site.scale * self._apply(x, self.a, self.b).to(output.dtype)
        return output

    def _apply(self, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
        """``B (A x)`` for x of K * batch rows; ``down`` (K, r, in) and ``up`` (K, out, r). B A is never formed."""
        clients = down.shape[0]
        down, up = down.to(x.dtype), up.to(x.dtype)
        if self.site.kind != "conv2d":
            flat = x.reshape(clients, -1, x.shape[-1])
            return ((flat @ down.mT) @ up.mT).reshape(*x.shape[:-1], up.shape[-2])
        conv = self.module
        assert isinstance(conv, nn.Conv2d)
        kernel = (conv.in_channels, *conv.kernel_size)
        rows = []
        for rows_k, down_k, up_k in zip(x.chunk(clients), down, up, strict=True):
            inner = functional.conv2d(
                rows_k, down_k.reshape(-1, *kernel), None, conv.stride, conv.padding, conv.dilation
            )
            rows.append(functional.conv2d(inner, up_k[:, :, None, None]))
        return torch.cat(rows)

    def _drop(self, x: Tensor, clients: int) -> Tensor:
        """Adapter dropout, each client's mask from its own generator."""
        if self.dropout is None or self.site.dropout == 0:
            return x
        if self.calls.inside:
            keep = 1 - self.site.dropout
            parts = [
                torch.empty(part.shape, dtype=torch.float32).bernoulli_(keep, generator=g)
                for part, g in zip(x.chunk(clients), self.dropout, strict=True)
            ]
            self.masks.append((torch.cat(parts) / keep).to(x.device, x.dtype))
        elif len(self.masks) != 1:
            raise RuntimeError(f"{self.site.path} runs several times a call: no dropout with activation checkpointing")
        return x * self.masks[-1]


class Network:
    """A frozen module, its adapted layers and its trainable head. The module runs in eval mode (no base dropout).

    ``head``: torch's own names of the head's tensors (``classifier.weight``). They leave the module's parameters and
    become plain attributes, set by every call.
    """

    def __init__(self, module: nn.Module, sites: Sequence[Site], head: Sequence[str]) -> None:
        self.module = module.eval().requires_grad_(False)
        self.sites = {s.path: s for s in sites}
        self._calls = _Calls()
        self._slots = {s.path: _Slot(s, module.get_submodule(s.path), self._calls) for s in sites}
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        self.initial_head: dict[str, Tensor] = {}
        for name in head:
            owner, attribute = module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
            tensor = owner._parameters.pop(attribute)
            assert tensor is not None
            self.initial_head[HEAD_PREFIX + name] = tensor.detach().clone()
            self._owners[HEAD_PREFIX + name] = (owner, attribute)
            setattr(owner, attribute, tensor.detach())

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def weights(self) -> dict[str, Weight]:
        """The frozen matrix of every adapted layer, read lazily."""
        return {
            p: Weight(s.shape, s.scale, lambda slot=self._slots[p]: _matrix(slot))  # type: ignore[misc]
            for p, s in self.sites.items()
        }

    def __call__(
        self,
        params: Params,
        base: Mapping[str, tuple[LowRank, ...]],
        batch: Batch,
        dropout: Sequence[torch.Generator] | None = None,
    ) -> Any:
        """The module's output on ``batch`` (inputs of K * batch rows) with tensors as ``view`` returns them.

        ``params`` have a client axis K; ``base`` has none. ``dropout``: one generator a client while training.
        Raises KeyError where ``params`` lacks a tensor, ValueError for a head of more than one client.
        """
        for path, slot in self._slots.items():
            slot.a, slot.b = params[f"{path}.A"], params[f"{path}.B"]
            slot.base = total(base[path]) if base.get(path) else None
            slot.dropout, slot.masks = dropout, []
        for name, (owner, attribute) in self._owners.items():
            tensor = params[name] if name in params else self.initial_head[name].unsqueeze(0)
            if tensor.shape[0] != 1:
                raise ValueError(f"{name} has {tensor.shape[0]} clients; heads are trained one client at a time")
            setattr(owner, attribute, tensor[0].to(self.device))
        self._calls.begin()
        output = None
        try:
            output = self.module(**batch)
        finally:
            self._calls.end(output)
        return output


@torch.no_grad()
def _matrix(slot: _Slot) -> Tensor:
    """W (out, in) in float32. A weight in a packed format that is not ours to know is read by applying it to I."""
    module, (out, inp) = slot.module, slot.site.shape
    weight = module.weight
    if hasattr(weight, "qdata"):  # torchao
        weight = weight.dequantize()  # type: ignore[operator]
    if isinstance(weight, Tensor) and weight.is_floating_point() and weight.numel() == out * inp:
        plain = weight.detach().float()
        return plain.T if slot.site.kind == "conv1d" else plain.reshape(out, inp)
    eye = torch.eye(inp, device=next(module.parameters()).device)
    columns: Tensor = module.forward(eye)
    bias = module.bias
    return (columns - bias if isinstance(bias, Tensor) else columns).T.float()


def fingerprint(module: nn.Module) -> str:
    """SHA-256 over the names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        for part, tensor in _plain_parts(name, value) if isinstance(value, Tensor) else ():
            digest.update(f"{part} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain_parts(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """A tensor of a packed format (quantised) as the plain ones that it is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [(name, tensor)]
    parts, _ = tensor.__tensor_flatten__()
    return [found for part in parts for found in _plain_parts(f"{name}.{part}", getattr(tensor, part))]


def load_pretrained(
    kind: Literal["sequence-classification", "causal-lm"],
    name: str,
    *,
    seed: int,
    labels: Sequence[str] = (),
    revision: str | None = None,
    gguf_file: str | None = None,
    quantization: Literal["int8"] | None = None,
) -> tuple[nn.Module, Any, tuple[str, ...]]:
    """A pre-trained model from a folder or a hub, its tokenizer, and the names of its head's tensors.

    The head is all outside the base model (``base_model_prefix``) plus whatever the checkpoint lacked; new tensors are
    drawn from ``seed``. A causal language model has no head. Raises OSError or ValueError as transformers does.
    """
    import transformers

    options: dict[str, Any] = {"revision": revision or "main", "dtype": torch.float32}
    if gguf_file is not None:
        options |= {"gguf_file": gguf_file, "quantization_config": transformers.GgufConfig(dequantize=True)}
    if kind == "sequence-classification":
        auto = transformers.AutoModelForSequenceClassification
        names = dict(enumerate(labels))
        options |= {"num_labels": len(labels), "id2label": names, "label2id": {n: i for i, n in names.items()}}
        options["ignore_mismatched_sizes"] = True  # a head of another task is replaced
    else:
        auto = transformers.AutoModelForCausalLM
    if quantization is not None:
        options["quantization_config"] = _int8(auto, name, options)
    verbosity = transformers.logging.get_verbosity()
    bar = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        # GGUF files are read under a progress bar of their own that no setting turns off.
        quiet = contextlib.redirect_stderr(io.StringIO()) if gguf_file is not None else contextlib.nullcontext()
        with torch.random.fork_rng(devices=[]), quiet:
            torch.manual_seed(seed)
            module, info = auto.from_pretrained(name, output_loading_info=True, **options)
        extra = {"gguf_file": gguf_file} if gguf_file is not None else {}
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, revision=revision or "main", **extra)
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bar:
            transformers.logging.enable_progress_bar()
    if tokenizer.pad_token is None:
        # Padding is masked by attention mask, never by id, so the end token may double as padding.
        tokenizer.pad_token = tokenizer.eos_token
    if module.config.pad_token_id is None:
        module.config.pad_token_id = tokenizer.pad_token_id
    head: tuple[str, ...] = ()
    if kind == "sequence-classification":
        prefix = module.base_model_prefix + "."
        fresh = set(info["missing_keys"]) | {k[0] for k in info.get("mismatched_keys", ())}
        head = tuple(n for n, _ in module.named_parameters() if not n.startswith(prefix) or n in fresh)
    return module, tokenizer, head


def _int8(auto: Any, name: str, options: Mapping[str, Any]) -> Any:
    """Weight-only int8 by torchao, the head left as it is (transformers would quantise a classifier too)."""
    import transformers
    from torchao.quantization import Int8WeightOnlyConfig

    if auto is transformers.AutoModelForCausalLM:
        return transformers.TorchAoConfig(Int8WeightOnlyConfig())
    config = transformers.AutoConfig.from_pretrained(name, revision=options["revision"])
    with torch.device("meta"):
        empty = auto.from_config(config)
    keep = [n for n, _ in empty.named_children() if n != empty.base_model_prefix]
    return transformers.TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=keep)
