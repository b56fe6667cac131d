"""A federation of three hosts over slow lines, a server with many sites, and its line to hundreds of light ones.

python benchmarks/federation.py line --delay 0.05 --loss 0.01 --rate 1e7      # needs root
python benchmarks/federation.py sites --sites 5,10,25,50
python benchmarks/federation.py light --sites 25,100,300

``line``: a server and three sites, each in a network namespace of its own. Every packet that leaves a host waits for
``--delay``, is lost with probability ``--loss``, and leaves at ``--rate`` bits per second. The same runs over lines
without any of these show how much of a round's time the lines take.

``sites``: one client per site, a tiny BERT. The server is a process of its own, whose processor time per round counts.
The sites share one process, each with its own key, connection and thread.

``light``: sites without rows and models, which answer every letter by a fixed one of ``--bytes``. The server's process
has the line alone, without a run. Its processor time counts: per second while it waits, and per site and round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "federation"))

import tomli_w
from emulated_line import Hosts, Line

from rondo.data.demo.homes import homes
from rondo.federation.identity import keys
from small_runs import reviews, save_tiny_bert, write_rows

RONDO = [sys.executable, "-c", "from rondo.cli import main; main()"]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
SITES = ("north", "middle", "south")
CONTRACT = """
[rows]
inputs = ["text"]
labels = ["intent", "label"]
most_labels = 100
[training]
least_rows = 1
least_steps = 1
least_clients = 1
[outgoing]
uploads_per_day = 1000000
letters_per_day = 1000000
"""


def started(folder: Path, name: str, before: Sequence[str], *words: str) -> subprocess.Popen[bytes]:
    """A command of Rondo, whose output is in the file ``name``."""
    with (folder / f"{name}.txt").open("wb") as out:
        return subprocess.Popen([*before, *RONDO, *words], cwd=folder, env=ONE_THREAD, stdout=out, stderr=out)


def until_said(folder: Path, program: subprocess.Popen[bytes], text: str) -> str:
    """What the server has said up to a line with ``text``."""
    end = time.monotonic() + 300
    while text not in (said := (folder / "server.txt").read_text(encoding="utf-8")):
        if time.monotonic() > end or program.poll():
            raise SystemExit(f"the server does not say {text!r}:\n{said}")
        time.sleep(0.05)
    return said


# Lines


def over_line(algorithm: str, line: Line, rounds: int) -> dict[str, Any]:
    """One run of MiniLM over ``line``, one step per client and round: seconds per round, and bytes."""
    with tempfile.TemporaryDirectory() as name, Hosts(("server", *SITES), line) as hosts:
        folder = Path(name)
        rows = homes()
        for site, home in zip(SITES, sorted({row["home"] for row in rows.train}), strict=False):
            own = [{"text": r["text"], "intent": r["intent"]} for r in rows.train if r["home"] == home]
            write_rows(folder / f"{site}.csv", own)
        config = {
            "rounds": rounds,
            "algorithm": {"name": algorithm},
            "adapter": {"r": 8, "target_modules": ["query", "value"]},
            "task": {"text": "text", "label": "intent", "labels": sorted({r["intent"] for r in rows.train})},
            "data": {"test_split": "", "validation_fraction": 0.0},
            "train": {"local_steps": 1, "batch_size": 4},
            "simulation": {"cohort": 1},
        }
        (folder / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
        (folder / "site.toml").write_text(CONTRACT, encoding="utf-8")
        keys.make([hosts.address("server")], list(SITES), folder / "keys", days=2, clients={})
        address, listen = f"{hosts.address('server')}:9092", f"{hosts.address('server')}:9092"
        words = ("federate", "server", "config.toml", "--listen", listen, "--run-dir", "run")
        programs = [started(folder, "server", hosts.command("server"), *words)]
        try:
            for site in SITES:
                words = ("--server", address, "--keys", f"keys/{site}", "--data", f"{site}.csv", "--wait", "300")
                words += ("--contract", "site.toml", "--yes")
                programs.append(started(folder, site, hosts.command(site), "federate", "client", *words))
            until_said(folder, programs[0], "round 1 of")
            sent = dict(hosts.sent)
            while programs[0].poll() is None:
                time.sleep(0.2)
            codes = [program.wait(timeout=60) for program in programs]
        finally:
            for program in programs:
                program.kill()
        if any(codes):
            raise SystemExit("\n".join((folder / f"{n}.txt").read_text(encoding="utf-8") for n in ("server", *SITES)))
        records = [
            json.loads(text) for text in (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        later = records[1:]
        wire = {host: hosts.sent[host] - sent[host] for host in sent}
        return {
            "algorithm": algorithm,
            "seconds": [r["seconds"] for r in later],
            "bytes_up": statistics.median(r["bytes_up"] for r in later) / len(SITES),
            "bytes_down": statistics.median(r["bytes_down"] for r in later) / len(SITES),
            "wire_up": sum(wire[s] for s in SITES) / len(SITES) / len(later),
            "wire_down": wire["server"] / len(SITES) / len(later),
        }


def lines(args: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    slow = Line(args.delay, args.loss, args.rate)
    for algorithm in args.methods.split(","):
        for turn in range(args.passes):
            for name, line in (("free", Line()), ("slow", slow)):
                result = {"line": name, "turn": turn, **over_line(algorithm, line, args.rounds)}
                # The server's line carries every site's share, and a letter goes there and back.
                floor = 2 * slow.delay + 8 * (len(SITES) * result["bytes_down"] + result["bytes_up"]) / slow.rate
                result["floor"] = floor if line is slow else 0.0
                results.append(result)
                print(json.dumps(result), flush=True)
    return results


# Sites


def tiny(folder: Path, names: Sequence[str], rounds: int, per_round: int | None) -> None:
    """Keys, rows and the configuration of a run of a tiny BERT."""
    save_tiny_bert(folder / "bert")
    keys.make(["localhost"], list(names), folder / "keys", days=2, clients={})
    for place, name in enumerate(names):
        write_rows(folder / "data" / f"{name}.csv", reviews(8, seed=place))
    config: dict[str, Any] = {
        "rounds": rounds,
        "algorithm": {"name": "rolora"},
        "adapter": {"r": 2, "target_modules": ["query"]},
        "model": {"name": str(folder / "bert")},
        "task": {"text": "text", "label": "label", "labels": ["neg", "pos"], "max_length": 32},
        "data": {"test_split": "", "validation_fraction": 0.0},
        "train": {"local_steps": 1, "batch_size": 4},
        "simulation": {"cohort": 1},
    }
    if per_round is not None:
        config["clients"] = {"per_round": per_round}
    (folder / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")


class Cpu:
    """Processor seconds of a process, by its number."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")

    def seconds(self) -> float:
        fields = self._stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def with_sites(count: int, rounds: int, per_round: int | None) -> dict[str, Any]:
    """The server's processor seconds per round with ``count`` sites connected."""
    from rondo.federation.site import joining
    from rondo.federation.site.contract.document import Contract
    from rondo.federation.site.run import SiteSetup, take_part
    from rondo.runs.assembling.assemble import assemble

    one_at_a_time = threading.Lock()  # random weights come from torch's own generator, of which a process has one

    def assembled(*args: Any, **options: Any) -> Any:
        with one_at_a_time:
            return assemble(*args, **options)

    joining.assemble = assembled  # type: ignore[attr-defined]
    contract = Contract.model_validate(tomllib.loads(CONTRACT))
    names = [f"site-{i:02d}" for i in range(count)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny(folder, names, rounds, per_round)
        words = ("federate", "server", "config.toml", "--listen", "127.0.0.1:0", "--run-dir", "run")
        server = started(folder, "server", (), *words)
        try:
            said = until_said(folder, server, "listening on")
            port = said.split("listening on 127.0.0.1:")[1].split()[0]

            def work(name: str) -> None:
                address, data = f"localhost:{port}", folder / "data" / f"{name}.csv"
                model = str(folder / "bert")
                site = SiteSetup(address, folder / "keys" / name, data, folder / f"at-{name}", contract, "cpu", model)
                take_part(site, asked=lambda offer: True)

            threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in names]
            for thread in threads:
                thread.start()
            until_said(folder, server, "round 1 of")
            cpu, began = Cpu(server.pid), time.perf_counter()
            used = cpu.seconds()
            until_said(folder, server, f"round {rounds} of")
            used, waited = cpu.seconds() - used, time.perf_counter() - began
            for thread in threads:
                thread.join(timeout=120)
            if server.wait(timeout=120):
                raise SystemExit((folder / "server.txt").read_text(encoding="utf-8"))
            peak = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8")).get("peak_memory_mb")
        finally:
            server.kill()
    rest = rounds - 1
    sampled = per_round or count
    return {
        "sites": count,
        "sampled": sampled,
        "server_cpu_seconds": used / rest,
        "per_upload": used / rest / sampled,
        "seconds": waited / rest,
        "peak_mb": peak,
    }


