"""The report of a run: numbers, the final table, progress and pictures."""

from __future__ import annotations

import io
import struct
import time
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rondo.records.summary import best_so_far
from rondo.report import drawing, pictures
from rondo.report.rows import account
from rondo.report.terminal import human_bytes, summary_table
from rondo.study import pictures as comparisons
from small_runs import WHOLE

pytestmark = pytest.mark.usefixtures("drawn_pictures")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1234567, "1.2 MB"),
        (2.5e9, "2.5 GB"),
        (1e12, "1.0 TB"),
        (5e15, "5000.0 TB"),
        (0.4, "0 B"),
        (-1500, "-1.5 kB"),
    ],
)
def test_bytes_are_shown_in_powers_of_a_thousand(count: float, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize("count", [999.6, 999_960, 999_999_999])
def test_rounding_does_not_reach_a_thousand_of_a_unit(count: float) -> None:
    assert not human_bytes(count).startswith("1000")


# --- the final table -----------------------------------------------------------------------------------------------


def spread(mean: float, worst_tenth: float, undefined: int = 0) -> dict[str, Any]:
    others = {"weighted_mean": 0.6875, "deviation": 0.0625, "clients": 7, "undefined": undefined}
    return {"mean": mean, "worst_tenth": worst_tenth, **others}


SUMMARY: dict[str, Any] = {
    "algorithm": "fedit",
    "rounds": 3,
    "clients": 7,
    "primary": "accuracy",
    "titles": {},
    "before": {"global": {"accuracy": 0.25, "f1": None, "loss": 1.5, "examples": 20}},
    "after": {
        "global": {"accuracy": 0.75, "f1": None, "loss": 0.5, "examples": 20},
        "clients": {"accuracy": spread(0.625, 0.125), "per_client": {}},
    },
    "bytes": {"up": 21e6, "down": 42e6, "first_contact": 7e6, "up_per_client_round": 1e6, "down_per_client_round": 2e6},
    "failed_clients": 0,
    "best": None,
    "stopped_early": False,
    "seconds": {"train": 1.25, "evaluation": 0.5, "all": 2.5},
    "costs": {
        "server_seconds_per_round": 0.0125,
        "flops_per_client_round": 1.18e12,
        "server_memory_bytes": 3_000_000,
        "process_memory_bytes": 2_815_000_000,
        "device_memory_bytes": None,
    },
}


def rendered(summary: dict[str, Any]) -> dict[str, list[str]]:
    """The table's rows by their first cell, rendered without colours at a fixed width."""
    console = Console(file=io.StringIO(), width=120, no_color=True)
    console.print(summary_table(summary))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]
    return {cells[0]: cells[1:] for cells in rows} | {"title": [lines[0].strip()]}


def test_table_shows_scores_before_and_after_and_bytes() -> None:
    rows = rendered(SUMMARY)
    assert rows["title"] == ["fedit: 3 rounds, 7 clients"]
    assert rows["global model, test set: accuracy"] == ["0.2500", "0.7500"]
    assert rows["global model, test set: f1"] == ["-", "-"]
    assert rows["global model at the clients: mean accuracy, 7 clients"] == ["", "0.6250"]
    assert rows["global model at the clients: mean weighted by rows"] == ["", "0.6875"]
    assert rows["global model at the clients: deviation over clients"] == ["", "0.0625"]
    assert rows["global model at the clients: worst tenth"] == ["", "0.1250"]
    assert rows["up, per client and round"] == ["", "1.0 MB"]
    assert rows["up, total"] == ["", "21.0 MB"]
    assert rows["down, total (first contact)"] == ["", "42.0 MB (7.0 MB)"]
    assert rows["server, per aggregation: seconds, memory"] == ["", "0.013, 3.0 MB"]
    assert rows["FLOPs, per client and round"] == ["", "1.18e+12"]
    assert rows["memory of the process, at most"] == ["", "2.8 GB"]
    assert "examples" not in "".join(rows)
    assert "clients that failed in a round" not in rows


