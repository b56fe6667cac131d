"""The page of runs: self-contained, the same each time, and every text on it escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from page_runs import HOSTILE, grid, hostile, recorded
from rondo.errors import ConfigError
from rondo.records.recorded import Claim
from rondo.report.page import document
from rondo.report.page.document import page, script_json

CLAIM = Claim(claim="ahead of FFA-LoRA", source="RoLoRA, Figure 5", paper="0.05", here="0.04 [0.03, 0.05]", seeds=5)


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def data_of(text: str) -> Any:
    (content,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(content)


def headings(text: str) -> list[str]:
    return re.findall(r"<h2[^>]*>(.*?)</h2>", text)


def test_page_of_a_comparison_has_every_section() -> None:
    runs = [recorded("a", seed=0), recorded("b", seed=1), recorded("c", algorithm="rolora", failing=True)]
    sample = {"prompt": "say", "expected": "it", "before": "no", "after": "it"}
    assert runs[0].summary is not None
    runs[0].summary["samples"].append(sample)  # type: ignore[attr-defined]
    text = page([*runs, recorded("d", private=True)], [CLAIM], [("x, seed 0", "diverged")])
    assert headings(text) == [
        "Results", "Claims of papers", "Scores", "Clients", "Rows of each client", "Traffic", "Failures", "Privacy",
        "Configuration", "For researchers", "Sample answers", "Runs",
    ]  # fmt: skip
    for shown in ("0.04 [0.03, 0.05]", "diverged", "say", "loss not finite: 6", "<mark>rolora</mark>"):
        assert shown in text


def paragraphs(text: str) -> list[str]:
    """The head's sentences."""
    return [unescape(found) for found in re.findall(r'<p class="(?:lead|note)">(.*?)</p>', text.partition("<nav")[0])]


def table(text: str, title: str) -> list[list[str]]:
    """The cells of the rows of the table whose title begins so."""
    (body,) = re.findall(rf"<caption><span>{re.escape(title)}.*?<tbody>(.*?)</tbody>", text, re.S)
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", unescape(row)) for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)
    ]


def test_head_says_in_plain_words_what_was_trained_and_how_good_it_is() -> None:
    run = recorded("a")
    own = run.rounds[-1]["scores"]["clients"]["per_client"]
    own |= {name: scores | {"accuracy": 1.0} for name, scores in own.items()}
    own["bob"]["accuracy"], run.rounds[-1]["scores"]["global"]["accuracy"] = 0.75, 0.9
    text = page([run])
    assert "<h1>Text classification: home-intents</h1>" in text
    first, sizes, made = paragraphs(text)
    assert first == (
        "minilm was trained for text classification on 3 clients with 27 rows in all, by fedit. After 6 rounds, the "
        "model is right on 90 % of 20 test rows. At the worst client, bob, it is right on 75 % of that client's 4 rows."
    )
    assert (sizes, made) == ("1 run, 6 rounds, 1 seed.", "2 January 2026; cpu")
    own["bob"]["examples"] = run.rounds[-1]["scores"]["global"]["examples"] = 1
    assert re.findall(r"1 (?:test )?rows?\.", paragraphs(page([run]))[0]) == ["1 test row.", "1 row."]
    assert "<h1>For the board</h1>" in page([run], title="For the board")


def test_head_withholds_what_privacy_withholds() -> None:
    first = paragraphs(page([recorded(private=True, clients=("Ann Smith", "Bob"))]))[0]
    assert "on 2 clients, whose numbers of rows are protected, by fedit" in first
    assert first.endswith("Scores of single clients are protected.")


def test_client_has_its_scored_rows_and_an_interval() -> None:
    run = recorded("a")
    run.rounds[-1]["scores"]["clients"]["per_client"]["ann"]["accuracy"] = 1.0
    assert table(page([run]), "accuracy of each client")[-1] == ["ann", "8", "4", "1.00 [0.51, 1.00]"]


def test_score_that_was_taken_once_is_in_a_table() -> None:
    """A chart of it would be a single dot."""
    text = page([recorded("a", rounds=1, before={})])
    assert re.findall(r"<figcaption>(.*?)</figcaption>", text) == ["accuracy of each client&#39;s model", "3 clients"]
    assert "scores" not in data_of(text)
    assert [row[0] for row in table(text, "Scores that were taken once")][:2] == [
        "accuracy (test set)",
        "accuracy, mean over clients (clients' own rows)",
    ]


def test_axis_of_a_share_ends_at_one() -> None:
    options = data_of(page([recorded("a")]))["scores"]["options"]
    assert {option["y"]: option.get("share", False) for option in options if "," not in option["y"]} == {
        **dict.fromkeys(("accuracy", "macro f1", "matthews", "auc"), True),
        **dict.fromkeys(("loss", "training loss"), False),
    }


def test_diagnostics_are_folded_with_a_sentence_each() -> None:
    text = page([recorded("a")])
    folded = re.findall(r'<details class="fold">(.*?)</section>', text, re.S)
    assert len(folded) == 1
    assert folded[0].count("<figure") == folded[0].count('<p class="note">') == 5