def many(args: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    for count in map(int, args.sites.split(",")):
        for per_round in (5, None):
            results.append(with_sites(count, args.rounds, per_round))
            print(json.dumps(results[-1]), flush=True)
    return results


# Light sites


def light_server(folder: Path, count: int, rounds: int, size: int, idle: float) -> None:
    """Send letters of ``size`` bytes to ``count`` sites that come, and print what they cost this process."""
    from rondo.federation.identity.keys import ServerKeys
    from rondo.federation.plan import Plan
    from rondo.federation.server.line.superlink import SuperLink
    from rondo.federation.server.sites import Sites

    own = ServerKeys.read(folder / "keys" / "server")
    clients = {site.name: site.name for site in own.roster.sites}
    link = SuperLink(lambda: own.roster, ("127.0.0.1", 0), certificate=own.certificate, key=own.key)
    sites = Sites(link, clients, deadline=None, patience=60.0, stop=threading.Event(), told=lambda line: None)
    link.start()
    sites.offer(Plan("light", {}, (), ("a", "b"), "", "", 1))
    print(link.port, flush=True)
    if not sites.wait(300.0, lambda: len(sites.consents()) == count):
        raise SystemExit(f"{len(sites.consents())} of {count} sites came")
    time.sleep(5.0)
    used, began = time.process_time(), time.perf_counter()
    time.sleep(idle)
    share = (time.process_time() - used) / (time.perf_counter() - began)
    used, began = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        for client in clients:
            sites.send(client, os.urandom(size), 2 * size)
        answers = dict(sites.replies())
        assert answers.keys() == clients.keys()
    used, waited = time.process_time() - used, time.perf_counter() - began
    result = {
        "sites": count,
        "idle_share": share,
        "cpu_ms_per_site_and_round": 1e3 * used / rounds / count,
        "seconds_per_round": waited / rounds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result), flush=True)
    os._exit(0)  # the sites go on until their process ends


