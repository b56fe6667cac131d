"""Names and keys that a shell completes: ``rondo --install-completion`` (bash, zsh, fish, PowerShell).

A press of Tab starts a process, so nothing is imported for it: all words are in ``words.tsv``, which a test keeps equal
to the tables, the schema, the papers and the entries.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files

VARIABLE = "_RONDO_COMPLETE"
"""The environment variable by which a shell asks, with its own name."""


def words(kind: str) -> dict[str, list[str]]:
    """The words of a kind (``method``, ``paper``, ``entry``, ``section``, ``key``), each with the values that it takes,
    or with its default."""
    lines = (files("rondo.cli") / "words.tsv").read_text(encoding="utf-8").splitlines()
    cells = (line.split("\t") for line in lines)
    return {word: values for of, word, *values in cells if of == kind}


def methods(incomplete: str) -> list[str]:
    """Methods."""
    return _starting(words("method"), incomplete)


def listed_methods(incomplete: str) -> list[str]:
    """Methods with commas between."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{comma}{name}" for name in methods(last) if name not in taken]


def shown(incomplete: str) -> list[str]:
    """The names that ``rondo show`` takes."""
    return _starting(["config", *words("method")], incomplete)


def keys(incomplete: str) -> list[str]:
    """Keys and sections."""
    return _starting([*words("section"), *words("key")], incomplete)


def settings(incomplete: str) -> list[str]:
    """KEY.PATH=VALUE. A key that is the only one is given twice, bare and with values, so that shells add no blank."""
    known = words("key")
    if "=" in incomplete:
        key, _, value = incomplete.partition("=")
        return [f"{key}={of}" for of in _starting(known.get(key, []), value)]
    found = _starting(known, incomplete)
    if len(found) == 1:
        return [f"{found[0]}=", *(f"{found[0]}={value}" for value in known[found[0]] or ["VALUE"])]
    return [f"{key}=" for key in found]


def papers(incomplete: str) -> list[str]:
    """Settings of papers."""
    return _starting(["list", *words("paper")], incomplete)


def entries(incomplete: str) -> list[str]:
    """Entries of ``rondo reproduce``."""
    return _starting(words("entry"), incomplete)


def reproducible(incomplete: str) -> list[str]:
    """The names that ``rondo reproduce`` takes."""
    return _starting(["list", "all", *words("entry")], incomplete)


def one_of(*choices: str) -> Callable[[str], list[str]]:
    """A completion by a few words."""

    def complete(incomplete: str) -> list[str]:
        return _starting(choices, incomplete)

    return complete


def _starting(known: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in known if word.startswith(incomplete)]


@contextlib.contextmanager
def asked_by_bash() -> Iterator[None]:
    """Within, a word with ``=``, which bash gives in parts, is one word; completions that are printed have only its
    last part, which is the one that bash replaces. Does nothing for other shells."""
    if os.environ.get(VARIABLE) != "complete_bash":
        yield
        return
    line = os.environ["COMP_WORDS"]
    given = line.split("\n" if "\n" in line else " ")
    joined, current = joined_words(given, int(os.environ["COMP_CWORD"]))
    os.environ["COMP_WORDS"] = "\n".join(joined)
    os.environ["COMP_CWORD"] = str(current)
    word = joined[current] if current < len(joined) else ""
    value = word.partition("=")[2] if word.startswith("--") else word
    before, broken, _ = value.rpartition("=")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        for line in printed.getvalue().split():
            print(line.removeprefix(before + broken))


def joined_words(given: list[str], current: int) -> tuple[list[str], int]:
    """The words of a line without the breaks at ``=``, and the number of the current one among them."""
    joined: list[str] = []
    place = current
    for number, word in enumerate(given):
        if joined and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
        if number == current:
            place = len(joined) - 1
    return joined, place if current < len(given) else len(joined)
