"""Code of the user's own, named ``package.module:Name``: loaded, found without running it, and hashed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def is_name(text: str) -> bool:
    """Whether ``text`` has the form ``package.module:Name`` and is not one of Rondo's ``builtin:`` names."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text) is not None and not text.startswith("builtin:")


def load(name: str) -> Any:
    """The object that ``name`` stands for. Imports its module, which may lie in the working folder unless it is one of
    Rondo's, and raises whatever the import raises. The folder stays on the path, last, for modules that the code
    imports later."""
    module, _, attribute = name.partition(":")
    if not module.startswith("rondo.") and not {os.getcwd(), ""} & set(sys.path):
        sys.path.append(os.getcwd())
    return getattr(importlib.import_module(module), attribute)


def reason(error: Exception) -> str:
    """The failure of an import or a call of the user's code, in words, with the places where modules are looked for."""
    where = " (modules are looked for in the folder you work in and on PYTHONPATH)"
    return f"{type(error).__name__}: {error}" + (where if isinstance(error, ModuleNotFoundError) else "")


def place(name: str) -> str:
    """The file or folder that :func:`load` would import. Only the outermost package is looked up, because a lookup
    within a package imports the package."""
    package = re.split(r"[.:]", name)[0]
    with _working_folder():
        try:
            spec = importlib.util.find_spec(package)
        except ValueError:  # a module made by hand, or no name of a module
            spec = None
    if spec is None:
        return "found nowhere"
    folders = list(spec.submodule_search_locations or ())
    return str(folders[0] if folders else spec.origin)


def sources(*objects: Any) -> dict[str, str | None]:
    """SHA-256 of the files that define ``objects`` (classes, functions or instances) and the classes they derive from,
    by module. A module without a file has None. Libraries whose versions a run records are left out, and so are other
    modules that these files import."""
    modules = set()
    for item in objects:
        cls = item if isinstance(item, type) else type(item)
        modules |= {c.__module__ for c in cls.__mro__}
        modules.add(getattr(item, "__module__", cls.__module__))
    of_user = {m for m in modules if m.partition(".")[0] not in _RECORDED}
    return {module: _digest(module) for module in sorted(of_user)}


_RECORDED = {"rondo", "torch", "transformers", "peft", *sys.stdlib_module_names}
"""Outermost packages with an entry under ``versions`` in the manifest, and the modules of Python."""


def _digest(module: str) -> str | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file is not None else None
    except OSError:
        return None


@contextlib.contextmanager
def _working_folder() -> Iterator[None]:
    """Let imports find the working folder, after every other place: a ``random.py`` that lies there is not taken for
    the library's."""
    folder = os.getcwd()
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the imported code may have changed the path
            sys.path.remove(folder)
