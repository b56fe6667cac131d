"""Coverage-guided fuzzing of every reader of foreign bytes. Needs ``pip install atheris``.

    python tests/fuzz/targets.py decode_upload -max_total_time=600 corpus/decode_upload
    python tests/fuzz/targets.py decode_large_header -max_total_time=600 corpus/decode_large_header
    python tests/fuzz/targets.py load_checkpoint -max_total_time=600 corpus/load_checkpoint
    python tests/fuzz/targets.py load_config -max_total_time=600 corpus/load_config

A target may raise only the errors that it promises; anything else is a crash, reported with its input. The folder of
inputs first gets valid ones, because the faults worth finding lie near them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import atheris
import torch

with atheris.instrument_imports(include=["rondo"]):
    from rondo.algorithm import Client, Upload
    from rondo.config import ConfigError, load
    from rondo.data.demo import STARTER
    from rondo.engine.server.ledger import Ledger
    from rondo.engine.wire import serialization
    from rondo.engine.wire.envelope import Envelope, decode_upload, encode_upload
    from rondo.engine.wire.strict import Rejected
    from rondo.records.durable import Position
    from rondo.runs.storage import checkpoint


LARGE_HEADER = 2**18
"""More than the header of a model with a thousand adapted layers."""


def fuzz_upload(data: bytes) -> None:
    """Decode ``data`` as it is, and as a header and a body with the correct length between them. The digest is correct
    in both cases, because the faults worth finding lie behind it."""
    header, _, body = data.partition(b"\n")
    for content in (data, len(header).to_bytes(8, "little") + header + body):
        _decode(content)


def fuzz_large_header(data: bytes) -> None:
    """Decode an upload in whose header ``data`` is repeated until the header is large. An upload that takes long is a
    fault too."""
    header, part = an_upload().partition(b"\n")[0][:-1], b"," + data
    header += part * ((LARGE_HEADER - len(header)) // len(part)) + b"}"
    _decode(len(header).to_bytes(8, "little") + header)


def an_entry() -> bytes:
    return b'"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'


def _decode(content: bytes) -> None:
    began = time.process_time()
    with contextlib.suppress(Rejected):
        decode_upload(hashlib.sha256(content).digest() + content, 10_000, LARGE_HEADER).tensors()
    if time.process_time() - began > 5:
        raise TimeoutError(f"{len(content)} bytes took {time.process_time() - began:.1f} s")


def an_upload() -> bytes:
    upload = Upload(Client("a", 3), {"q.A": torch.ones(2, 3), "head:w": torch.zeros(4)}, 3.0)
    content = encode_upload(upload, Envelope("run", 1, "a", "0" * 64, 3, 3.0))[32:]
    end = 8 + int.from_bytes(content[:8], "little")
    return content[8:end] + b"\n" + content[end:]


_FOLDER = Path(tempfile.mkdtemp(prefix="rondo-fuzz-"))


def a_manifest() -> bytes:
    """The manifest of a whole generation, which stays in the folder."""
    kept = checkpoint.Kept(_FOLDER)
    kept["a"] = {"q.B": torch.ones(2)}
    empty = Position(0, hashlib.sha256(b"").hexdigest())
    point = checkpoint.Checkpoint(1, 1, {"w": torch.ones(2)}, kept, Ledger(), empty, {"before": {"loss": 1.0}})
    checkpoint.save(_FOLDER, point)
    return (_FOLDER / "round-000001" / "manifest.json").read_bytes()


def fuzz_checkpoint(data: bytes) -> None:
    """Load ``data`` as the packed state, and as the manifest of a whole generation with a correct seal."""
    with contextlib.suppress(ValueError):
        serialization.unpack(data, {"w": torch.ones(2)})
    content: object = None
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(data)
    generation = _FOLDER / "round-000001"
    generation.mkdir(exist_ok=True)
    inner = content.get("content") if isinstance(content, dict) else None
    (generation / "manifest.json").write_bytes(checkpoint._sealed(inner) if isinstance(inner, dict) else data)
    with contextlib.suppress(ValueError):
        checkpoint.load(_FOLDER, {"w": torch.ones(2)})


def a_state() -> bytes:
    return serialization.pack({"w": torch.ones(2)})


def fuzz_config(data: bytes) -> None:
    path = _FOLDER / "run.toml"
    path.write_bytes(data)
    with contextlib.suppress(ConfigError):
        load(path)


def a_config() -> bytes:
    return STARTER.read_bytes()


TARGETS: dict[str, tuple[Callable[[bytes], None], tuple[Callable[[], bytes], ...]]] = {
    "decode_upload": (fuzz_upload, (an_upload,)),
    "decode_large_header": (fuzz_large_header, (an_entry,)),
    "load_checkpoint": (fuzz_checkpoint, (a_manifest, a_state)),
    "load_config": (fuzz_config, (a_config,)),
}
"""The function of each target, and the valid inputs that it starts from."""


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"name a target: {', '.join(TARGETS)}")
    target, examples = TARGETS[sys.argv.pop(1)]
    found = {example.__name__: example() for example in examples}
    if not sys.argv[-1].startswith("-"):
        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in found.items():
            (folder / name).write_bytes(content)
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
