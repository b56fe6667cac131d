"""The command evaluate: scores on rows, on HumanEval, and by lm-eval."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import AllowChanged, AllowCode, ClientId, Device
from rondo.cli.process import quiet_libraries, user_errors
from rondo.cli.results import Result, must_be_new, write_rows
from rondo.errors import ConfigError, Problem

_COMMAND = "rondo evaluate"


def evaluate(
    path: Result,
    data: Annotated[str | None, typer.Option(help="a file with the run's columns, in place of its test set")] = None,
    client: ClientId = None,
    generate: Annotated[bool, typer.Option("--generate", help="score generated answers too (multiple choice)")] = False,
    humaneval: Annotated[
        str | None, typer.Option(help="a file with HumanEval's problems: complete them and run their tests")
    ] = None,
    samples: Annotated[int, typer.Option(help="completions per problem; above 1 they are drawn")] = 1,
    temperature: Annotated[float, typer.Option(help="temperature of these draws")] = 0.8,
    max_new_tokens: Annotated[int, typer.Option(help="most tokens of a completion")] = 384,
    allow_execution: Annotated[
        bool, typer.Option("--allow-execution", help="run the code that the model writes, in a sandbox (bubblewrap)")
    ] = False,
    to: Annotated[str | None, typer.Option(help="a new .csv or .jsonl file for HumanEval's completions")] = None,
    lm_eval: Annotated[
        str | None, typer.Option(help="tasks of lm-eval, divided by commas: let lm-eval score the adapter")
    ] = None,
    lm_eval_tasks: Annotated[
        str | None, typer.Option(help="a folder of task files in place of lm-eval's own, whose data come from a hub")
    ] = None,
    device: Device = "auto",
    allow_code: AllowCode = False,
    allow_changed: AllowChanged = False,
) -> None:
    """Score a run, or a folder that it handed over, on the run's test set, another file, HumanEval, or by lm-eval."""
    with user_errors():
        import json

        given = {"--data": data, "--generate": generate}
        _only_with("--lm-eval", lm_eval, {"--lm-eval-tasks": lm_eval_tasks})
        options = {"--to": to, "--allow-execution": allow_execution}
        _only_with("--humaneval", humaneval, options)
        _not_with("--humaneval", humaneval, given)
        _not_with("--lm-eval", lm_eval, {**given, "--humaneval": humaneval})
        if to is not None:
            must_be_new(Path(to), _COMMAND)
        quiet_libraries()
        import rondo

        allowed = {"allow_code": allow_code, "allow_changed": allow_changed}
        if lm_eval is not None:
            from rondo.results.harness import evaluate_by_harness

            names = [name.strip() for name in lm_eval.split(",") if name.strip()]
            scores = evaluate_by_harness(path, names, lm_eval_tasks, client=client, device=device, **allowed)
            print(json.dumps({"lm-eval": scores}, indent=2))
        elif humaneval is not None:
            from rondo.results.humaneval.score import HumanEval, evaluate_code

            how = HumanEval(humaneval, samples, temperature, max_new_tokens, allow_execution)
            result = evaluate_code(path, how, client=client, device=device, tried=_progress, **allowed)
            completions = result.pop("completions")
            if to is not None:
                write_rows(Path(to), completions, _COMMAND)
            print(json.dumps({"humaneval": result}, indent=2))
        else:
            scores = rondo.evaluate(path, data=data, client=client, generate=generate, device=device, **allowed)
            print(json.dumps(scores, indent=2))


def _only_with(option: str, value: str | None, given: dict[str, Any]) -> None:
    problems = [Problem(key, f"only {option} uses it: remove it") for key, v in given.items() if v and value is None]
    if problems:
        raise ConfigError(problems, _COMMAND)


def _not_with(option: str, value: str | None, given: dict[str, Any]) -> None:
    problems = [Problem(key, f"{option} has rows of its own: remove one of the two") for key, v in given.items() if v]
    if problems and value is not None:
        raise ConfigError(problems, _COMMAND)


def _progress(count: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\rtried {count} of {of}", end="\n" if count == of else "", file=sys.stderr, flush=True)
