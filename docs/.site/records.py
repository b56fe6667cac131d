"""The records behind a page of results, docs/results/runs/NAME.tar.xz: its verdicts follow from them alone.

python docs/.site/records.py OUT NAME DATA    # after rondo reproduce NAME --out OUT --data DATA
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

from rondo.records.directory import to_toml
from rondo.records.manifest import rows_of
from rondo.study.claims import entry as entries
from rondo.study.claims.entry import Entry
from rondo.study.claims.trials import Trials

RUNS = Path(__file__).parents[1] / "results" / "runs"
KEPT = ("manifest.json", "metrics.jsonl", "summary.json", "partition.json")
OF_MANIFEST = ("versions", "python", "device", "threads", "processor", "kernels", "code_sha256")
"""As far as it has them. The rest says where the data were, and more of the machine."""
PARTITION = "partition.json"
"""It tells the number of clients, and the digests of the rows, by which another finds that theirs are the same."""


def content(file: Path, metric: str) -> bytes:
    """What is kept of a file: of every client's scores the entry's ``metric``, and of diagnostics no spectrum."""
    if file.name == "metrics.jsonl":
        rounds = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
        return "".join(json.dumps(_slim(record, metric.rpartition(".")[2])) + "\n" for record in rounds).encode()
    told = json.loads(file.read_text(encoding="utf-8"))
    if file.name == PARTITION:
        told = {"clients": list(range(len(told["clients"]))), **rows_of(told)}
    elif file.name == "summary.json":
        told = _slim(told, metric.rpartition(".")[2])
    elif file.name == "manifest.json":
        today = told.get("config", {}).get("task", {}).get("today")
        told = {key: told[key] for key in OF_MANIFEST if key in told}
        if today is not None:
            told["config"] = {"task": {"today": today}}  # rows follow from it where a chat template prints it
    return json.dumps(told).encode()


def _slim(told: Any, key: str) -> Any:
    if not isinstance(told, dict):
        return told
    kept = {name: _slim(value, key) for name, value in told.items() if name != "singular_values"}
    if isinstance(clients := kept.get("per_client"), dict):
        kept["per_client"] = {client: {key: scores[key]} for client, scores in clients.items() if key in scores}
    return kept


def pack(out: Path, name: str, to: Path, entry: Entry, data: Path) -> None:
    """Pack the records of the runs in ``out / name`` that the page is of, each with its configuration, whose files have
    no folder, and in place of the search its values. The same records give the same bytes."""
    trials = Trials(name, entry, out, data)
    files = {"tuned.json": trials.tuned_file()} if entry.tuning is not None else {}
    if (stopped := trials.folder / "stopped.json").exists():
        files["stopped.json"] = stopped.read_bytes()
    for run in trials.runs():
        if trials.done(run):
            config = entry.run(run.arm, run.seed, Path(), run.point, check=False)
            files[f"{run.folder.name}/config.toml"] = to_toml(config).encode()
            there = [run.folder / kept for kept in KEPT if (run.folder / kept).exists()]
            files |= {f"{run.folder.name}/{file.name}": content(file, entry.metric) for file in there}
    to.mkdir(exist_ok=True)
    with tarfile.open(to / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for file, kept in sorted(files.items()):
            told = tarfile.TarInfo(f"{name}/{file}")
            told.size = len(kept)
            archive.addfile(told, io.BytesIO(kept))


if __name__ == "__main__":
    pack(Path(sys.argv[1]), sys.argv[2], RUNS, entries.read(sys.argv[2]), Path(sys.argv[3]))
