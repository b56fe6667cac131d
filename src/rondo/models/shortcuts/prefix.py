"""Hidden states below the lowest adapted layer, computed once per example and reused over epochs and rounds.

They depend on nothing that is trained: the base runs without dropout, and every adapted layer lies above. The states of
a client, and of a test set, are always computed from all its examples in one fixed order of batches, so computing them
again after they are lost (a full budget, a resumed run) gives the same bits.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rondo.models.kernels.out_of_memory import is_out_of_memory
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import agree, rounding
from rondo.params import Params, add_client_axis
from rondo.tasks.task import Batch, Example, Task

_ALIGNED = 64
"""Alignment of torch's tensors in bytes."""


class Spill:
    """Up to ``limit`` bytes of tensors on the disk, read when they are used. Not for several threads at once."""

    def __init__(self, limit: int) -> None:
        self._left = limit // _ALIGNED * _ALIGNED
        self._end = 0
        self._mapped: mmap.mmap | None = None

    def put(self, tensor: Tensor) -> Tensor | None:
        """``tensor`` on the disk, or None where it does not fit. A full or broken disk is told in a warning, and takes
        nothing from then on."""
        content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        size = -(-len(content) // _ALIGNED) * _ALIGNED
        if size > self._left:
            return None
        try:
            if self._mapped is None:
                self._open()
            self._write(content)
        except OSError as error:
            self._left = 0
            warnings.warn(
                f"{tempfile.gettempdir()} cannot be written: {error.strerror or error}. Layers whose output has no "
                "room in memory are computed anew in every round; set TMPDIR to a folder with room to save the time",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        assert self._mapped is not None
        start = self._end
        self._end, self._left = start + size, self._left - size
        stored = torch.frombuffer(self._mapped, dtype=tensor.dtype, count=tensor.numel(), offset=start)
        return stored.view(tensor.shape)

    def _open(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="rondo-", buffering=0)  # noqa: SIM115 - lives as long as its tensors
        self._file.truncate(self._left)
        self._mapped = mmap.mmap(self._file.fileno(), self._left)

    def _write(self, content: memoryview) -> None:
        """Write to the file and not through the mapping, where a full disk would end the process."""
        self._file.seek(self._end)
        while content:
            content = content[self._file.write(content) :]


T = TypeVar("T")
_BATCH_TOKENS = 1024
"""Tokens per batch: more take more memory and are not faster
(docs/dev/log/decisions.md, "The prefix, and tokens per step")."""
_SAME = 1e-4
"""Relative difference of logits that are made by the same operations on the same numbers, in any type."""


class _Reached(Exception):
    """The lowest adapted layer is reached; the layers above need not run."""


class _Mode(threading.local):
    """This thread's use of the prefix: capturing its output, or putting ``hidden`` in its place."""

    capturing = False
    hidden: Tensor | None = None
    captured: Tensor | None = None


class ShortcutRefused(Exception):
    """A shortcut cannot be taken; the message says why."""


def tried(take: Callable[[], T], *refusals: str | None) -> tuple[T | None, str | None]:
    """The result of ``take``, or the reason why the shortcut is not taken: the first of ``refusals``, or its own."""
    if (reason := next(filter(None, refusals), None)) is not None:
        return None, reason
    try:
        return take(), None
    except ShortcutRefused as refused:
        return None, str(refused)


class Prefix:
    """The layers of ``network`` below its lowest adapted one.

    ``memory`` and ``disk`` are budgets in bytes; states that fit neither are computed anew whenever they are needed.
    Raises :class:`ShortcutRefused` if there are no such layers, if one of them is in training mode, or if the adapted
    layers are not all in one list. :meth:`check` finds models that use these layers in other ways.
    """

    def __init__(self, network: AdaptedNetwork, task: Task, *, memory: int, disk: int) -> None:
        self.network, self.task = network, task
        path, start = _lowest(network)
        layers: Any = network.module.get_submodule(path)
        if any(m.training for layer in layers[:start] for m in layer.modules()):
            raise ShortcutRefused("layers below the lowest adapted one are in training mode (dropout)")
        self.layers, self.place = start, f"{path}.{start}"
        self._mode = _Mode()
        self._shapes: dict[int, int] = {}
        for number, layer in enumerate(layers[:start]):
            self._bypass(number, layer)
        layers[start].register_forward_pre_hook(self._at_start, with_kwargs=True)
        self._memory, self._spill = memory, Spill(disk)
        self._lock = threading.Lock()
        self._kept: dict[str, Tensor] = {}
        self._tests: dict[str, Tensor | None] = {}
        self._bytes_per_token, self._ignores_padding = 0, False

    def _bypass(self, number: int, layer: nn.Module) -> None:
        original = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._mode.hidden is None:
                output = original(*args, **kwargs)
                self._shapes[number] = len(output) if isinstance(output, tuple) else 0
                return output
            hidden = args[0] if args else kwargs["hidden_states"]
            extra = self._shapes.get(number, 0) - 1
            return hidden if extra < 0 else (hidden, *[None] * extra)

        layer.forward = forward

    def _at_start(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mode = self._mode
        if mode.capturing:
            mode.captured = args[0] if args else kwargs["hidden_states"]
            raise _Reached
        if mode.hidden is None:
            return None
        if args:
            return (self.network.laid(mode.hidden), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self.network.laid(mode.hidden)}

    def check(self, seen: Params, examples: Sequence[Example]) -> None:
        """Compare the model with and without its prefix on ``examples``. Raises :class:`ShortcutRefused` if they
        differ: with states of the same call, the model does more with its lower layers than pass a hidden state on;
        with states computed one by one and padded as in training, they read padding. Those are rounded in other ways,
        so they are compared less closely."""
        params, inputs = add_client_axis(seen), self._inputs(examples)

        def without(states: States) -> Tensor:
            with self.replaced(states.padded(examples).to(self.network.device)):
                return self.network(params, {}, inputs)

        with torch.no_grad():
            whole = self.network(params, {}, inputs)
            try:
                hidden = self._capture(inputs)
                self._bytes_per_token = hidden.shape[-1] * hidden.element_size()
                together = without(States({id(e): hidden[row, : e.cost] for row, e in enumerate(examples)}))
                alone = without(States({id(e): self._compute([e]) for e in examples}))
            except Exception as error:  # a model may raise anything
                if is_out_of_memory(error):
                    raise
                raise ShortcutRefused(f"the model does not run without its lower layers: {error}") from None
        real = inputs["attention_mask"].bool()
        if whole.dim() > 2 and whole.shape[:2] == real.shape == together.shape[:2] == alone.shape[:2]:
            whole, together, alone = whole[real], together[real], alone[real]
        if not agree(together, whole, _SAME) or not agree(alone, whole, rounding(self.network) ** 0.5):
            raise ShortcutRefused("the model uses its lower layers in other ways than through the hidden state")
        self._ignores_padding = len({e.cost for e in examples}) > 1

    @contextlib.contextmanager
    def replaced(self, hidden: Tensor | None) -> Iterator[None]:
        """Use ``hidden`` (rows, tokens, width) as the prefix's output in calls inside; None computes the prefix."""
        self._mode.hidden = hidden
        try:
            yield
        finally:
            self._mode.hidden = None

    def states(self, client: str, examples: Sequence[Example]) -> States:
        """The states of a client's examples, kept from before or computed now."""
        with self._lock:
            flat = self._kept.get(client)
        if flat is None:
            flat = self._keep(client, self._compute(examples))
        return States.of(flat, examples)

    def reserve(self, tests: Mapping[str, Sequence[Example]]) -> None:
        """Set memory aside for the states of test sets, by name, as far as they fit into half of it: every score asks
        for them. Whether a set's states are used changes how its scores are rounded, so it depends on the sets and the
        budget alone, not on what has been computed before. Nothing is kept where :meth:`check` saw no padding: that the
        lower layers ignore it is not known then."""
        if not self._ignores_padding:
            return
        left = self._memory // 2
        for name, examples in tests.items():
            if name in self._tests:
                continue
            size = self._bytes_per_token * sum(e.cost for e in examples)
            if size <= left:
                left, self._memory, self._tests[name] = left - size, self._memory - size, None

    def of_test(self, name: str, examples: Sequence[Example]) -> States | None:
        if name not in self._tests:
            return None
        flat = self._tests[name]
        if flat is None:
            flat = self._tests[name] = self._compute(examples)
        return States.of(flat, examples)

    @torch.no_grad()
    def _compute(self, examples: Sequence[Example]) -> Tensor:
        """The states of all tokens, (tokens, width), in the order of ``examples``."""
        order = sorted(range(len(examples)), key=lambda i: examples[i].cost)
        states: dict[int, Tensor] = {}
        while order:
            size = max(1, _BATCH_TOKENS // max(examples[i].cost for i in order[:_BATCH_TOKENS]))
            chosen, order = order[:size], order[size:]
            hidden = self._capture(self._inputs([examples[i] for i in chosen])).cpu()
            states |= {i: hidden[row, : examples[i].cost] for row, i in enumerate(chosen)}
        return torch.cat([states[i] for i in range(len(examples))]) if states else torch.zeros(0)

    def _inputs(self, examples: Sequence[Example]) -> Batch:
        inputs, _ = self.task.collate(examples)
        return {n: t.to(self.network.device) for n, t in inputs.items()}

    def _capture(self, inputs: Batch) -> Tensor:
        mode = self._mode
        mode.capturing = True
        try:
            self.network.module(**inputs)
        except _Reached:
            assert mode.captured is not None
            return mode.captured
        finally:
            mode.capturing, mode.captured = False, None
        raise ShortcutRefused(f"{self.place} does not run")

    def _keep(self, client: str, flat: Tensor) -> Tensor:
        size = flat.numel() * flat.element_size()
        with self._lock:
            if size <= self._memory:
                self._memory -= size
                self._kept[client] = flat
            elif (on_disk := self._spill.put(flat)) is not None:
                self._kept[client] = flat = on_disk
        return flat


@dataclass(frozen=True)
class States:
    """States of examples, (tokens, width) each, by the example's ``id``."""

    each: Mapping[int, Tensor]

    @classmethod
    def of(cls, flat: Tensor, examples: Sequence[Example]) -> States:
        """``flat`` (tokens, width) has the states of ``examples``, one after the other."""
        ends = torch.tensor([e.cost for e in examples]).cumsum(0).tolist()
        return cls({id(e): flat[end - e.cost : end] for e, end in zip(examples, ends, strict=True)})

    def __or__(self, other: States) -> States:
        return States({**self.each, **other.each})

    def padded(self, examples: Sequence[Example]) -> Tensor:
        """The states of a batch, (rows, longest, width), with zeros on the right for padding."""
        rows = [self.each[id(e)] for e in examples]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _lowest(network: AdaptedNetwork) -> tuple[str, int]:
    """The path of the list of layers that holds every adapted layer, and the index of the lowest adapted one. Raises
    :class:`ShortcutRefused` if there is no such list or the index is 0."""
    places = []
    for site in network.sites:
        match = re.match(r"(.*?)\.(\d+)\.", site)
        if match is None or not isinstance(network.module.get_submodule(match[1]), nn.ModuleList):
            raise ShortcutRefused(f"{site} is not in a list of layers")
        places.append((match[1], int(match[2])))
    paths = {path for path, _ in places}
    if len(paths) > 1:
        raise ShortcutRefused(f"adapted layers are in several lists: {', '.join(sorted(paths))}")
    start = min(number for _, number in places)
    if start == 0:
        raise ShortcutRefused("the lowest layer is adapted")
    return paths.pop(), start
