"""The commands on runs that are there: export, predict, adapt, evaluate, report and watch."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rondo.cli.app import Against, AllowChanged, AllowCode, ClientId, Device, one_of
from rondo.cli.process import FAILED, quiet_libraries, user_errors, written
from rondo.errors import ConfigError, Problem, headed, visible

Result = Annotated[str, typer.Argument(metavar="RUN_DIR|ADAPTER_DIR")]


def export(
    run_dir: str,
    to: Annotated[str, typer.Option(help="an empty or new folder")],
    client: ClientId = None,
    merged: Annotated[bool, typer.Option(help="write the whole model, with the adapter folded in")] = False,
    rank: Annotated[
        int | None, typer.Option(help="truncate to this rank, and print the share of the change that is lost")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="reload with stock libraries and compare logits")] = False,
    base_name: Annotated[
        str | None, typer.Option(help="the base model's name on a hub, for the card and adapter_config.json")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="of a merged model's weights: float32 (default), bfloat16 or float16",
            autocompletion=one_of("float32", "bfloat16", "float16"),
        ),
    ] = None,
    thresholds: Annotated[
        str | None, typer.Option(help="a file of rows on which to choose each label's threshold, if rows have several")
    ] = None,
    push: Annotated[
        str | None, typer.Option(help="then show the files and the card, ask, and upload them to this repository")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="with --push: show them, and send nothing")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="with --push: do not ask")] = False,
    allow_code: AllowCode = False,
    allow_changed: AllowChanged = False,
) -> None:
    """Write a run's result as a stock PEFT adapter of the rank it needs, or merged into the model."""
    with user_errors(), headed("rondo export"):
        quiet_libraries()
        allowed = {"allow_code": allow_code, "allow_changed": allow_changed}
        if dtype not in (None, "float32", "bfloat16", "float16"):
            raise ConfigError.at("--dtype", f"{dtype!r} is unknown; use float32, bfloat16 or float16")
        _check_push(push, dry_run=dry_run, yes=yes)
        named = {"base_name": base_name, "dtype": dtype, "thresholds": thresholds, **allowed}
        if not exported(run_dir, to, client=client, merged=merged, rank=rank, verify=verify, **named):
            raise typer.Exit(FAILED)
        if push is not None and not _pushed(to, push, dry_run=dry_run, yes=yes):
            raise typer.Exit(FAILED)


def _check_push(push: str | None, *, dry_run: bool, yes: bool) -> None:
    """Raise :class:`ConfigError`, before anything is written, for a push that cannot be."""
    from rondo.results.push import check_name, check_token

    if push is None:
        _only_with("--push", push, {"--dry-run": dry_run, "--yes": yes})
        return
    check_name(push)
    if not dry_run:
        check_token()
        if not yes and not sys.stdin.isatty():
            raise ConfigError.at("--push", "nobody can be asked without a terminal: look at --dry-run, then add --yes")


def _pushed(folder: str, repository: str, *, dry_run: bool, yes: bool) -> bool:
    """Show what would be sent, ask, and send it. False if the user says no."""
    from rondo.results.push import parcel, send

    sent = parcel(folder, repository)
    print("\n".join(map(visible, [f"{folder}/README.md:", *sent.card.splitlines(), "", *sent.lines()])))
    if dry_run:
        print("nothing was sent")
        return True
    place = send(sent, lambda: yes or typer.confirm(f"send them to {sent.endpoint}?"))
    print(f"sent: {place}" if place is not None else "nothing was sent")
    return place is not None


