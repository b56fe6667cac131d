"""The commands on finished runs: export and evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rondo.cli.app import AllowChanged, AllowCode, ClientId, Device
from rondo.cli.process import FAILED, quiet_libraries, user_errors


def export(
    run_dir: str,
    to: Annotated[str, typer.Option(help="an empty or new folder")],
    client: ClientId = None,
    merged: Annotated[bool, typer.Option(help="write the whole model, with the adapter folded in")] = False,
    rank: Annotated[
        int | None, typer.Option(help="truncate to this rank, and print the share of the change that is lost")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="reload with stock libraries and compare logits")] = False,
    allow_code: AllowCode = False,
    allow_changed: AllowChanged = False,
) -> None:
    """Write a run's result as a stock PEFT adapter of the rank it needs, or merged into the model."""
    with user_errors():
        quiet_libraries()
        allowed = {"allow_code": allow_code, "allow_changed": allow_changed}
        if not exported(run_dir, to, client=client, merged=merged, rank=rank, verify=verify, **allowed):
            raise typer.Exit(FAILED)


def exported(
    run_dir: str | Path,
    to: str | Path,
    *,
    client: str | None,
    merged: bool,
    rank: int | None,
    verify: bool,
    allow_code: bool = False,
    allow_changed: bool = False,
) -> bool:
    """Export and print the outcome. False if the reloaded model differs."""
    import rondo

    allowed = {"allow_code": allow_code, "allow_changed": allow_changed}
    result = rondo.export(run_dir, to, client=client, merged=merged, rank=rank, verify=verify, **allowed)
    print(f"wrote {to}, rank {result.rank}")
    if rank is not None:
        print(f"truncated to rank {rank}: {result.relative_error:.2%} of the change (Frobenius norm) is lost")
    if result.verification is None:
        return True
    loader = "transformers alone" if merged else "stock PEFT"
    verdict = "verified" if result.verification.passed else "NOT EQUAL"
    print(f"{verdict}: reloaded by {loader}, largest difference of a logit {result.verification.max_difference:.1e}")
    return result.verification.passed


def evaluate(
    path: Annotated[str, typer.Argument(metavar="RUN_DIR|ADAPTER_DIR")],
    client: ClientId = None,
    device: Device = "auto",
    allow_code: AllowCode = False,
    allow_changed: AllowChanged = False,
) -> None:
    """Score a run, or an adapter from one, on the run's test set."""
    with user_errors():
        import json

        quiet_libraries()
        import rondo

        scores = rondo.evaluate(path, client=client, device=device, allow_code=allow_code, allow_changed=allow_changed)
        print(json.dumps(scores, indent=2))
