"""A package ``wandb`` that writes rows to a file, or does what a tracker must not do."""

from __future__ import annotations

import json
from pathlib import Path

_CODE = """
import json, os, pathlib, sys, time

HOW = {how!r}


class Settings:
    def __init__(self, **keys): pass


class Run:
    step = 0

    def __init__(self, folder):
        self.folder = folder
        self.file = (folder / "rows.jsonl").open("a") if HOW != "fills the disk" else open("/dev/full", "w")

    def log(self, values, step):
        if HOW == "throws" and step == 2:
            raise RuntimeError("no room on the disk")
        if HOW == "throws once" and step == 2 and not (self.folder / "thrown").exists():
            (self.folder / "thrown").touch()
            raise RuntimeError("a moment ago")
        if HOW == "hangs" and step == 2:
            time.sleep(600)
        self.file.write(json.dumps(dict(values, step=step)) + "\\n")
        self.file.flush()

    def finish(self, exit_code):
        if HOW == "hangs at its end":
            time.sleep(600)
        (self.folder / "ended").write_text(str(exit_code))


def init(*, id, dir, resume, mode, project, name, config, settings):
    folder = pathlib.Path(dir, "wandb", f"offline-run-{{time.time_ns()}}-{{id}}")
    folder.mkdir(parents=True)
    (folder / "about.json").write_text(json.dumps([mode, project, name, config]))
    return Run(folder)


if HOW == "is broken":
    raise ImportError("it was built for another machine")
"""


def write(folder: Path, how: str = "works") -> Path:
    """Write the package into ``folder``; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wandb.py").write_text(_CODE.format(how=how))
    return folder


def rounds(run_dir: Path) -> list[list[int]]:
    """The rounds in the order in which they were told, of each run that the package has."""
    files = sorted(run_dir.glob("wandb/offline-run-*/rows.jsonl"))
    return [[json.loads(line)["step"] for line in file.read_text().splitlines()] for file in files]
