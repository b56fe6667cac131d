"""Commands on finished runs: export and evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rondo.cli.app import ClientId, Device
from rondo.cli.process import FAILED, own_modules, quiet_libraries, user_errors


def export(
    run_dir: str,
    to: Annotated[str, typer.Option(help="an empty or new folder")],
    client: ClientId = None,
    merged: Annotated[bool, typer.Option(help="fold the adapter into the whole model")] = False,
    rank: Annotated[int | None, typer.Option(help="truncate to this rank; what is lost is printed")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="load it with stock PEFT and compare logits")] = False,
) -> None:
    """Write a run's result as a stock PEFT adapter of the rank it needs, or merged into the model."""
    with user_errors():
        own_modules()
        quiet_libraries()
        if not exported(run_dir, to, client=client, merged=merged, rank=rank, verify=verify):
            raise typer.Exit(FAILED)


def exported(
    run_dir: str | Path, to: str | Path, *, client: str | None, merged: bool, rank: int | None, verify: bool
) -> bool:
    """Export and say what came of it; False if what was loaded again is not equal."""
    import rondo

    done = rondo.export(run_dir, to, client=client, merged=merged, rank=rank, verify=verify)
    print(f"wrote {to}, rank {done.rank}")
    if rank is not None:
        print(f"truncated to rank {rank}: {done.relative_error:.2%} of the change (Frobenius norm) is lost")
    if done.verification is None:
        return True
    loader = "transformers alone" if merged else "stock PEFT"
    verdict = "verified" if done.verification.passed else "NOT EQUAL"
    print(f"{verdict}: reloaded by {loader}, largest difference of a logit {done.verification.max_difference:.1e}")
    return done.verification.passed


def evaluate(
    path: Annotated[str, typer.Argument(metavar="RUN_DIR|ADAPTER_DIR")],
    client: ClientId = None,
    device: Device = "auto",
) -> None:
    """Score a run, or an adapter of one, on the run's test set."""
    with user_errors():
        import json

        own_modules()
        quiet_libraries()
        import rondo

        print(json.dumps(rondo.evaluate(path, client=client, device=device), indent=2))
