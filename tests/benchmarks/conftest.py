"""Puts the benchmarks on the path, as for a program in their folder, and the emulated line of the federation's tests."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "federation")]
