"""Misfits: a checkpoint or an adapter whose tensors are not its model's, and names of ``[adapter]`` that no layer has.

PEFT passes over most of those names, so a misspelt one would train another model than its author means."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from rondo.config.inputs import AdapterConfig
from rondo.config.task_kinds import Kind
from rondo.errors import ConfigError, Problem, first_of
from rondo.models.networks.adapted_layer import Site
from rondo.params import HEAD_PREFIX, Params, magnitude, module_of, pick

_POOLER = "pooler"
"""Transformers' name for the only layer of a base model that other tasks are saved without."""


def new_tensors(kind: Kind, module: nn.Module, report: Mapping[str, Any]) -> set[str]:
    """Names of the head's tensors that the checkpoint does not have, or not in the head's size.

    ``report``: transformers' own (``output_loading_info``).

    Raises :class:`ConfigError` if another tensor is missing or has another size: it would be random.
    """
    sizes = {name: (saved, expected) for name, saved, expected in report["mismatched_keys"]}
    missing = set(report["missing_keys"]) - sizes.keys()
    base = f"{module.base_model_prefix}." if kind.head else ""

    def of_body(name: str) -> bool:
        return name.startswith(base) and not name.startswith(f"{base}{_POOLER}.")

    problems = []
    if lost := set(filter(of_body, missing)):
        lacks = f"the checkpoint lacks {len(lost)} of the model's tensors, which would be random"
        parts = first_of(parts_of(lost, module.state_dict().keys() - lost), 8)
        problems.append(Problem("model.name", f"{lacks}: {parts}; name a complete one, or mend its config.json"))
    if wrong := sorted(filter(of_body, sizes)):
        saved, expected = (" x ".join(map(str, size)) for size in sizes[wrong[0]])
        others = f" ({len(wrong)} tensors differ)" if len(wrong) > 1 else ""
        message = f"{wrong[0]} is {saved} in the checkpoint and {expected} by its config.json{others}"
        problems.append(Problem("model.name", f"{message}: mend config.json, or name another model"))
    if problems:
        raise ConfigError(problems)
    return missing | sizes.keys()


def parts_of(names: Collection[str], others: Collection[str]) -> list[str]:
    """The largest modules, or else tensors, with some of ``names`` in them and none of ``others``."""
    taken = {path for other in others for path in _paths(other)}
    return sorted({next((p for p in _paths(name) if p not in taken), name) for name in names})


def _paths(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts) + 1)]


def misfit(expected: Mapping[str, tuple[int, ...]], actual: Mapping[str, tuple[int, ...]]) -> str:
    """The sentence about an adapter that is another model's. ``expected``, ``actual``: the shapes of the model's and of
    the adapter's tensors, which differ, by Rondo's names."""
    differing = sorted(n for n in expected.keys() | actual.keys() if expected.get(n) != actual.get(n))
    name = differing[0]
    plain = name.removeprefix(HEAD_PREFIX)
    if name != plain and name not in expected:
        message = f"has the tensor {plain} whole beside its factors, as PEFT saves embeddings that were resized or "
        return (
            message + "trained (modules_to_save), and it is not in this model's head: name an adapter of factors alone"
        )
    which = plain if name == plain else f"{plain} of the head"
    message = f"is of another model: {which} is {_sized(actual.get(name))} in it and {_sized(expected.get(name))} in "
    return f"{message}this model" + (f", and so {len(differing) - 1} more tensors" if len(differing) > 1 else "")


