"""Runs: carried out, watched, stored, resumed, compared, and their results handed over."""

import sys
import warnings
from importlib import import_module

if "ipykernel" in sys.modules:
    # The libraries below import tqdm, which warns in a notebook that it lacks ipywidgets. Rondo's bars need none.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        import_module("tqdm.auto")
