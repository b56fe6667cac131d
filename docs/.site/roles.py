"""Docstrings of the source as Markdown, for mkdocstrings: ``:class:`X``` and double backticks become code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):`~?(?:!)?([^`]+)`")
_FIELD = re.compile(r"^(?=``\w+``(?:, ``\w+``)*: )", re.M)
_CODE = re.compile(r"``([^`]+)``")


def markdown(text: str) -> str:
    """A docstring in Markdown. Lines that begin with a field become a list, examples a block."""
    text = re.sub(r"(?<!\n)\n(?=- ``)", "\n\n", _FIELD.sub("- ", text), count=1)
    text = _CODE.sub(r"`\1`", _ROLE.sub(r"`\1`", text))
    lines, inside = [], False
    for line in text.split("\n"):
        opens = line.lstrip().startswith(">>>")
        if opens and not inside:
            lines += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line.strip() if opens and len(line) - len(line.lstrip()) < 8 else line)
    return "\n".join([*lines, "```"] if inside else lines)


class Roles(griffe.Extension):
    """Every docstring, as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