def test_differences_are_to_the_first_or_the_named_method() -> None:
    runs = [recorded(f"{name}-{seed}", algorithm=name, seed=seed) for name in ("rolora", "fedit") for seed in (0, 1, 2)]
    text = page(runs)
    assert "difference to rolora" in text
    assert "Holm's p" in unescape(text)
    assert "difference to fedit" in page(runs, against="fedit")
    with pytest.raises(ConfigError, match="--against: 'x' is not on the page; name one of: rolora, fedit"):
        page(runs, against="x")
    others = [replace(run, partition={"clients": {"x": {"train": 1}}}) for run in runs[3:]]
    assert "difference to" not in page([*runs[:3], *others]), "of other rows"


def test_policy_allows_its_own_script_and_style_alone() -> None:
    text = page([recorded()])
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', text)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for element, rule in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.S)
        assert rules[rule] == "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"
    assert set(rules) == {"default-src", "script-src", "style-src", "base-uri", "form-action"}


def test_page_loads_nothing() -> None:
    found = Elements(page([recorded()])).found
    assert {"img", "link", "iframe", "object", "embed", "base", "form"}.isdisjoint(tag for tag, _ in found)
    held = {
        key: value for _, attributes in found for key, value in attributes.items() if key in ("src", "href", "style")
    }
    assert "src" not in held
    assert "style" not in held
    assert [a["href"] for _, a in found if not (a.get("href") or "#").startswith("#")] == []


def test_hostile_texts_stay_texts() -> None:
    """The elements are those of the same runs with plain texts; no attribute and no script is added."""
    text, parsed = page(hostile()), Elements(page(hostile()))
    assert {"img", "a\u2028"}.isdisjoint(tag for tag, _ in parsed.found)
    assert [a for _, a in parsed.found if any(key.startswith("on") for key in a)] == []
    assert [tag for tag, _ in parsed.found].count("script") == 2
    assert "\u2028" not in re.findall(r'id="data">(.*?)</script>', text, re.S)[0]
    assert HOSTILE[:30] in "\n".join(parsed.texts)
    text.encode("utf-8")
    assert "\x07" not in text


def test_json_in_a_script_element_cannot_end_it() -> None:
    content = {"</script>": "<!--<script>\u2028\u2029&"}
    text = script_json(content)
    assert re.search(r"[<>&\u2028\u2029]", text) is None
    assert json.loads(text) == content


def test_same_runs_give_the_same_bytes() -> None:
    assert page(grid(3, 2, 5), [CLAIM]) == page(grid(3, 2, 5), [CLAIM])


def test_numbers_that_are_not_finite_are_left_out_of_charts() -> None:
    run = recorded(rounds=3)
    run.rounds[1]["scores"]["global"]["accuracy"] = float("nan")  # type: ignore[index]
    line = data_of(page([run]))["scores"]["options"][0]["lines"][0]
    assert line["x"] == [0, 1, 3]
    assert len(line["y"]) == 3


def test_page_of_twenty_runs_is_below_a_megabyte() -> None:
    assert len(page(grid(20, 1, 100)).encode()) < 1e6


def test_run_without_a_round_has_a_page() -> None:
    run = recorded(finished=False, rounds=5, before={})
    text = page([type(run)(**{**vars(run), "rounds": [], "partition": {}})])
    assert "No round is scored yet." in text
    assert "0 of 5" in text


def test_unfinished_run_is_named_so() -> None:
    assert "not finished, 2 of 6" in page([recorded(finished=False)])


def test_private_run_shows_nothing_of_single_clients() -> None:
    text = page([recorded(private=True, failing=True, clients=("Ann Smith", "Bob"))])
    assert "Ann Smith" not in text
    assert headings(text) == ["Results", "Scores", "Privacy", "Configuration", "Runs"]
    assert "differential privacy of clients, against who reads the released model: epsilon 3" in text


def test_how_many_took_part_in_a_private_round_is_not_shown() -> None:
    """Not by bytes or seconds either, and nothing changes for a method beside it."""
    sites = {"north": {"state": "here", "since": "today", "rounds": 41}}
    secret, open_ = recorded("a", private=True, sites=sites), recorded("b", algorithm="rolora")
    alone, both = page([secret]), page([secret, open_])
    assert "north" in alone
    assert "41" not in re.findall(r"<td[^>]*>(.*?)</td>", alone)
    assert [axis["name"] for axis in data_of(alone)["scores"]["axes"]] == ["rounds"]
    assert "Traffic" in headings(both)
    titles = ("Up in a round, all clients", "Down in a round, all clients")
    assert [len(c["lines"]) for c in data_of(both)["charts"] if c["title"] in titles] == [1, 1]
    config = recorded(private=True).config
    masked = {**config, "privacy": {**config["privacy"], "adversary": "server", "secure_aggregation": True}}
    assert "Traffic" in headings(page([recorded(config=masked)]))  # there the server is the adversary, and counts


def test_path_of_a_machine_is_not_shown() -> None:
    config = recorded().config
    text = page([recorded(config={**config, "data": {**config["data"], "source": "/home/ann/secret/train.csv"}})])
    assert "…/train.csv" in text
    assert "/home/ann" not in text


def test_changed_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_asset", lambda name: "alert(1)")
    with pytest.raises(ValueError, match=r"uPlot\.min\.css is not the file of uPlot 1\.6\.32"):
        document._uplot("uplot/uPlot.min.css")


def test_licence_of_the_library_is_on_the_page() -> None:
    assert "Copyright (c) 2022 Leon Sorokin" in page([recorded()])
