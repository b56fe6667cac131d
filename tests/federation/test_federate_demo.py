"""The demo of a federation, in reduced form: four processes over TLS, and the simulation's adapter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "federate_demo.py"


@pytest.mark.slow
def test_federate_demo_prints_equal_digests() -> None:
    command = [sys.executable, str(DEMO), "rounds=1", "train.local_steps=8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    digests = re.findall(r"SHA-256 of the \w+'s adapter: ([0-9a-f]{64})\n", done.stdout)
    assert len(digests) == 2
    assert len(set(digests)) == 1