def test_table_of_a_personal_method() -> None:
    """The table has the local baseline and the count of failed clients."""
    summary = SUMMARY | {
        "before": {},
        "after": {
            "cold_start": {"accuracy": 0.5},
            "personal": {"accuracy": spread(0.9, 0.4, undefined=2), "per_client": {}},
        },
        "local_only": {"own": {"mean": 0.8, "worst_tenth": 0.2}, "test": {"mean": 0.3, "worst_tenth": 0.1}},
        "failed_clients": 2,
    }
    rows = rendered(summary)
    assert rows["cold-start model, test set: accuracy"] == ["-", "0.5000"]
    shown = "personal models at their clients: mean accuracy, 7 clients (undefined at 2 more)"
    assert rows[shown] == ["", "0.9000"]
    assert rows["each client alone, test set: mean accuracy"] == ["", "0.3000"]
    assert rows["each client alone, own rows: mean accuracy"] == ["", "0.8000"]
    assert rows["clients that failed in a round"] == ["", "2"]
    rows = rendered(summary | {"local_only": {"own": {"mean": None, "worst_tenth": None}, "test": None}})
    assert rows["each client alone, own rows: mean accuracy"] == ["", "-"]
    assert "each client alone, test set: mean accuracy" not in rows


def test_run_without_scores_has_a_table() -> None:
    assert rendered(SUMMARY | {"before": {}, "after": {}})["up, total"] == ["", "21.0 MB"]


# --- the account of the rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({}, []),
        ({"text": {}, "test_text": {}}, []),
        (
            {"rows_not_sampled": 150, "test_rows_not_sampled": 100, "clients_not_sampled": 2},
            [
                "50 of 200 training rows are taken, a random sample, which keeps the shares of label and who",
                "100 of 200 test rows are taken, a random sample, which keeps the shares of label",
                "2 clients are not in the sample",
            ],
        ),
        ({"rows_not_sampled": 1, "sampled_by": []}, ["199 of 200 training rows are taken, a random sample"]),
        (
            {"rows_bad": 1, "rows_without_target": 2, "test_rows_bad": 3, "rows_without_client": 40},
            [
                "43 of 200 training rows are not used: 1 bad, 40 given to no client, "
                "2 with nothing to learn within task.max_length",
                "3 of 200 test rows are not used: 3 bad",
            ],
        ),
        (
            {"rows_not_sampled": 100, "sampled_by": [], "rows_without_client": 40},
            [
                "100 of 200 training rows are taken, a random sample",
                "40 of 100 training rows are not used: 40 given to no client",
            ],
        ),
        (
            {"text": {"rows": 200, "rows_cut": 50, "tokens": 9000, "tokens_lost": 1000}},
            ["50 of 200 training rows (25.0 %) are cut to task.max_length, and 11.1 % of all tokens are lost"],
        ),
        (
            {"test_text": {"rows": 200, "rows_cut": 1, "tokens": 9000, "tokens_lost": 1}},
            ["1 of 200 test rows (0.5 %) are cut to task.max_length, and below 0.1 % of all tokens are lost"],
        ),
        (
            {"rows_moved": 21},
            [
                "21 of 200 training rows are moved to clients with fewer than partition.min_size: "
                "no draw gave every client enough"
            ],
        ),
        (
            {"rows_not_sampled": 150, "sampled_by": [], "rows_bad": 10, "rows_moved": 21},
            [
                "50 of 200 training rows are taken, a random sample",
                "10 of 50 training rows are not used: 10 bad",
                "21 of 40 training rows are moved to clients with fewer than partition.min_size: "
                "no draw gave every client enough",
            ],
        ),
        ({"warnings": ["all rows are alike"]}, ["warning: all rows are alike"]),
        ({"clients_too_small": {"a": 1, "b": 2}}, ["left out for too few examples: a, b"]),
        ({"clients_too_small": {"b": 0}}, ["left out, since none of their rows can be used: b"]),
        ({"clients_without_examples": ["c"]}, ["left out, since there is nothing to learn within task.max_length: c"]),
        (
            {"clients_too_small": {str(i): 1 for i in range(12)}},
            ["left out for too few examples: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"],
        ),
    ],
)
def test_account_of_rows_says_what_is_not_used_whole(changes: dict[str, Any], sentences: list[str]) -> None:
    assert list(account(WHOLE | changes)) == sentences


