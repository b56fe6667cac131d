"""The classes that a head has learned, and whether its outputs are those of a run: by name, never by number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rondo.config.inputs import plain_name
from rondo.errors import Problem
from rondo.models.kernels.quiet import quiet

LABELS = "labels.json"
"""The names of the classes, beside an adapter that a run wrote."""
_NUMBERED = re.compile("label_[0-9]+")
"""transformers' name of a class without one."""


def named(classes: Mapping[Any, Any]) -> tuple[str, ...]:
    """The names of classes by number (``id2label``) in their order; none for transformers' own ones."""
    names = tuple(plain_name(classes[number]) for number in sorted(classes, key=int))
    return () if all(_NUMBERED.fullmatch(name.casefold()) for name in names) else names


def of_checkpoint(name: str, revision: str | None) -> tuple[str, ...]:
    """The classes that a checkpoint has learned, if its configuration says any."""
    import transformers

    with quiet():
        content, _ = transformers.PreTrainedConfig.get_config_dict(name, revision=revision or "main")
    classes = content.get("id2label")
    return named(classes) if isinstance(classes, dict) else ()


def of_adapter(folder: str | Path) -> tuple[str, ...]:
    """The classes that the adapter in ``folder`` has learned, if a file beside it says any."""
    try:
        content = json.loads(Path(folder, LABELS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ()
    return tuple(map(plain_name, content)) if isinstance(content, list) else ()


def misplaced(labels: Sequence[str], learned: Sequence[str], whose: str, *, chosen: bool) -> Iterator[Problem]:
    """The problem of a head of the ``learned`` classes with those of a run, ``labels``: an output would go on as
    another class. A head of another size is drawn anew, and numbers are those of the outputs.

    ``whose``: what has the head, for the message.
    ``chosen``: whether the user has set the order. Names that the head lacks are then the user's for its outputs.
    """
    ours, theirs = ([name.casefold() for name in names] for names in (labels, learned))
    numbers = [str(place) for place in range(len(ours))]
    if len(ours) != len(theirs) or ours == theirs or (ours == numbers and set(theirs) != set(ours)):
        return
    listed = ", ".join(map(repr, learned[:20]))
    if set(ours) == set(theirs):
        order = json.dumps([labels[ours.index(name)] for name in theirs], ensure_ascii=False)
        yield Problem("task.labels", f"{whose} has learned these classes in another order: set it to {order}")
    elif not chosen or any(name in theirs and theirs[place] != name for place, name in enumerate(ours)):
        stranger = next(name for name, folded in zip(labels, ours, strict=True) if folded not in theirs)
        message = f"{whose} has learned the classes {listed}, and {stranger!r} is not among them: name another, or set"
        remedy = "this key to the classes of the rows in the order of its outputs, and the head goes on for them"
        yield Problem("task.labels", f"{message} {remedy}")
