"""Coverage-guided fuzzing of all that reads what somebody else wrote. Needs ``pip install atheris``.

    python tests/fuzz/targets.py decode_upload -max_total_time=600 corpus/decode_upload
    python tests/fuzz/targets.py load_checkpoint -max_total_time=600 corpus/load_checkpoint
    python tests/fuzz/targets.py load_config -max_total_time=600 corpus/load_config

Only the errors that each promises may come out of it; anything else is a crash that is reported with its input.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["rondo"]):
    from rondo import state
    from rondo.config import ConfigError, load
    from rondo.engine import checkpoint
    from rondo.wire import Rejected, decode_upload


def fuzz_upload(data: bytes) -> None:
    # With the digest made right: behind it is where there is something to find.
    with contextlib.suppress(Rejected):
        decode_upload(hashlib.sha256(data).digest() + data, 10_000)


_FOLDER = Path(tempfile.mkdtemp(prefix="rondo-fuzz-"))


def fuzz_checkpoint(data: bytes) -> None:
    """A state as it is, and a whole generation whose manifest is ``data``."""
    with contextlib.suppress(ValueError):
        state.unpack(data, {})
    place = _FOLDER / "round-000001"
    place.mkdir(exist_ok=True)
    (place / "manifest.json").write_bytes(data)
    with contextlib.suppress(ValueError):
        checkpoint.load(_FOLDER, {})


def fuzz_config(data: bytes) -> None:
    path = _FOLDER / "run.toml"
    path.write_bytes(data)
    with contextlib.suppress(ConfigError):
        load(path)


TARGETS: dict[str, Any] = {
    "decode_upload": fuzz_upload,
    "load_checkpoint": fuzz_checkpoint,
    "load_config": fuzz_config,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"name a target: {', '.join(TARGETS)}")
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()