# --- pictures ------------------------------------------------------------------------------------------------------


def assert_png(content: bytes) -> None:
    assert len(content) > 1000
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    position, kinds, data = 8, [], b""
    while position < len(content):
        (length,) = struct.unpack(">I", content[position : position + 4])
        kind, body = content[position + 4 : position + 8], content[position + 8 : position + 8 + length]
        (check,) = struct.unpack(">I", content[position + 8 + length : position + 12 + length])
        assert zlib.crc32(kind + body) == check
        kinds.append(kind)
        data += body if kind == b"IDAT" else b""
        position += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    assert zlib.decompress(data)


def clients(names: list[str], labels: dict[str, int] | None) -> dict[str, Any]:
    return {"clients": {n: {"train": 5, "validation": 1, "labels": labels} for n in names}}


def numbered(count: int) -> list[str]:
    return [f"client-{i}" for i in range(count)]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("labels", [None, {"a": 4, "b": 2}, {str(i): i for i in range(13)}], ids=["none", "2", "13"])
def test_partition_picture(count: int, labels: dict[str, int] | None) -> None:
    assert_png(drawing.png(pictures.partition(clients(numbered(count), labels))))


def test_clients_may_lack_labels_of_other_clients() -> None:
    report = clients(["a"], {"x": 3})["clients"] | clients(["b"], {"y": 2, "z": 1})["clients"]
    assert_png(drawing.png(pictures.partition({"clients": report})))


