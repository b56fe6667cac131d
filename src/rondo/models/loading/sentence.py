"""The files by which sentence-transformers loads a model: ``modules.json``, how states are pooled, and most tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError

_POOLING = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens", "lasttoken": "lasttoken"}
_LIBRARY = "sentence_transformers.models"


def settled(task: TaskConfig, name: str, revision: str | None) -> TaskConfig:
    """``task`` with the pooling and the length of vectors that the model at ``name`` has, where it leaves them open;
    without ``modules.json`` the mean, as it is. Raises :class:`ConfigError` for a model with more parts, unless the
    task sets both."""
    if task.pooling is not None and task.unit_length is not None:
        return task
    modules = _read(name, "modules.json", revision) or []
    kinds = {str(module.get("type", "")).rpartition(".")[2]: module for module in modules}
    if more := sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"}):
        message = f"{name!r} has the part {more[0]} behind its pooling (modules.json), which Rondo does not have: name "
        raise ConfigError.at("model.name", f"{message}another, or set task.pooling and task.unit_length to go without")
    pooling = "mean"
    if "Pooling" in kinds:
        found = _read(name, f"{kinds['Pooling'].get('path', '')}/config.json", revision) or {}
        known = [key for key, word in _POOLING.items() if found.get(f"pooling_mode_{word}")]
        written = found.get("pooling_mode")
        known = [written] if written in _POOLING else known
        used = [key for key, value in found.items() if key.startswith("pooling_mode_") and value is True]
        if len(known) != 1 or len(used) > 1:
            message = f"its model pools by {', '.join(used) or written} (modules.json), which Rondo does not: set it"
            raise ConfigError.at("task.pooling", f"{message} to one of {', '.join(_POOLING)}")
        pooling = known[0]
    open_keys = {"pooling": task.pooling or pooling}
    unit = "Normalize" in kinds if task.unit_length is None else task.unit_length
    return task.model_copy(update={**open_keys, "unit_length": unit})


def _read(name: str, file: str, revision: str | None) -> Any:
    """The content of a JSON file beside a model; None if there is none. Raises :class:`ConfigError`."""
    from transformers.utils import cached_file

    path = cached_file(name, file, revision=revision or "main", _raise_exceptions_for_missing_entries=False)
    try:
        return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError.at("model.name", f"{name!r}: {file} cannot be read: {error}; mend it") from None


def write(folder: Path, task: TaskConfig, width: int) -> None:
    """Write the files beside a model, or an adapter, in ``folder``. ``width``: numbers of a vector."""
    parts = ["Transformer", "Pooling", *(["Normalize"] if task.unit_length else [])]
    paths = ["", *(f"{i}_{part}" for i, part in enumerate(parts[1:], 1))]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_LIBRARY}.{part}"}
        for i, (part, path) in enumerate(zip(parts, paths, strict=True))
    ]
    pooling = {f"pooling_mode_{word}": task.pooling == key for key, word in _POOLING.items()}
    contents = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": task.max_length, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": width, **pooling},
    }
    for path in paths[1:]:
        (folder / path).mkdir(exist_ok=True)
    for file, content in contents.items():
        (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
