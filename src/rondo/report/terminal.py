"""Tables at the end of a run and of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from rondo.errors import visible
from rondo.privacy.guarantee import Guarantee, sentences
from rondo.records.summary import WITHHELD


def plain_console(**options: Any) -> Console:
    """A console that prints text as it is, since names in it may look like markup."""
    return Console(markup=False, emoji=False, highlight=False, **options)


def human_bytes(count: float) -> str:
    """1234567 as "1.2 MB" (powers of 1000)."""
    for unit, digits in (("B", 0), ("kB", 1), ("MB", 1), ("GB", 1)):
        if abs(round(count, digits)) < 1000:
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


_KINDS = {
    "global": "global model, test set",
    "cold_start": "cold-start model, test set",
    "clients": "global model at the clients",
    "personal": "personal models at their clients",
    "fine_tuned": "fine-tuned models at their clients",
    "validation": "models at their clients, validation rows",
}


def score_cell(value: Any) -> str:
    """A score in a table; a dash for none."""
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def comparison_title(content: Mapping[str, Any]) -> str:
    """The heading of :func:`comparison_table`."""
    seeds = content["seeds"]
    over = (
        f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± standard deviation over seeds {', '.join(map(str, seeds))}"
    )
    counts = [f"{content[what]} {what}" for what in ("rounds", "clients") if content[what] is not None]
    return f"{', '.join([*counts])}; {over}" if counts else over


def _score_columns(content: Mapping[str, Any]) -> dict[str, str]:
    """The columns of scores, with the key of each in the numbers of an algorithm. One without any score is left out,
    but for the test's."""
    numbers = content["algorithms"].values()
    personal = any(n["score"]["model"] == "personal" for n in numbers)
    named = {"score": content["title"]} if personal else {}
    named |= {"test": f"test {content['title']}", "own_rows": "at the clients", "fine_tuned": "fine-tuned"}
    measured = any(n["measures"] for n in numbers)
    always = () if measured else ("test", "own_rows")
    return {key: name for key, name in named.items() if key in always or any(n[key]["count"] for n in numbers)}