def light_site(folder: Path, name: str, port: int, size: int) -> None:
    """Answer letters until the server is gone."""
    from rondo.federation.identity.keys import SiteKeys
    from rondo.federation.plan import Consent
    from rondo.federation.site.line.supernode import SuperNode, TurnedAway, Unreachable

    own = SiteKeys.read(folder / "keys" / name)
    consent, reply = Consent({name: 10}).encode(), bytes(size)
    with suppress(TurnedAway, Unreachable), SuperNode(f"localhost:{port}", own.private_key, own.ca) as node:
        while True:
            message = node.next()
            if message is None:
                time.sleep(0.05)  # as a site's program does
            else:
                node.answer(message, consent if message.kind == "plan" else reply)


def light(args: argparse.Namespace) -> list[dict[str, Any]]:
    if args.serve is not None:
        light_server(args.serve, int(args.sites), args.rounds, args.bytes, args.idle)
    results = []
    for count in map(int, args.sites.split(",")):
        names = [f"site-{i:03d}" for i in range(count)]
        with tempfile.TemporaryDirectory() as folder:
            keys.make(["localhost"], names, Path(folder) / "keys", days=2, clients={})
            options = ["--rounds", str(args.rounds), "--bytes", str(args.bytes), "--idle", str(args.idle)]
            words = [sys.executable, __file__, "light", "--sites", str(count), "--serve", folder, *options]
            with subprocess.Popen(words, env=ONE_THREAD, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                port = int(server.stdout.readline())
                for name in names:
                    args_of_site = (Path(folder), name, port, args.bytes)
                    threading.Thread(target=light_site, args=args_of_site, daemon=True).start()
                results.append(json.loads(server.stdout.readline()))
            print(json.dumps(results[-1]), flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the raw figures")
    kinds = parser.add_subparsers(dest="kind", required=True)
    line = kinds.add_parser("line")
    for name, default in (("delay", 0.05), ("loss", 0.01), ("rate", 1e7)):
        line.add_argument(f"--{name}", type=float, default=default)
    line.add_argument("--methods", default="fedit,rolora,florg")
    line.add_argument("--passes", type=int, default=1)
    sites = kinds.add_parser("sites")
    sites.add_argument("--sites", default="5,10,25,50")
    of_light = kinds.add_parser("light")
    of_light.add_argument("--sites", default="25,100,300")
    of_light.add_argument("--bytes", type=int, default=200_000)
    of_light.add_argument("--idle", type=float, default=60.0, help="seconds in which nothing is sent")
    of_light.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    for kind in (line, sites, of_light):
        kind.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    results = {"line": lines, "sites": many, "light": light}[args.kind](args)
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