@pytest.mark.sweep(3)
@pytest.mark.parametrize("text", [r"$\frac$", "$5 and $10", "$%$", "_x", "", "好", "a\nb", r"\alpha", "x" * 64])
def test_labels_and_clients_may_have_any_name(text: str) -> None:
    """Names are data, never formulas, and matplotlib warns of no letter that it lacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="in pictures, letters that no font")
        assert_png(drawing.png(pictures.partition(clients([text, "other"], {text: 3, "b": 2}))))
        pixels = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
        assert_png(drawing.png(pictures.contact_sheet({text: [(pixels, text)] * 3})))
        assert_png(drawing.png(pictures.curve({}, HISTORY, "accuracy", f"{text}, 3 clients")))
        assert_png(drawing.png(pictures.measure({text: 0.5}, [{"round": 0, "measures": {text: 0.1}}], text)))


def test_letters_that_the_font_lacks_are_told_apart() -> None:
    """Two names of as many such letters would be the same boxes."""
    bars = _texts(pictures.partition(clients(["北京", "上海", "Zürich", "🏠"], None)))
    sheet = _texts(pictures.contact_sheet({"北京": [(np.zeros((2, 2, 1), np.uint8), "上海")]}))
    assert {r"\u5317\u4eac", r"\u4e0a\u6d77", "Zürich", r"\U0001f3e0"} <= set(bars)
    assert {r"\u5317\u4eac", r"\u4e0a\u6d77"} <= set(sheet)


def test_letters_of_other_fonts_are_drawn_by_them() -> None:
    """Matplotlib warns of each letter that it draws as a box."""
    assert drawing.label("Wien ⓐ") == "Wien ⓐ"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_png(drawing.png(pictures.partition(clients(["Wien ⓐ", "Zürich"], {"ⓑ": 1}))))


def test_letters_without_a_font_are_told_once() -> None:
    drawing._tell.cache_clear()
    with pytest.warns(UserWarning, match="no font of this machine has") as told:
        assert [drawing.label(name) for name in ("\U000f5317", "\U000f5318")] == [r"\U000f5317", r"\U000f5318"]
    assert len(told) == 1


def _texts(figure: Any) -> list[str]:
    from matplotlib.text import Text

    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text)]


def test_picture_of_many_clients_and_labels_is_fast() -> None:
    began = time.process_time()
    assert_png(drawing.png(pictures.partition(clients(numbered(300), {str(i): 1 for i in range(20)}))))
    assert time.process_time() - began < 1.5


HISTORY = [
    {"round": 0, "loss": 0.7, "scores": {"global": {"accuracy": 0.5}}},
    {"round": 1, "loss": None, "scores": {}},
    {"round": 2, "loss": 0.4, "scores": {"global": {"accuracy": None}}},
    {"round": 3, "loss": 0.3, "scores": {"cold_start": {"accuracy": 0.9}, "personal": {}}},
]


def test_axis_of_rounds_has_whole_numbers() -> None:
    """Two rounds would have a mark at every quarter."""
    curve = [{"round": n, "score": 0.1 * n, "bytes": 10 * n} for n in range(3)]
    run = {
        "algorithm": "fedit",
        "score": None,
        "test": None,
        "own_rows": None,
        "curve_of": "x",
        "primary": "x",
        "title": "x",
        "on_test": True,
    }
    content = {"algorithms": ["fedit"], "runs": [{**run, "curve": curve}], "rounds": 2, "clients": 3, "seeds": [0]}
    history = [{"round": 0, "loss": 0.7, "scores": {}}, {"round": 1, "loss": 0.6, "scores": {}}]
    bands = comparisons.bands({"fedit": [(p["round"], p["bytes"], p["score"], 0.0, 1.0) for p in curve]}, "x")
    figures = [comparisons.comparison(content), bands, pictures.curve({}, history, "x", "t")]
    assert [tick for figure in figures for tick in figure.axes[0].get_xticks() if tick != int(tick)] == []


@pytest.mark.parametrize("values", [(0.98, 0.99), (0.9, 0.3), (0.9, 0.02), (0.9, 1e-15), (0.5, 0.5)])
def test_ticks_of_a_logarithmic_axis_are_plain_numbers(values: tuple[float, float]) -> None:
    figure = pictures.measure({"angle": values[0]}, [{"round": 0, "measures": {"angle": values[1]}}], "t")
    axis = figure.axes[0].yaxis
    low, high = axis.get_view_interval()
    figure.draw_without_rendering()
    labels = {tick.get_loc(): tick.label1.get_text() for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())}
    seen = {place: text for place, text in labels.items() if low <= place <= high and text}
    assert {place: float(text.replace("\N{MINUS SIGN}", "-")) for place, text in seen.items()} == pytest.approx(
        {place: place for place in seen}
    )
    assert len(seen) >= (2 if values[0] != values[1] else 0)


def test_single_values_are_seen_beside_their_names() -> None:
    """A line of one point would be none."""
    lines = {"fedit": [(8, 2.0, 0.7, 0.6, 0.8)], "rolora": [(8, 1.0, 0.5, 0.5, 0.5)]}
    figure = comparisons.bands(lines, "accuracy")
    assert not comparisons.over_bytes(lines)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fedit", "rolora"]
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in marks] == [([0.7], [0]), ([0.5], [1])]


@pytest.mark.parametrize(("dear", "scale"), [(3.0, "linear"), (50.0, "log")])
def test_lines_that_send_other_bytes_are_drawn_over_bytes_too(dear: float, scale: str) -> None:
    lines = {
        name: [(n, n * sent, 0.1 * n, 0.0, 1.0) for n in (1, 2, 3)] for name, sent in (("dear", dear), ("cheap", 1.0))
    }
    lines["at the end"] = [(3, 3.0, 0.4, 0.3, 0.5)]
    figure = comparisons.bands(lines, "accuracy", [("dear", [(1, 0.5), (3, 0.5)])])
    assert comparisons.over_bytes(lines)
    rounds, sent = figure.axes
    assert [list(line.get_xdata()) for line in rounds.lines] == [[1, 2, 3], [1, 2, 3], [3], [1, 3]]
    assert [list(line.get_xdata()) for line in sent.lines] == [[dear, 2 * dear, 3 * dear], [1, 2, 3], [3]]
    assert [line.get_marker() for line in sent.lines] == ["", "", "o"]
    assert (rounds.get_xlabel(), sent.get_xlabel()) == ("rounds", "MB sent up and down per client")
    assert sent.get_xscale() == scale


def test_lines_that_send_the_same_are_drawn_once() -> None:
    lines = {"longer": [(n, 2.0 * n, 0.5, 0.5, 0.5) for n in range(5)], "short": [(1, 2.0, 0.5, 0.5, 0.5)]}
    figure = comparisons.bands(lines, "accuracy")
    assert not comparisons.over_bytes(lines)
    assert len(figure.axes) == 1


@pytest.mark.sweep(3)
@pytest.mark.parametrize("before", [{}, {"accuracy": None}, {"accuracy": 0.25}])
@pytest.mark.parametrize("history", [HISTORY, HISTORY[1:2], []], ids=["scores", "none", "no round"])
def test_learning_curve(before: dict[str, Any], history: list[dict[str, Any]]) -> None:
    assert_png(drawing.png(pictures.curve(before, history, "accuracy", "fedit, 3 clients")))


def test_two_losses_share_an_axis() -> None:
    history = [
        {"round": n, "loss": 0.7 - 0.1 * n, "scores": {"global": {"loss": 0.6, "accuracy": 0.5}}} for n in (0, 1)
    ]
    figures = [pictures.curve({}, history, metric, "t") for metric in ("loss", "accuracy")]
    assert [len(figure.axes) for figure in figures] == [1, 2]
    legend = [text.get_text() for text in figures[0].axes[0].get_legend().get_texts()]
    assert legend == ["test loss", "training loss"]


def test_pictures_leave_the_users_own_plots_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook, a picture of ours must not turn off the drawing of theirs."""
    import matplotlib
    from matplotlib import pyplot

    monkeypatch.setitem(matplotlib.rcParams, "backend", "svg")
    before = pyplot.get_fignums()
    pictures.curve({}, HISTORY, "loss", "t")
    pictures.partition(clients(["a"], None))
    pictures.contact_sheet({"a": [(np.zeros((2, 2, 1), np.uint8), "0")]})
    assert matplotlib.get_backend() == "svg"
    assert pyplot.get_fignums() == before


