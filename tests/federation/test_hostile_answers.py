"""What a site with a valid key may answer: whatever it is, the server turns it away by a reason and goes on."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.engine.wire.letters import Reply
from rondo.engine.wire.strict import PROTOCOL, Rejected
from rondo.federation.plan import Consent

HUGE = [10**400, -(10**400), 1e308, -1e308, 10**200, True, "1", [], {}]


def reply(**changes: Any) -> bytes:
    fields = {"protocol": PROTOCOL, "loss": None, "held": None, "scores": None, "reason": "", "detail": "", **changes}
    text = json.dumps(fields).encode()
    return len(text).to_bytes(8, "little") + text


def consent(**changes: Any) -> bytes:
    return json.dumps({"protocol": 1, "clients": {"ann": 3}, "labels": [], "refused": "", **changes}).encode()


@pytest.mark.parametrize("number", HUGE, ids=lambda n: repr(n)[:8])
def test_loss_and_scores_are_numbers_that_can_be_averaged(number: Any) -> None:
    with pytest.raises(Rejected):
        Reply.decode(reply(loss=number))
    with pytest.raises(Rejected):
        Reply.decode(reply(scores={"clients": {"accuracy": number}}))


def test_numbers_as_text_of_json() -> None:
    for text in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000):
        with pytest.raises(Rejected):
            Reply.decode(reply(loss=0).replace(b'"loss": 0', b'"loss": ' + text.encode()))


def test_many_metrics_are_not_taken() -> None:
    for metrics in ({f"m{i}": 0.5 for i in range(10_001)}, {"a" * 10**6: 0.5}, {"accuracy": 0.5, "x\x1b[2J": 1.0}):
        with pytest.raises(Rejected):
            Reply.decode(reply(scores={"clients": metrics}))
    with pytest.raises(Rejected):
        Reply.decode(reply(scores={f"kind {i}": {} for i in range(1000)}))


def test_honest_scores() -> None:
    metrics = {"accuracy": 0.5, "f1": None, "loss": 3.4e38, "examples": 10**9}
    assert Reply.decode(reply(scores={"clients": metrics, "fine_tuned": metrics})).scores is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": {"ann": n}}
        for n in (-1, 0, 2**53, 10**400, 1.5, 1e308, True, None, "3", [3], {"n": 3})
    ]
    + [{"clients": c} for c in ([], "ann", None, 3)]
    + [{"labels": labels} for labels in ("ab", {"a": 1}, [1], [None], [["a"]])]
    + [{"labels": ["a" * 10**6]}, {"labels": [str(i) for i in range(10**5)]}, {"labels": ["a", "\ud800"]}]
    + [{"labels": ["a", ""]}, {"labels": ["a", "a"]}, {"labels": [" "]}]
    + [{"refused": r} for r in (None, 1, ["no"])]
    + [{"protocol": p} for p in (0, 2, "1", None)]
    + [{"surplus": 1}],
    ids=lambda c: repr(c)[:40],
)  # fmt: skip
def test_consent_that_is_none(changes: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        Consent.decode(consent(**changes))


def test_consent_of_a_million_labels_is_not_read() -> None:
    with pytest.raises(Rejected):
        Consent.decode(consent(labels=[f"label {i}" for i in range(10**6)]))


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for decode in (Reply.decode, Consent.decode):
        with pytest.raises(Rejected):
            decode(data)
        with pytest.raises(Rejected):
            decode((len(data)).to_bytes(8, "little") + data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["protocol", "loss", "held", "scores", "reason", "detail"]), VALUES)
def test_any_value_in_a_reply(key: str, value: Any) -> None:
    with suppress(Rejected):
        Reply.decode(reply(**{key: value})).failure("ann")


@given(st.sampled_from(["protocol", "clients", "labels", "refused"]), VALUES)
def test_any_value_in_a_consent(key: str, value: Any) -> None:
    with suppress(Rejected):
        Consent.decode(consent(**{key: value}))
