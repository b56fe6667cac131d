"""A TOML file of a user's, read with a message for every fault, and values as TOML writes them."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rondo.errors import ConfigError

_LARGEST = 2**24
"""Bytes of the largest file that is read: a list with one entry per client has some hundred thousand."""


def read(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """The content of ``path``. Raises :class:`ConfigError` whose source is ``what``. ``remedy``: how to get such a
    file."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ConfigError.at(str(path), "a pipe or a device, not a file: write it to a .toml file and name that")
        if (size := path.stat().st_size) > _LARGEST:
            raise ConfigError.at(str(path), f"{size >> 20} MiB are no {what}: name a .toml file")
        return tomllib.loads(path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.toml")], n=1)
        hint = f"did you mean {near[0]!r}?" if near else remedy
        raise ConfigError.at(str(path), f"no such file; {hint}", what) from None
    except IsADirectoryError:
        raise ConfigError.at(str(path), "this is a folder; name a .toml file", what) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError.at(str(path), f"not TOML: {error}; mend it there (text is written in quotes)", what) from None
    except OSError as error:
        raise ConfigError.at(str(path), f"cannot be read: {error.strerror}", what) from None


def inline(value: Any) -> str:
    """A value as TOML writes it in a line."""
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(str(key), ensure_ascii=False)} = {inline(part)}" for key, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(inline, value))}]"
    return json.dumps(value, ensure_ascii=False)


def parsed(text: str) -> Any:
    """A value of the command line: TOML, else ``text`` as it is."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
