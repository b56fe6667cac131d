"""The records behind a page of results, docs/results/runs/NAME.tar.xz: its verdicts follow from them alone.

python docs/.site/records.py OUT NAME    # after rondo reproduce NAME --out OUT
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

from rondo.records.manifest import rows_of

RUNS = Path(__file__).parents[1] / "results" / "runs"
KEPT = ("manifest.json", "metrics.jsonl", "summary.json", "partition.json")
OF_MANIFEST = ("versions", "python", "device", "threads", "processor", "kernels", "code_sha256")
"""As far as it has them. The rest says where the data were, and more of the machine."""
PARTITION = "partition.json"
"""It tells the number of clients, and the digests of the rows, by which another finds that theirs are the same."""


def content(file: Path) -> bytes:
    """What is kept of a file."""
    if file.name == PARTITION:
        partition = json.loads(file.read_text(encoding="utf-8"))
        return json.dumps({"clients": list(range(len(partition["clients"]))), **rows_of(partition)}).encode()
    if file.name != "manifest.json":
        return file.read_bytes()
    manifest = json.loads(file.read_text(encoding="utf-8"))
    kept = {key: manifest[key] for key in OF_MANIFEST if key in manifest}
    if (today := manifest.get("config", {}).get("task", {}).get("today")) is not None:
        kept["config"] = {"task": {"today": today}}  # rows follow from it where a chat template prints it
    return json.dumps(kept).encode()


def pack(out: Path, name: str, to: Path) -> None:
    """Pack the records of the runs in ``out / name`` that are done: the same records give the same bytes."""
    to.mkdir(exist_ok=True)
    stopped = out / name / "stopped.json"
    ended = [summary.parent for summary in (out / name).rglob("summary.json")]
    cut = [out / name / run for run in json.loads(stopped.read_text(encoding="utf-8"))] if stopped.exists() else []
    files = {stopped, *(run / kept for run in (*ended, *cut) for kept in KEPT)}
    with tarfile.open(to / f"{name}.tar.xz", "w:xz") as archive:
        for file in sorted(file for file in files if file.exists()):
            entry = tarfile.TarInfo(file.relative_to(out).as_posix())
            kept = content(file)
            entry.size = len(kept)
            archive.addfile(entry, io.BytesIO(kept))


if __name__ == "__main__":
    pack(Path(sys.argv[1]), sys.argv[2], RUNS)
