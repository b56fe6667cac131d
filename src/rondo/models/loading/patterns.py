"""Names and patterns of ``[adapter]`` that no layer has. PEFT passes over most of them, so a misspelt one would train
another model than its author means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

from rondo.config.inputs import AdapterConfig
from rondo.errors import Problem


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
