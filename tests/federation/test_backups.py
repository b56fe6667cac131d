"""A site's folder that is older than its run, as a backup brings it back."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from desk_line import DeskLine
from parties import configuration
from test_masked_kills import listening, served
from typer.testing import CliRunner

from rondo.cli.app import app
from rondo.engine.wire import masked
from rondo.federation.program import only_program
from rondo.federation.server.run import serve
from rondo.federation.site.desk import PLAN


def begin_again(folder: Path) -> Any:
    return CliRunner().invoke(app, ["federate", "site", "start-over", str(folder)])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("way", ["newer folder", "start-over"])
def test_site_with_an_older_folder_takes_part_again(place: Path, tmp_path: Path, way: str) -> None:
    """Once its owner has brought the newer folder back, or begins again."""
    folder, copies, said, letters = tmp_path / "at-south", tmp_path / "copies", list[str](), [0]

    def back(copy: str) -> None:
        line.kill("south", returns=True)
        shutil.rmtree(folder)
        shutil.copytree(copies / copy, folder)

    def watch(site: str, kind: str, moment: str) -> None:
        if (site, kind, moment) != ("south", "round", "before"):
            return
        letters[0] += 1
        if letters[0] in (2, 4):
            shutil.copytree(folder, copies / str(letters[0]))
        if letters[0] == 4:
            back("2")
        elif letters[0] == 5 and way == "start-over":
            said.append(begin_again(folder).output)
            line.kill("south", returns=True)
        elif letters[0] == 5:
            back("4")

    line = DeskLine(place, tmp_path, watch)
    with line.served():
        task, train = {"labels": ["neg", "pos"]}, {"local_epochs": 1, "batch_size": 8}
        sections = {"algorithm": {"name": "fedsa-lora"}, "task": task, "train": train, "clients": {"min_clients": 2}}
        run = configuration(place, rounds=6, **sections)
        result = serve(run, listening(place), run_dir=tmp_path / "run", device="cpu", told=line.told.append)
    failed = [[f["client"] for f in record["failed"]] for record in result.history]
    assert failed == [[], [], [], ["bob"], [], []]
    assert "the server counts on round 3, and the site's folder is older, of round 1" in "\n".join(line.told)
    assert [text.split(": ", 1)[1].splitlines()[0] for text in said] == [
        "bob begins again, without what it has kept for itself"
    ] * (way == "start-over")


@pytest.mark.slow
def test_older_folder_opens_no_second_sum(place: Path, tmp_path: Path) -> None:
    """It has forgotten that the sum was opened, and the other sites have not: no set forms in that round again."""
    folder = tmp_path / "at-south"

    def watch(site: str, kind: str, moment: str) -> None:
        if (site, kind, moment) == ("south", "masked", "before") and not (tmp_path / "copy").exists():
            shutil.copytree(folder, tmp_path / "copy")

    line = DeskLine(place, tmp_path, watch)
    served(place, line, tmp_path / "run", rounds=1)
    line.kill("south", returns=True)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    answers = {}
    for site, letter in {site: letter for site, kind, letter, _ in line.heard if kind == "ready"}.items():
        again = replace(masked.AskReady.decode(letter), session=1).encode()
        number = line.send(site, "ready", again, 60.0, masked.LARGEST)
        assert number is not None
        answers[site] = line.reply(number) or b""
    assert {site for site, answer in answers.items() if b"was opened already" in answer} == {"north", "west"}


def test_site_in_no_run_and_one_that_runs_do_not_begin_again(tmp_path: Path) -> None:
    none = begin_again(tmp_path)
    assert (none.exit_code, "is in no run" in none.output) == (2, True)
    (tmp_path / PLAN).write_text("{}")
    with only_program(tmp_path):
        running = begin_again(tmp_path)
    assert (running.exit_code, "is in use by another program" in running.output) == (2, True)
    assert "plan.json' is damaged" in begin_again(tmp_path).output.replace("\n", "")