def exported(
    run_dir: str | Path,
    to: str | Path,
    *,
    client: str | None,
    merged: bool,
    rank: int | None,
    verify: bool,
    **options: Any,
) -> bool:
    """Export and print the outcome. False if the reloaded model differs. ``options``: more of :func:`rondo.export`."""
    import rondo

    result = rondo.export(run_dir, to, client=client, merged=merged, rank=rank, verify=verify, **options)
    print(f"wrote {to}" + (f", rank {result.rank}" if result.rank else ""))
    for note in result.notes:
        print(note)
    if rank is not None:
        print(f"truncated to rank {rank}: {result.relative_error:.2%} of the change (Frobenius norm) is lost")
    if result.verification is None:
        return True
    loader = "transformers alone" if merged else "stock PEFT"
    verdict = "verified" if result.verification.passed else "NOT EQUAL"
    print(f"{verdict}: reloaded by {loader}, largest difference of a logit {result.verification.max_difference:.1e}")
    return result.verification.passed


def predict(
    path: Result,
    data: Annotated[str, typer.Option(help="a file with the run's columns, or a folder of pictures")],
    to: Annotated[str | None, typer.Option(help="a new .csv or .jsonl file; default: JSON lines are printed")] = None,
    client: ClientId = None,
    max_new_tokens: Annotated[int, typer.Option(help="most tokens of a language model's response")] = 64,
    device: Device = "auto",
    allow_code: AllowCode = False,
    allow_changed: AllowChanged = False,
) -> None:
    """Predict a label, a number, entities, an answer, or a language model's response, for every row of a file."""
    with user_errors(), headed("rondo predict"):
        if to is not None:
            must_be_new(Path(to))
        quiet_libraries()
        import rondo

        options: dict[str, Any] = {"allow_code": allow_code, "allow_changed": allow_changed, "client": client}
        predictions = rondo.predict(path, data, device=device, max_new_tokens=max_new_tokens, **options)
        if to is None:
            print(_text(predictions, ".jsonl"), end="")
        else:
            write_rows(Path(to), predictions)


def must_be_new(to: Path) -> None:
    """Raise :class:`ConfigError` if rows cannot be written to ``to``, before any is made."""
    reason = None
    if to.suffix not in (".csv", ".jsonl"):
        reason = "ends neither in .csv nor in .jsonl"
    elif to.exists():
        reason = "already exists"
    elif not to.absolute().parent.is_dir():
        reason = "is in no folder"
    if reason is not None:
        raise ConfigError.at("--to", f"{str(to)!r} {reason}; name another file")