def _more_tests(content: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the test sets beside the test set."""
    return tuple(dict.fromkeys(name for numbers in content["algorithms"].values() for name in numbers["more_tests"]))


def _measures(content: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the measures that any algorithm has."""
    return tuple(dict.fromkeys(name for numbers in content["algorithms"].values() for name in numbers["measures"]))


def comparison_columns(content: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of :func:`comparison_table`; the first two are text."""
    tests = (f"{name} {content['title']}" for name in _more_tests(content))
    measures = (name.replace("_", " ") for name in _measures(content))
    scores = (*_score_columns(content).values(), *tests, *measures, *_answer_columns(content))
    return ("algorithm", "head", *scores, "up", "down", "first contact", "train s", "server s", "FLOPs", "interference")


def comparison_rows(content: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The rows of :func:`comparison_table`."""
    for name, stats in content["algorithms"].items():
        seconds = stats["train_seconds"]["mean"]
        yield (
            name,
            stats["head"] or "-",
            *(_of_model(stats[key]) for key in _score_columns(content)),
            *(_of_model(stats["more_tests"].get(name, _NO_SCORE)) for name in _more_tests(content)),
            *(_measured(stats["measures"].get(measure)) for measure in _measures(content)),
            *_answers(content, stats),
            *(_bytes(stats[key]) for key in ("bytes_up", "bytes_down", "bytes_first_contact")),
            "-" if seconds is None else f"{seconds:.0f}",
            *(
                "-" if (mean := stats[key]["mean"]) is None else f"{mean:.2g}"
                for key in ("server_seconds_per_round", "flops_per_client_round", "interference")
            ),
        )


def _answer_columns(content: Mapping[str, Any]) -> Iterator[str]:
    """The columns of what is asked of each curve. Of a measure they name it, since there are several."""
    of = "" if (measure := _measure_of_curves(content)) is None else f"{measure.replace('_', ' ')} "
    if content["last"] > 1:
        yield f"{of}mean of last {content['last']}"
    if content["target"] is not None:
        yield from (f"rounds to {of}{content['target']:g}", f"sent to {of}{content['target']:g}")
    if content["at_mb"] is not None:
        yield f"{of}at {content['at_mb']:g} MB"


def _measure_of_curves(content: Mapping[str, Any]) -> str | None:
    """The measure that the curves are of; None where they are of scores."""
    return next((run["curve_of"] for run in content["runs"] if run["curve_of"] != run["primary"]), None)


def _answers(content: Mapping[str, Any], stats: Mapping[str, Any]) -> Iterator[str]:
    """The cells of :func:`_answer_columns`. Seeds that did not reach the target are counted, not averaged."""
    shown = _scored if _measure_of_curves(content) is None else _measured
    if content["last"] > 1:
        yield shown(stats["mean_of_last"])
    if content["target"] is not None:
        rounds, sent, seeds = stats["rounds_to_target"], stats["bytes_to_target"], stats["mean_of_last"]["count"]
        some = "" if rounds["count"] in (0, seeds) else f" ({rounds['count']} of {seeds})"
        yield "-" if rounds["mean"] is None else f"{rounds['mean']:g}{some}"
        yield _bytes(sent)
    if content["at_mb"] is not None:
        yield shown(stats["score_at_mb"])


def _bytes(value: Mapping[str, Any]) -> str:
    """Mean over seeds."""
    return "-" if value["mean"] is None else human_bytes(value["mean"])


def _measured(value: Mapping[str, Any] | None) -> str:
    """Mean over seeds, and standard deviation if there is one."""
    if value is None or value["mean"] is None:
        return "-"
    return f"{value['mean']:.3g}" + ("" if value["sd"] is None else f" ± {value['sd']:.2g}")


_LEGEND = (
    "Scores are of the global model where no other is named; down includes the first contact; server s are per "
    "aggregation, FLOPs per client and round."
)


def comparison_notes(content: Mapping[str, Any]) -> Iterator[str]:
    """Sentences to :func:`comparison_table`: the guarantees of private runs, and why costs are dashes."""
    guarantees = {name: stats["guarantee"] for name, stats in content["algorithms"].items() if stats["guarantee"]}
    for guarantee in dict.fromkeys(guarantees.values()):
        of = [name for name, own in guarantees.items() if own == guarantee]
        yield guarantee if len(of) == len(content["algorithms"]) else f"{', '.join(of)}: {guarantee}"
    if content.get("together") is not None:
        yield content["together"]
    if any(Guarantee.of(run["privacy"]).secret_turnout for run in content["runs"]):
        yield f"bytes and seconds are {WITHHELD}"


def comparison_table(content: Mapping[str, Any]) -> Table:
    """A comparison, one row per algorithm: means over seeds, with standard deviations for scores. ``content``: as in
    ``comparison.json``. A score names its model unless that is the global one."""
    table = Table(
        title=comparison_title(content),
        title_justify="left",
        caption="\n".join([_LEGEND, *map(visible, comparison_notes(content))]),
        caption_justify="left",
        box=None,
        pad_edge=False,
        collapse_padding=True,
    )
    for number, column in enumerate(comparison_columns(content)):
        table.add_column(column, no_wrap=number < 2, justify="left" if number < 2 else "right")
    for row in comparison_rows(content):
        table.add_row(*row)
    return table


_NO_SCORE: Mapping[str, Any] = {"mean": None}
"""The score of a test set that a method's runs do not have."""


def _of_model(score: Mapping[str, Any]) -> str:
    """Mean over seeds, standard deviation if there is one, and model unless global: "0.750 ± 0.010 personal"."""
    if score["mean"] is None:
        return "-"
    model = "" if score["model"] in ("global", "fine-tuned") else f" {score['model']}"
    return _scored(score) + model


def _scored(score: Mapping[str, Any]) -> str:
    """Mean over seeds, and standard deviation if there is one: "0.750 ± 0.010"."""
    if score["mean"] is None:
        return "-"
    return f"{score['mean']:.3f}" + ("" if score["sd"] is None else f" ± {score['sd']:.3f}")


def summary_title(summary: Mapping[str, Any]) -> str:
    """The heading of :func:`summary_table`."""
    early = ", stopped early" if summary["stopped_early"] else ""
    return f"{summary['algorithm']}: {summary['rounds']} rounds, {summary['clients']} clients{early}"


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table at the end of a run: scores before and after, bytes, seconds."""
    table = Table(title=summary_title(summary), title_justify="left")
    for column, justify in (("", "left"), ("before", "right"), ("after", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for rows in (score_rows(summary), _cost_rows(summary)):
        for row in rows:
            table.add_row(*row)
        table.add_section()
    return table


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The rows of :func:`summary_table`: label, value before, value after."""
    return [*score_rows(summary), *_cost_rows(summary)]


SAMPLE_COLUMNS = ("prompt", "expected", "before", "after")
_SHOWN, _CHARACTERS = 5, 300


def samples_title(samples: Sequence[Mapping[str, str]]) -> str:
    """The heading of generated answers."""
    more = f", the first {_SHOWN} of {len(samples)} in summary.json" if len(samples) > _SHOWN else ""
    return f"answers before and after training{more}"


def sample_rows(samples: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, ...]]:
    """The first answers that a run generated: the end of each prompt, and the beginning of each answer, with their
    line breaks."""
    for sample in samples[:_SHOWN]:
        prompt, *rest = ("\n".join(map(visible, sample[column].strip().splitlines())) for column in SAMPLE_COLUMNS)
        yield prompt[-_CHARACTERS:], *(text[:_CHARACTERS] for text in rest)


def samples_table(samples: Sequence[Mapping[str, str]]) -> Table:
    """The table of generated answers. ``samples``: as in ``summary.json``."""
    table = Table(title=samples_title(samples), title_justify="left", show_lines=True)
    for column in SAMPLE_COLUMNS:
        table.add_column(column, overflow="fold")
    for row in sample_rows(samples):
        table.add_row(*row)
    return table


def adapted_table(title: str, shots: Mapping[int, Sequence[Any]]) -> Table:
    """The table of ``rondo adapt``. ``shots`` gives the scores of three models by the number of rows that they were
    fitted to: cold start, personal tensors fitted, trained alone."""
    table = Table(title=title, title_justify="left")
    for column in ("rows", "cold start", "personal part fitted", "trained alone"):
        table.add_column(column, justify="right")
    for rows, scores in shots.items():
        table.add_row(str(rows), *map(score_cell, scores))
    return table


def score_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The scores: label, value before, value after."""
    before, after, primary = summary["before"], summary["after"], summary["primary"]
    titles = summary["titles"]
    title = titles.get(primary, primary)
    for kind, label in _KINDS.items():
        if kind in ("global", "cold_start"):
            for metric, value in after.get(kind, {}).items():
                if not isinstance(value, int):  # counts are no scores
                    earlier = before.get(kind, {}).get(metric)
                    yield f"{label}: {titles.get(metric, metric)}", score_cell(earlier), score_cell(value)
            for name, scores in after.get("more_tests", {}).items() if kind in after else ():
                earlier = before.get("more_tests", {}).get(name, {})
                for metric, value in scores.items():
                    if not isinstance(value, int):
                        shown = f"{label} {name}: {titles.get(metric, metric)}"
                        yield shown, score_cell(earlier.get(metric)), score_cell(value)
        elif kind in after:
            yield from _at_clients(label, title, after[kind][primary])
    generated = summary.get("generated") or {"after": {}}
    for metric, value in generated["after"].items():
        yield (
            f"{generated['answers']} generated answers: {metric}",
            score_cell(generated["before"][metric]),
            score_cell(value),
        )
    measures = summary.get("measures", {"before": {}, "after": {}})
    for name, value in measures["after"].items():
        yield name, f"{measures['before'][name]:.3g}" if name in measures["before"] else "-", f"{value:.3g}"
    best = summary["best"]
    if best is not None and best["rounds"] != summary["rounds"]:
        yield f"best, after round {best['rounds']}: {title}", "", score_cell(best[primary])
    if (privacy := summary.get("privacy")) is not None:
        yield from ((protected, "", bound) for protected, bound in sentences(privacy))
    if "local_only" in summary:
        local = summary["local_only"]
        if local.get("test") is not None:
            yield f"each client alone, test set: mean {title}", "", score_cell(local["test"]["mean"])
        yield f"each client alone, own rows: mean {title}", "", score_cell(local["own"]["mean"])


def _at_clients(label: str, title: str, spread: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """A metric over clients: label, nothing before, value after."""
    without = f" (undefined at {spread['undefined']} more)" if spread["undefined"] else ""
    clients = f"{spread['clients']} clients{without}"
    yield f"{label}: mean {title}, {clients}", "", score_cell(spread["mean"])
    yield f"{label}: mean weighted by rows", "", score_cell(spread["weighted_mean"])
    yield f"{label}: deviation over clients", "", score_cell(spread["deviation"])
    yield f"{label}: worst tenth", "", score_cell(spread["worst_tenth"])


def _cost_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if Guarantee.of(summary.get("privacy")).secret_turnout:
        yield f"bytes, seconds and failures are {WITHHELD}", "", "-"
        return
    traffic, seconds = summary["bytes"], summary["seconds"]
    yield "up, per client and round", "", human_bytes(traffic["up_per_client_round"])
    yield "down, per client and round", "", human_bytes(traffic["down_per_client_round"])
    yield "up, total", "", human_bytes(traffic["up"])
    down = f"{human_bytes(traffic['down'])} ({human_bytes(traffic['first_contact'])})"
    yield "down, total (first contact)", "", down
    times = f"{seconds['train']:.1f}, {seconds['evaluation']:.1f}, {seconds['all']:.1f}"
    yield "seconds: training, evaluation, total", "", times
    costs = summary["costs"]
    if costs["server_seconds_per_round"] is not None:
        server = f"{costs['server_seconds_per_round']:.2g}, {human_bytes(costs['server_memory_bytes'])}"
        yield "server, per aggregation: seconds, memory", "", server
    if costs["flops_per_client_round"] is not None:
        yield "FLOPs, per client and round", "", f"{costs['flops_per_client_round']:.3g}"
    if costs["process_memory_bytes"] is not None:
        yield "memory of the process, at most", "", human_bytes(costs["process_memory_bytes"])
    if summary["failed_clients"]:
        yield "clients that failed in a round", "", str(summary["failed_clients"])