def test_measure_is_drawn_where_it_is_zero_too() -> None:
    history = [{"round": 0, "measures": {"angle": 0.1, "factor": 0.2}}, {"round": 1, "measures": {"angle": 0.0}}]
    assert_png(drawing.png(pictures.measure({"angle": 0.5}, history, "rolora-linear, 3 clients")))


@pytest.mark.parametrize("higher", [True, False])
def test_best_score_and_the_scores_since(higher: bool) -> None:
    """Of the first of equal ones; a round without a score, or with none that is a number, counts for nothing."""
    values = [0.5, 0.7, 0.7, 0.6, None, 0.8, 0.1]
    best: Any = None
    told = []
    for index, value in enumerate(values):
        record = {"round": index, "scores": {} if value is None else {"global": {"x": value}}}
        best = best_so_far(best, record, "x", higher_is_better=higher, at_clients=False)
        told.append((best["rounds"], best["x"], best["scores_since"]))
    highest = [(1, 0.5, 0), (2, 0.7, 0), (2, 0.7, 1), (2, 0.7, 2), (2, 0.7, 2), (6, 0.8, 0), (6, 0.8, 1)]
    lowest = [(1, 0.5, 0), (1, 0.5, 1), (1, 0.5, 2), (1, 0.5, 3), (1, 0.5, 3), (1, 0.5, 4), (7, 0.1, 0)]
    assert told == (highest if higher else lowest)


def test_best_score_at_clients_is_their_mean() -> None:
    scores = {"global": {"x": 0.9}, "clients": {"x": {"mean": 0.4, "clients": 3}}, "personal": {"x": {"mean": 0.1}}}
    record = {"round": 0, "scores": scores}
    for at_clients, value in ((True, 0.4), (False, 0.9)):
        best = best_so_far(None, record, "x", higher_is_better=True, at_clients=at_clients)
        assert best is not None
        assert best["x"] == value