def write_rows(to: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows to a .csv or .jsonl file. Raises :class:`ConfigError`."""
    from rondo.records import durable

    with written(to, "--to"):
        durable.write(to, _text(rows, to.suffix).encode())
    print(f"wrote {to}, {len(rows)} rows")


def _text(predictions: list[dict[str, Any]], suffix: str) -> str:
    """Rows as CSV, where a list is JSON in its cell, or as JSON lines. There is at least one."""
    if suffix == ".jsonl":
        return "".join(json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(predictions[0]))
    writer.writeheader()
    for row in predictions:
        nested = {k: json.dumps(v, ensure_ascii=False) for k, v in row.items() if isinstance(v, list | dict)}
        writer.writerow({**row, **nested})
    return file.getvalue()


def adapt(
    run_dir: str,
    data: Annotated[str, typer.Option(help="a file with the new client's rows, with the run's columns")],
    shots: Annotated[str | None, typer.Option(help="numbers of rows to fit to, for instance 10,50,500")] = None,
    test: Annotated[str | None, typer.Option(help="a file with the rows to score, in place of a fifth")] = None,
    to: Annotated[str | None, typer.Option(help="an empty or new folder for the fitted model")] = None,
    epochs: Annotated[int, typer.Option(help="passes over the rows")] = 10,
    device: Device = "auto",
    allow_code: AllowCode = False,
    allow_changed: AllowChanged = False,
) -> None:
    """Fit what is personal to a client that took no part in the run; everything shared stays."""
    with user_errors(), headed("rondo adapt"):
        quiet_libraries()
        import rondo
        from rondo.report.terminal import adapted_table, plain_console

        result = rondo.adapt(
            run_dir,
            data,
            shots=_counts(shots),
            test=test,
            to=to,
            epochs=epochs,
            device=device,
            allow_code=allow_code,
            allow_changed=allow_changed,
        )
        name, start = result.primary, result.cold_start
        scores = {s.rows: (start[name], s.adapted[name], s.alone[name]) for s in result.shots}
        plain_console().print(adapted_table(f"a new client: {result.title} on {result.scored_rows} rows", scores))
        if to is not None:
            print(f"wrote {to}")


def _counts(text: str | None) -> list[int]:
    """Numbers separated by commas. Raises :class:`ConfigError`."""
    try:
        return [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        message = f"{text!r} is not a list of numbers: give numbers of rows, for instance 10,50,500"
        raise ConfigError.at("--shots", message) from None


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
    with user_errors(), headed("rondo evaluate"):
        given = {"--data": data, "--generate": generate}
        _only_with("--lm-eval", lm_eval, {"--lm-eval-tasks": lm_eval_tasks})
        options = {"--to": to, "--allow-execution": allow_execution}
        _only_with("--humaneval", humaneval, options)
        _not_with("--humaneval", humaneval, given)
        _not_with("--lm-eval", lm_eval, {**given, "--humaneval": humaneval})
        if to is not None:
            must_be_new(Path(to))
        quiet_libraries()
        import rondo

        allowed: dict[str, Any] = {"allow_code": allow_code, "allow_changed": allow_changed}
        if lm_eval is not None:
            from rondo.results.evaluate import evaluate_by_harness

            names = [name.strip() for name in lm_eval.split(",") if name.strip()]
            scores = evaluate_by_harness(path, names, lm_eval_tasks, client=client, device=device, **allowed)
            print(json.dumps({"lm-eval": scores}, indent=2))
        elif humaneval is not None:
            from rondo.results.humaneval.score import HumanEval, evaluate_code

            how = HumanEval(humaneval, samples, temperature, max_new_tokens, allow_execution)
            result = evaluate_code(path, how, client=client, device=device, tried=_progress, **allowed)
            completions = result.pop("completions")
            if to is not None:
                write_rows(Path(to), completions)
            print(json.dumps({"humaneval": result}, indent=2))
        else:
            scores = rondo.evaluate(path, data=data, client=client, generate=generate, device=device, **allowed)
            print(json.dumps(scores, indent=2))


def _only_with(option: str, value: str | None, given: dict[str, Any]) -> None:
    problems = [Problem(key, f"only {option} uses it: remove it") for key, v in given.items() if v and value is None]
    if problems:
        raise ConfigError(problems)


def _not_with(option: str, value: str | None, given: dict[str, Any]) -> None:
    problems = [Problem(key, f"{option} has rows of its own: remove one of the two") for key, v in given.items() if v]
    if problems and value is not None:
        raise ConfigError(problems)


def _progress(count: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\rtried {count} of {of}", end="\n" if count == of else "", file=sys.stderr, flush=True)


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUNS...", help="run directories, or folders of some")],
    out: Annotated[str | None, typer.Option(help="the file to write; default: report.html")] = None,
    title: Annotated[str | None, typer.Option(help="the page's title; default: the task and the data")] = None,
    against: Against = None,
) -> None:
    """Show runs on one page: scores, clients, traffic, failures, differences. It needs no network."""
    with user_errors(), headed("rondo report"):
        from rondo.report.page.document import write
        from rondo.report.terminal import human_bytes

        file = out or "report.html"
        size = write(runs, file, title=title, against=against)
        print(visible(f"wrote {file}, {human_bytes(size)}"))


def watch(run_dir: Annotated[str, typer.Argument(help="a run directory")]) -> None:
    """Watch a run that another process carries out, until it ends."""
    with user_errors(), headed("rondo watch"):
        from rondo.results import watch as watching

        state = watching.watch(run_dir)
        if state == "not running":
            print(f"it is not running; go on with: rondo resume {shlex.quote(run_dir)}")
            raise typer.Exit(FAILED)
