"""Tags of words: schemes told apart, broken sequences named, entities as seqeval reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, IOBES, Entities

from rondo.tasks.language.tagging.entity_scores import EntityTally
from rondo.tasks.language.tagging.tags import classes_of, entities_of, scheme_of, tags_of, types_of

TAGS = st.lists(st.sampled_from(classes_of(("LOC", "PER"))), min_size=1, max_size=9)


@given(TAGS)
def test_predicted_tags_are_read_as_seqeval_reads_them(tags: list[str]) -> None:
    expected = [(first, last + 1, kind) for kind, first, last in get_entities(tags)]
    assert entities_of(tags, "IOB1") == expected


@given(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=6))
def test_scores_are_those_of_seqeval(pairs: list[tuple[list[str], list[str]]]) -> None:
    """Overall and of each type, to the last digit but rounding."""
    rows = [(true[: len(found)], found[: len(true)]) for true, found in pairs]
    names = classes_of(("LOC", "PER"))
    tally = EntityTally(names, per_type=True)
    tally.windows = {n: (True, true, found) for n, (true, found) in enumerate(rows)}
    scores, (true, found) = tally.scores(), zip(*rows, strict=True)
    truth, guess = list(true), list(found)
    for metric, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        expected = {"": score(truth, guess, zero_division=0)}
        kinds = sorted({kind for row in (*truth, *guess) for kind, _, _ in get_entities(row)})
        each = score(truth, guess, average=None, zero_division=0) if kinds else ()
        expected |= {f" of {kind}": value for kind, value in zip(kinds, each, strict=True)}
        for name, value in expected.items():
            assert (scores[metric + name] or 0.0) == pytest.approx(value, abs=1e-12)
    assert scores["accuracy"] == pytest.approx(accuracy_score(truth, guess))


@given(TAGS)
def test_entities_survive_every_scheme(tags: list[str]) -> None:
    entities = entities_of(tags, "IOB1")
    assert entities_of(tags_of(entities, len(tags)), "IOB2") == entities
    ends = {end: (first, end) for first, end, _ in entities}
    bioes = tags_of(entities, len(tags))
    for end, (first, _) in ends.items():
        bioes[end - 1] = ("S" if end - first == 1 else "E") + bioes[end - 1][1:]
    assert entities_of(bioes, "BIOES") == entities
    bilou = [tag.replace("E-", "L-").replace("S-", "U-") for tag in bioes]
    assert entities_of(bilou, "BIOES") == entities
    expected = [(e.start, e.end, e.tag) for e in Entities([bioes], IOBES).entities[0]]
    assert entities_of(bioes, "BIOES") == expected
    expected = [(e.start, e.end, e.tag) for e in Entities([tags_of(entities, len(tags))], IOB2).entities[0]]
    assert entities == expected


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        (["O", "B-PER", "I-PER"], "IOB2"),
        (["O", "I-PER", "I-PER"], "IO"),
        (["O", "PER", "art-music"], "IO"),
        (["B-PER", "E-PER"], "BIOES"),
        (["U-PER", "O"], "BIOES"),
        (["O"], "IO"),
    ],
)
def test_schemes_are_told_apart(tags: list[str], scheme: str) -> None:
    assert scheme_of(tags) == scheme


def test_bare_types_and_prefixed_ones_are_io() -> None:
    assert entities_of(["PER", "PER", "O", "I-LOC", "art-music"], "IO") == [
        (0, 2, "PER"),
        (3, 4, "LOC"),
        (4, 5, "art-music"),
    ]


@pytest.mark.parametrize(
    ("tags", "scheme", "message"),
    [
        (["O", "I-PER"], "IOB2", "'I-PER' of word 2 follows 'O': an entity begins with 'B-PER'"),
        (["I-PER"], "IOB2", "'I-PER' of word 1 is the row's first: an entity begins with 'B-PER'"),
        (["B-LOC", "I-PER"], "IOB2", "'I-PER' of word 2 follows 'B-LOC'"),
        (["B-LOC", "E-LOC"], "IOB2", "'E-LOC' of word 2 is not a tag of IOB2, which has 'O', 'B-...', 'I-...'"),
        (["B-LOC", "O"], "BIOES", "'B-LOC' of word 1 has no end: 'O' follows, not 'E-LOC'"),
        (["O", "B-LOC"], "BIOES", "'B-LOC' of word 2, the last one, has no end: write 'E-LOC'"),
        (["S-LOC", "E-LOC"], "BIOES", "'E-LOC' of word 2 follows 'S-LOC'"),
        (["B-LOC", "I-LOC", "S-LOC"], "BIOES", "'I-LOC' of word 2 has no end: 'S-LOC' follows"),
        (["I-LOC", "B-LOC"], "IO", "'B-LOC' of word 2 is not a tag of IO, which has 'O', 'I-...'"),
        (["B-LOC", "LOC"], "IOB2", "'LOC' of word 2 is not a tag of IOB2"),
    ],
)
def test_broken_sequences_are_named(tags: list[str], scheme: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("...", r"\.\.\.")):
        entities_of(tags, scheme)  # type: ignore[arg-type]


def test_classes_have_both_tags_of_every_type() -> None:
    assert classes_of(["PER", "LOC", "PER"]) == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert types_of(classes_of(["PER", "LOC"])) == ["LOC", "PER"]
