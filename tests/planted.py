"""Bugs that are planted into the noise of steps and of sites' shares. An audit or a law must tell of each.

A bug is set by ``watched.planted(*bug)``: the module or class, the name in it, and what takes its place."""

from __future__ import annotations

from typing import Any, TypeAlias

from rondo.privacy import steps as private_step
from rondo.privacy.masking.integers import NoiseShare
from rondo.privacy.steps import add_noise, clipped_sums

Bug: TypeAlias = tuple[Any, str, Any]

_deviation, _drawn = NoiseShare.deviation, NoiseShare.drawn

STEPS_HALVED: Bug = (private_step, "add_noise", lambda sums, deviation, *rest: add_noise(sums, deviation / 2, *rest))
STEPS_BARE: Bug = (private_step, "add_noise", lambda sums, deviation, *rest: add_noise(sums, 0.0, *rest))
STEPS_UNCLIPPED: Bug = (private_step, "clipped_sums", lambda *args: clipped_sums(*args[:-1], float("inf")))
SHARES_HALVED: Bug = (NoiseShare, "deviation", lambda self, threshold: _deviation(self, threshold) // 2)
SHARES_LEFT_OUT: Bug = (NoiseShare, "drawn", lambda self, *args: 0 * _drawn(self, *args))
