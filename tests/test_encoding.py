"""Every text file is read and written as UTF-8, whatever the locale."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = [file for folder in ("src", "benchmarks", "examples") for file in sorted((ROOT / folder).rglob("*.py"))]


def in_the_locales_encoding(source: str) -> list[ast.Call]:
    """Calls that open a text file, or read or write one, without naming an encoding."""
    return [call for call in ast.walk(ast.parse(source)) if isinstance(call, ast.Call) and _unnamed(call)]


def _unnamed(call: ast.Call) -> bool:
    if any(keyword.arg == "encoding" for keyword in call.keywords):
        return False
    if isinstance(call.func, ast.Name):
        return call.func.id == "open" and "b" not in _mode(call, 1)
    if not isinstance(call.func, ast.Attribute):
        return False
    holder = ast.unparse(call.func.value)
    if call.func.attr == "open" and not holder[0].isupper() and holder not in ("gzip", "os"):
        return "b" not in _mode(call, 0)
    if call.func.attr == "read_text" and holder == "distribution":  # of importlib.metadata, which reads UTF-8
        return False
    return call.func.attr in ("read_text", "write_text")


def _mode(call: ast.Call, place: int) -> str:
    values = [k.value for k in call.keywords if k.arg == "mode"] + call.args[place : place + 1]
    return str(values[0].value) if values and isinstance(values[0], ast.Constant) else ""


def test_text_files_name_their_encoding() -> None:
    assert [
        f"{file.relative_to(ROOT)}, line {call.lineno}: {ast.unparse(call)}"
        for file in FILES
        for call in in_the_locales_encoding(file.read_text(encoding="utf-8"))
    ] == []


def test_the_rule_sees() -> None:
    seen = "open(p)\np.open()\np.open('w')\np.read_text()\np.write_text(t)\nopen(p, 'w')\n(a / b).open(mode='a')\n"
    right = "open(p, 'rb')\np.open('wb')\np.open(encoding='utf-8')\np.write_text(t, encoding='utf-8')\n"
    assert [call.lineno for call in in_the_locales_encoding(seen)] == list(range(1, 8))
    assert in_the_locales_encoding(right + "RunDirectory.open(p)\n") == []
