"""Evaluation of a run by lm-eval (EleutherAI's harness). The only file that imports lm_eval."""

from __future__ import annotations

import importlib.metadata
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rondo.config import packages
from rondo.config import task_kinds as kinds
from rondo.errors import ConfigError, headed
from rondo.models.forms.outline import look
from rondo.models.kernels.quiet import quiet
from rondo.process import seeded
from rondo.results.export import export
from rondo.results.predict import handed_over_by
from rondo.results.reopen import handed_over, is_result
from rondo.runs.device import find_device

_SOURCE, _OPTION, _FOLDER = "rondo evaluate", "--lm-eval", "--lm-eval-tasks"


@headed(_SOURCE)
def evaluate_by_harness(
    path: str | Path,
    tasks: Sequence[str],
    folder: str | Path | None = None,
    *,
    client: str | None = None,
    device: str = "auto",
    allow_code: bool = False,
    allow_changed: bool = False,
) -> dict[str, Any]:
    """lm-eval's results for a run directory (the newcomer's model, or that of ``client``), or for a folder that it
    handed over.

    ``tasks``: names of tasks or groups.
    ``folder``: task files (YAML) in place of lm-eval's own, whose data come from a hub. Such a file can name Python
    code of its own, which lm-eval runs.

    The model is the base with the adapter as stock PEFT loads it, in float32, in batches of ``evaluation.batch_size``.
    Everything else is lm-eval's default: no chat template, and examples in the prompt as the task says. The other
    options are those of :func:`rondo.evaluate`. Raises :class:`ConfigError`.
    """
    if find_spec("lm_eval") is None:
        raise ConfigError.at(_OPTION, packages.missing("lm_eval"))
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError.at(_FOLDER, f"{str(folder)!r} is no folder: name the one with the task files")
    allowed = {"allow_code": allow_code, "allow_changed": allow_changed}
    if client is None:
        return _results(handed_over_by(Path(path)), tasks, folder, device, **allowed)
    if is_result(Path(path)):
        raise ConfigError.at("--client", "an adapter folder has one model; name the run directory instead")
    with tempfile.TemporaryDirectory(prefix="rondo-") as place:
        adapter = Path(place, "adapter")
        export(path, adapter, client=client, allow_code=allow_code, allow_changed=allow_changed)
        return _results(adapter, tasks, folder, device, **allowed)


def _results(
    adapter: Path,
    names: Sequence[str],
    folder: str | Path | None,
    device: str,
    *,
    allow_code: bool,
    allow_changed: bool,
) -> dict[str, Any]:
    result = handed_over(adapter, check_paths=False, allow_code=allow_code, source=_SOURCE, with_method=False)
    kind = kinds.TABLE.get(result.config.task.kind)
    if kind is None or not kind.completes:
        raise ConfigError.at(_OPTION, "lm-eval scores causal models of transformers: name the run of one")
    outline = look(result.config, result.labels)
    if outline.problems:
        raise ConfigError(outline.problems)
    with quiet(), _own_draws(find_device(device)):
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=folder, include_defaults=folder is None)
        unknown = [name for name in names if name not in manager.all_tasks]
        if unknown or not names:
            known = ", ".join(sorted(manager.all_tasks)[:20])
            raise ConfigError.at(_OPTION, f"no task {', '.join(map(repr, unknown))}; there are: {known}")
        check = partial(result.check_base, allow_changed=allow_changed, source=_SOURCE)
        model, tokenizer = outline.stock(result.config, result.folder, check)
        size = result.config.evaluation.batch_size
        scored = HFLM(pretrained=model.to(find_device(device)), tokenizer=tokenizer, batch_size=size)
        try:
            scores = simple_evaluate(scored, tasks=list(names), task_manager=manager, log_samples=False)
        except (OSError, ValueError, KeyError, TypeError) as error:  # a task file may be wrong in any way
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise ConfigError.at(_OPTION, f"lm-eval fails: {type(error).__name__}: {reason}; mend the task") from error
    kept = {key: scores[key] for key in ("results", "groups", "n-shot", "n-samples", "versions") if key in scores}
    content = {"lm_eval": importlib.metadata.version("lm_eval"), **kept}
    plain: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return plain


@contextmanager
def _own_draws(device: torch.device) -> Iterator[None]:
    """Restore all random states afterwards: lm-eval seeds them."""
    import numpy

    python, numbers = random.getstate(), numpy.random.get_state()
    try:
        with seeded(None, device):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(numbers)
