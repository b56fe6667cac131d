"""Puts the folder of the benchmarks on the path, as for a program in it, and the federation tests' emulated line."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / folder) for folder in ("benchmarks", "benchmarks/conformance", "tests/federation")]
