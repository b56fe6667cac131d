"""Files that their owner alone can read: a JSON header and bytes, after a digest that shows damage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rondo.records import durable
from rondo.records.durable import Damaged

_DIGEST, _LENGTH = 32, 8


def write(path: Path, header: Mapping[str, Any], body: bytes) -> None:
    """Replace the file ``path``, whose folder is made where it is missing, in one step. Raises OSError and then changes
    nothing."""
    text = json.dumps(header).encode()
    content = len(text).to_bytes(_LENGTH, "little") + text + body
    durable.make_folder(path.parent)
    durable.write_private(path, hashlib.sha256(content).digest() + content)


def read(path: Path) -> tuple[dict[str, Any], bytes] | None:
    """Header and body of the file ``path``; None where there is none. Raises
    :class:`~rondo.records.durable.Damaged`."""
    if path.exists() and not path.is_file():  # reading it might never end
        raise Damaged(f"{path.name} is a folder, a pipe or a device")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    content = data[_DIGEST:]
    if hashlib.sha256(content).digest() != data[:_DIGEST]:
        raise Damaged(f"{path.name} is not as it was written")
    start = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    return json.loads(content[_LENGTH:start]), content[start:]
