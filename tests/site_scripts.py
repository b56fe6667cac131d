"""The scripts that write pages of the documentation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"


def site(name: str) -> Any:
    """The script ``docs/.site/NAME.py`` as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / ".site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script