def _sized(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else " x ".join(map(str, shape))


def unknown_layers(config: AdapterConfig, paths: Sequence[str], names: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for every name, pattern and number of ``target_modules``, ``exclude_modules`` and
    ``layers_to_transform`` that fits no layer.

    ``paths``: of all layers, such as ``bert.encoder.layer.0.attention.self.query``.
    ``names``: of the layers that can be adapted, for the messages.
    """
    for key, value in (("target_modules", config.target_modules), ("exclude_modules", config.exclude_modules)):
        if isinstance(value, list):
            for name in value:
                if not any(_named(path, name) for path in paths):
                    yield Problem(f"adapter.{key}", f"{name!r} is the name of no layer{_near(name, names)}")
        elif value not in (None, "all-linear") and not _matches(str(value), paths):
            example = next((path for path in paths if path.endswith(f".{value}")), None)
            message = f"{value!r} is a regular expression for a layer's whole path, and no path matches"
            if example is not None:
                message += f"; the name of a layer stands in a list: [{str(value)!r}], which takes {example} too"
            yield Problem(f"adapter.{key}", message if example else message + _near(str(value), names))
    if config.layers_to_transform is not None and isinstance(config.target_modules, list):
        wanted = config.layers_to_transform
        targets = [path for path in paths if any(_named(path, name) for name in config.target_modules)]
        numbers = sorted({number for path in targets if (number := _number(path, config.layers_pattern)) is not None})
        for number in [wanted] if isinstance(wanted, int) else wanted:
            if number not in numbers and targets:
                there = f"they are {_ranges(numbers)}" if numbers else "no layer to adapt has a number there"
                yield Problem("adapter.layers_to_transform", f"there is no layer {number}: {there}")


def unknown_adapted(config: AdapterConfig, adapted: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for every key of ``rank_pattern`` and ``alpha_pattern`` that fits no adapted layer.

    ``adapted``: the paths of all adapted layers.
    """
    names = list(dict.fromkeys(path.rpartition(".")[2] for path in adapted))
    for key, pattern in (("rank_pattern", config.rank_pattern), ("alpha_pattern", config.alpha_pattern)):
        for name in pattern:
            if not _matches(rf"(.*\.)?({name})", adapted):
                yield Problem(f"adapter.{key}", f"{name!r} fits no adapted layer{_near(name, names)}")


def _named(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _matches(pattern: str, paths: Iterable[str]) -> bool:
    """Whether ``pattern`` fits a path. What is no regular expression is left to the check of its form."""
    try:
        return any(re.fullmatch(pattern, path) for path in paths)
    except re.error:
        return True


def _number(path: str, lists: str | list[str] | None) -> int | None:
    """The number of the layer that ``path`` lies in, as PEFT counts: the first one, in one of ``lists`` if named."""
    patterns = [lists] if isinstance(lists, str) else lists
    match = None
    for pattern in patterns or [r"[^.]*"]:
        start = r"(?:^|.*?\.)" if patterns else r".*?\."
        match = match or re.match(rf"{start}{pattern}\.(\d+)\.", path)
    return None if match is None else int(match[1])


def _ranges(numbers: Sequence[int]) -> str:
    whole = list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if list(numbers) == whole else ", ".join(map(str, numbers))


def _near(name: str, names: Sequence[str]) -> str:
    """A hint behind an unknown ``name``: the closest of ``names``, or all."""
    near = difflib.get_close_matches(name, names, n=2)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; there are: {', '.join(names)}"


def unfit(
    key: str,
    lora: Any,
    sites: Sequence[Site],
    params: Params,
    unsupported: Mapping[str, Mapping[nn.Module, str]],
    available: str,
) -> Iterator[Problem]:
    """The faults of the layers that PEFT chose by its configuration ``lora``. ``params``: their tensors.
    ``unsupported``: paths of others, by reason and layer. Warns of names among the targets that match none."""
    targets, by_config = lora.target_modules, key == "adapter.target_modules"
    for reason, layers in unsupported.items():
        first = next(iter(layers.values()))
        yield Problem(key, f"{first}{others(len(layers) - 1)}: {reason}. Names of such layers here: {available}")
    too_small = [site for site in sites if site.rank > min(site.shape)]
    if too_small:
        yield Problem("adapter.r" if by_config else key, exceeded(too_small, by_config))
    if isinstance(targets, (set, list)):
        unmatched = [n for n in sorted(targets) if not any(s.path == n or s.path.endswith("." + n) for s in sites)]
        if unmatched and sites:
            message = f"{key}: {', '.join(unmatched)} match no layer; {len(sites)} layers are adapted"
            warnings.warn(message, stacklevel=2)
    if not sites and not unsupported:
        yield Problem(key, f"{_shown(targets)} matches only the task head, which is not adapted; name other layers")
    if lora.use_dora and lora.lora_dropout > 0:
        message = "with use_dora PEFT drops the frozen weight's inputs too, which Rondo does not: set lora_dropout to 0"
        yield Problem("adapter.lora_dropout" if by_config else key, message)
    for name, norms in pick(params, magnitude).items():
        if not norms.is_meta and not norms.all():
            message = f"{module_of(name)} has rows of zeros, which have no direction (use_dora): name other layers"
            yield Problem(key, message)


def no_match(targets: object, available: str, error: Exception) -> str:
    """The message that says why no layer was chosen and which names could have been."""
    reason = str(error).split(". ")[0].strip()
    if not targets or "not found in the base model" in reason:
        reason = "no layer has such a name"
    return f"{_shown(targets)} cannot be used: {reason}. Names of layers that can be adapted here: {available}"


def _shown(targets: object) -> str:
    return repr(sorted(targets) if isinstance(targets, (set, list)) else targets)


def exceeded(sites: Sequence[Site], by_rank: bool) -> str:
    """The message about ``sites`` that are too small for their rank. ``by_rank``: the configuration sets it, not an
    adapter that the run starts from."""
    least = min(sites, key=lambda site: min(site.shape))
    message = f"rank {least.rank} exceeds {least.path}, which is {least.shape[0]} x {least.shape[1]},"
    remedy = f"lower it to {min(least.shape)}, or give such layers a rank by adapter.rank_pattern"
    message = f"{message}{others(len(sites) - 1)}".rstrip(",")
    return f"{message}: {remedy if by_rank else 'name another adapter'}"


def others(count: int) -> str:
    """Words for ``count`` more layers beside one that is named."""
    return f" and {count} other layer{'s' if count > 1 else ''}" if count else ""
