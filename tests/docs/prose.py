"""Counts on each page for readers what CONTRIBUTING, "Prose", rules out: python tests/docs/prose.py [PAGE ...]

With pages it lists their faults. Without, it fails if a page has more of them than prose.json allows. With --lower it
writes every smaller number there, and no larger one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CEILINGS = Path(__file__).with_name("prose.json")
WORDS, OWN = 25, 2
"""Most words of a sentence, and how often a page may say "of its own"."""
RULES = {
    '"is not a" for "is no"': r"(?<!here )\b(?:is|are|was|were) (?:no|none)\b(?! longer| more than)",
    '"except" for "but for"': r"\bbut for\b",
    '"available" for "to be had"': r"\bto be had\b",
    "a plainer word": r"\b(?:who(?:so)?ever|anew|whatever)\b",
    "repeat the noun": r"\bthose (?:that|who|which|whose|of)\b|\b(?:than|as|from|of|with|to|is|by|and) that of\b",
    '"if" or "when" for "where"': r"(?:^|[.:;] )Where\b|\b(?:only|except) where\b|\bwhere (?:it|they|there) (?!w)",
}
TESTS = {"a test's name": r"\btests/\w|\btest_\w+\.py\b|\btest(?:_[a-z]+){5}"}
DEVELOPERS = ("CONTRIBUTING.md", "docs/dev/")


def pages() -> list[str]:
    """README, CONTRIBUTING and docs. Its records are left out: log, decisions, results."""
    below = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
    return ["README.md", "CONTRIBUTING.md", *(p for p in below if not re.match("docs/(dev/(log|adr)|results)/", p))]


def faults(page: str, text: str) -> list[str]:
    """The faults of a page. Blocks of code have none, and a cell of a table may be long."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "\n\n", text, flags=re.M | re.S)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    rules = RULES if page.startswith(DEVELOPERS) else RULES | TESTS
    flat = " ".join(text.split())
    seen = [(rule, match) for rule, words in rules.items() for match in re.finditer(words, flat)]
    seen += [("of its own", m) for m in [*re.finditer(r"\bof (?:its|their|one's|his) own\b", flat)][OWN:]]
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )", re.sub(r"^\s*[|#].*$", "", text, flags=re.M))
    plain = [
        " ".join(re.sub(r"`[^`]+`(?:(?:,| and|, and) *`[^`]+`)*", "CODE", block.replace("\n", " ")).split())
        for block in blocks
    ]
    sentences = [s for block in plain for s in re.split(r"(?<=[.?!])\)?\s+(?=[A-Z0-9\"(*])", block)]
    long = [(n, s) for s in sentences if (n := len(re.findall(r"[\w'%-]*\w", s))) > WORDS]
    return [f"{rule}: {flat[max(m.start() - 30, 0) : m.end() + 20]}" for rule, m in seen] + [
        f"{n} words: {s}" for n, s in long
    ]


def counts() -> dict[str, int]:
    """The number of faults by page."""
    return {page: len(faults(page, (ROOT / page).read_text(encoding="utf-8"))) for page in pages()}


def above(most: dict[str, int]) -> list[str]:
    """A sentence for each page with more faults than it may have."""
    told = "{0}: {1} faults of prose, at most {2}; python tests/docs/prose.py {0} lists them"
    return [told.format(page, n, most.get(page, 0)) for page, n in counts().items() if n > most.get(page, 0)]


def main(arguments: list[str]) -> int:
    most = json.loads(CEILINGS.read_text(encoding="utf-8"))
    if arguments == ["--lower"]:
        lower = {page: min(n, most.get(page, 0)) for page, n in counts().items()}
        text = json.dumps({page: n for page, n in lower.items() if n}, indent=1) + "\n"
        CEILINGS.write_text(text, encoding="utf-8")
    for page in arguments if arguments != ["--lower"] else ():
        print(page, *faults(page, (ROOT / page).read_text(encoding="utf-8")), sep="\n  ")
    high = [] if arguments else above(most)
    print(*high, sep="\n", end="\n" if high else "")
    return bool(high)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
