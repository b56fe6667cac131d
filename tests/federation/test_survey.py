"""The contract that a site's owner starts from has no value of a row, except the classes of columns that it names."""

from __future__ import annotations

import tomllib

import pytest

from rondo.data.files.room import TextForm
from rondo.federation.site.contract import survey

ROWS = [
    {"text": f"text {i}", "label": ["ill", "well"][i % 2], "patient": f"P-{i % 3}", "ward": i % 2, "note": None}
    for i in range(12)
]


@pytest.mark.parametrize("labels", [[], ["label"]])
def test_contract_has_values_of_named_labels_alone(labels: list[str]) -> None:
    columns = survey.columns({"north": ROWS})
    text = survey.contract(columns, ["text"], labels, TextForm())
    assert [name for name in ("P-0", "P-1", "P-2", "text 3", "0 (6)") if name in text] == []
    assert ("ill" in text.replace("will", ""), "well" in text) == (bool(labels), bool(labels))
    assert tomllib.loads(text)["rows"].get("label_names") == (["ill", "well"] if labels else None)
    for column in columns:
        assert f'{column.name}": {column.words}' in text
    assert columns[2].words == "12 texts, 3 distinct"
