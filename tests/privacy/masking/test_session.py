"""An attempt opens the plain sum of one set, or nothing; a site refuses every letter that could open more."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache, partial
from itertools import combinations

import numpy
import pytest

pytest.importorskip("cryptography")

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from masked_rounds import Attempt, make_sites, play, signs, terms_for
from rondo.privacy.masking import masks
from rondo.privacy.masking.integers import Ring
from rondo.privacy.masking.opening import NoSum, ServerSession
from rondo.privacy.masking.session import SESSIONS, Named, Ready, Refused, Sent, Shares, SiteSession, Terms, Unmask
from rondo.privacy.masking.shares import threshold_of

RINGS: tuple[Ring, ...] = (32, 64)


@pytest.mark.parametrize(("known", "least"), [(2, 2), (3, 3), (4, 3), (5, 4), (100, 67)])
def test_site_masks_for_two_thirds_of_the_sites_it_knows(known: int, least: int) -> None:
    """The server chooses the set: one of two sites would be opened by the server and the other one."""
    names = [f"s{k:03}" for k in range(known)]
    for count in (least - 1, least):
        terms, chosen = terms_for(count, threshold=count), names[:count]
        checked = {n: partial(lambda name, signature, text: signature == signs(name, text), n) for n in names}
        sites = {n: SiteSession(n, terms, None, {o: checked[o] for o in names if o != n}) for n in chosen}
        ready = {n: site.ready(0, terms, partial(signs, n)) for n, site in sites.items()}
        named = Named(0, tuple(letter for _, letter in ready.values()))
        site = ready[names[0]][0]
        if count < least:
            with pytest.raises(Refused, match="few_sites"):
                site.masked(named, numpy.zeros(3, dtype=numpy.int64))
        elif count > 1:
            site.masked(named, numpy.zeros(3, dtype=numpy.int64))


def test_site_masks_for_no_set_whose_sites_were_sent_different_models() -> None:
    """With changes of the others that the server knows, the sum would be this site's upload."""
    names, terms = ["a", "b", "c"], terms_for(3)
    given = {n: terms if n == "a" else replace(terms, sent="zeros") for n in names}
    ready = [make_sites(names, given[n])[n].ready(0, given[n], partial(signs, n)) for n in names]
    named = Named(0, tuple(letter for _, letter in ready))
    with pytest.raises(Refused, match=r"wrong_plan: b has agreed to other terms: it was sent another model"):
        ready[0][0].masked(named, numpy.zeros(3, dtype=numpy.int64))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ring", RINGS)
def test_opened_sum_is_the_plain_one_as_integers(ring: Ring, count: int) -> None:
    opened = 0
    for trial in range(count):
        luck = random.Random(f"{ring} {trial}")
        most_sites, most_numbers = (50, 100_000) if trial % 20 == 19 else (20, 200)
        names = [f"s{k:02}" for k in range(luck.randint(2, most_sites))]
        edge, size = 2 ** (ring - 2) // len(names), luck.randint(1, most_numbers)
        draw = numpy.random.default_rng(trial)
        vectors = {n: draw.integers(-edge, edge, size, dtype=numpy.int64) for n in names}
        attempt = play(vectors, terms_for(len(names), ring), luck, luck.choice([0.0, 0.05, 0.2]))
        if attempt.opened is not None:
            sites, total = attempt.opened
            assert total.tolist() == sum(vectors[n] for n in sites).tolist()
            opened += 1
        else:
            assert "the threshold is" in attempt.reason or "lost a site each" in attempt.reason
    assert count // 3 < opened < count


@pytest.mark.slow
@pytest.mark.parametrize("ring", RINGS)
def test_two_hundred_sites_open_their_sum(ring: Ring) -> None:
    """One letter in five hundred is lost, so that some sets are void."""
    draw, edge = numpy.random.default_rng(0), 2 ** (ring - 2) // 200
    vectors = {f"s{k:03}": draw.integers(-edge, edge, 50, dtype=numpy.int64) for k in range(200)}
    attempt = play(vectors, terms_for(200, ring), random.Random(3), 0.002)
    assert attempt.opened is not None
    sites, total = attempt.opened
    assert total.tolist() == sum(vectors[n] for n in sites).tolist()
    assert 134 <= len(sites) < 200


@dataclass(frozen=True)
class Adversary:
    """A server that keeps the protocol and remembers every letter, with colluding sites.

    ``vectors``, ``answers``: the letters that it has.
    ``colluding``: sites whose keys it has, and so their pair masks, and the shares that are sealed for them.
    """

    vectors: Sequence[Sent]
    answers: Sequence[Shares]
    threshold: int
    colluding: frozenset[str] = frozenset()

    def combinations(self, *, own_masks: bool = True) -> int:
        """Number of independent combinations of the honest sites' vectors alone that it can compute.

        A masked vector is a row: the site's vector, its own mask and the pairs' masks, each an unknown. The rows are
        reduced with the masks' columns first; a row that is left without any mask is a combination of vectors.
        """
        rows: list[dict[tuple[object, ...], Fraction]] = []
        for sent in self.vectors:
            if sent.site in self.colluding:
                continue
            row: dict[tuple[object, ...], Fraction] = {("vector", sent.site): Fraction(1)}
            if own_masks and not self.opens(sent):
                row["mask", sent.session, sent.site] = Fraction(1)
            for other in sent.sealed.keys() - self.colluding:
                pair = ("pair", sent.session, *sorted((sent.site, other)))
                row[pair] = Fraction(1 if sent.site < other else -1)
            rows.append(row)
        return _independent(rows)

    def opens(self, sent: Sent) -> bool:
        """Whether it has enough shares of the seed of a vector's own mask."""
        readers = {answer.site for answer in self.answers if answer.session == sent.session}
        return len(readers | (sent.sealed.keys() & self.colluding)) >= self.threshold


def _independent(rows: list[dict[tuple[object, ...], Fraction]]) -> int:
    found = 0
    while rows:
        row = rows.pop()
        column = next((c for c in row if c[0] != "vector"), None) or next(iter(row))
        found += column[0] == "vector"
        for other in rows:
            if column in other:
                factor = other[column] / row[column]
                for c, value in row.items():
                    other[c] = other.get(c, Fraction(0)) - factor * value
                    if other[c] == 0:
                        del other[c]
        rows = [other for other in rows if other]
    return found


@cache
def orders(count: int) -> list[tuple[Attempt, int]]:
    """Attempts of 3 to 7 sites with late and lost letters, and their thresholds."""
    played = []
    for trial in range(count):
        luck = random.Random(trial)
        names = [f"s{k}" for k in range(luck.randint(3, 7))]
        terms = terms_for(len(names))
        vectors = {n: numpy.array([luck.randrange(1000)], numpy.int64) for n in names}
        played.append((play(vectors, terms, luck, luck.choice([0.05, 0.1, 0.2]), late=0.9), terms.threshold))
    return played


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_server_learns_nothing_but_the_opened_sum(count: int) -> None:
    """Whether it has the letters that reached it, or all that were ever sent: with lost ones it only says so."""
    losses = 0
    for attempt, threshold in orders(count):
        told = Adversary(attempt.received, attempt.answers, threshold)
        assert told.combinations() == (attempt.opened is not None)
        all_letters = Adversary(attempt.sent, attempt.given, threshold)
        assert all_letters.combinations() == (len(attempt.given) >= threshold)
        # Without own masks each set that was ever named has its sum: two in every order with a loss.
        without = all_letters.combinations(own_masks=False)
        assert without == len({frozenset(names) for names in attempt.sets})
        assert (without > 1) == (len(attempt.sets) > 1)
        losses += len(attempt.sets) > 1
    assert losses > count // 8


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_colluding_sites_add_nothing_below_the_threshold(count: int) -> None:
    """They know each other's vectors, and so the sum of the honest ones, but no part of it."""
    opened, bitten, luck = 0, 0, random.Random(count)
    for attempt, threshold in orders(count):
        names = sorted({sent.site for sent in attempt.sent})
        if not names:
            continue
        size = luck.randint(1, max(1, min(threshold - 1, len(names) - 2)))
        colluding = frozenset(luck.sample(names, size))
        adversary = Adversary(attempt.sent, attempt.given, threshold, colluding)
        answered = {a.site for a in attempt.given}
        last = set(attempt.sets[-1])
        is_open = bool(answered) and len(answered | (colluding & last)) >= threshold and bool(last - colluding)
        assert adversary.combinations() == is_open
        opened += is_open
        # As many colluding sites as the threshold open every set that was ever named.
        many = Adversary(attempt.sent, attempt.given, threshold, frozenset(names[:threshold]))
        honest = {frozenset(set(s) - many.colluding) for s in attempt.sets} - {frozenset()}
        bitten += many.combinations() > 1 and len(honest) > 1
    assert opened > count // 3
    assert bitten > 0


def test_two_answers_of_a_site_in_an_attempt_would_open_two_sums() -> None:
    """A site refuses the second; without that, each set that was ever named has its sum."""
    for attempt, threshold in orders(100):
        if len(attempt.sets) > 1:
            twice = [Shares(site, k, {}) for k, names in enumerate(attempt.sets) for site in names]
            found = Adversary(attempt.sent, twice, threshold).combinations()
            assert found == len({frozenset(names) for names in attempt.sets}) > 1


@pytest.mark.parametrize(("sites", "threshold"), [(2, 2), (3, 2), (4, 3), (10, 7), (100, 67), (200, 134)])
def test_threshold_is_two_thirds(sites: int, threshold: int) -> None:
    assert threshold_of(sites) == threshold


NUMBERS = numpy.array([5, -7], numpy.int64)
NAMES = ["a", "b", "c", "d"]


def prepared(least: int = 2, terms: Terms | None = None) -> tuple[dict[str, SiteSession], Named]:
    """Four sites that are ready, and their set."""
    sites, letters = make_sites(NAMES, terms or terms_for(4), least), []
    draw = random.Random(1)
    for name in NAMES:
        sites[name], letter = sites[name].ready(0, sites[name].terms, partial(signs, name), draw.randbytes)
        letters.append(letter)
    return sites, Named(0, tuple(letters))


def masked() -> tuple[dict[str, SiteSession], dict[str, Unmask], ServerSession]:
    """The sites once all have masked, and the server's letters to them."""
    sites, named = prepared()
    server = ServerSession(terms_for(4), 2)
    for ready in named.members:
        server = server.with_ready(ready)
    server, again = server.name_set()
    assert again == named
    for name in NAMES:
        sites[name], sent = sites[name].masked(named, NUMBERS)
        server = server.with_sent(sent)
    return sites, server.unmask(), server


def signed(ready: Ready, **changes: object) -> Ready:
    changed = replace(ready, **changes)  # type: ignore[arg-type]
    return replace(changed, signature=signs(changed.site, changed.text()))


OTHER_KEY = masks.public_key(b"\1" * 32)

FAULTS: dict[str, Callable[[tuple[Ready, ...]], tuple[Ready, ...]]] = {
    "wrong_set: its sites are not in order": lambda m: (m[1], m[0], *m[2:]),
    "wrong_set: its sites are not in order, or one is there twice": lambda m: (m[0], m[1], m[1], *m[2:]),
    "wrong_set: it lacks this site, or has another key": lambda m: m[1:],
    "wrong_set: it lacks this site": lambda m: (signed(m[0], key=OTHER_KEY), *m[1:]),
    "wrong_peer: e is not among the peers": lambda m: (*m, signed(m[3], site="e")),
    "wrong_signature: b has not signed this key": lambda m: (m[0], replace(m[1], key=OTHER_KEY), *m[2:]),
    "wrong_signature: c has not signed": lambda m: (*m[:2], replace(m[2], signature=m[3].signature), m[3]),
    "wrong_plan: d has agreed to other terms": lambda m: (*m[:3], signed(m[3], terms=terms_for(4, plan="q").digest)),
    "wrong_session: d is in 1": lambda m: (*m[:3], signed(m[3], session=1)),
    "wrong_key: a site's key has a low order": lambda m: (*m[:3], signed(m[3], key=bytes(32))),
    "few_sites: 2 sites, the contract and the threshold ask for 3": lambda m: m[:2],
}


@pytest.mark.parametrize("reason", FAULTS)
def test_site_masks_for_no_wrong_set(reason: str) -> None:
    sites, named = prepared()
    with pytest.raises(Refused, match=reason):
        sites["a"].masked(replace(named, members=FAULTS[reason](named.members)), NUMBERS)
    sites["a"].masked(named, NUMBERS)


def test_site_refuses_less_than_its_contract_asks_for() -> None:
    sites, named = prepared(least=5)
    with pytest.raises(Refused, match="few_sites: 4 sites, the contract and the threshold ask for 5"):
        sites["a"].masked(named, NUMBERS)


def test_site_refuses_a_threshold_that_is_too_small() -> None:
    sites, named = prepared(terms=terms_for(4, threshold=2))
    with pytest.raises(Refused, match="threshold: 2 of 4 sites open a sum, 3 are needed"):
        sites["a"].masked(named, NUMBERS)


def test_site_masks_for_one_set_in_a_session() -> None:
    sites, named = prepared()
    fresh, later = make_sites(["a"], terms_for(4))["a"], replace(named, session=1)
    for site, letter in ((fresh, named), (fresh, replace(named, session=-1)), (sites["a"], later)):
        with pytest.raises(Refused, match="wrong_session"):
            site.masked(letter, NUMBERS)
    site, sent = sites["a"].masked(named, NUMBERS)
    assert site.masked(named, NUMBERS) == (site, sent)
    with pytest.raises(Refused, match="wrong_set: session 0 has another set already"):
        site.masked(replace(named, members=named.members[:3]), NUMBERS)


def test_site_opens_one_set_of_an_attempt() -> None:
    sites, letters, _ = masked()
    site, answer = sites["a"].unmask(letters["a"])
    assert site.unmask(letters["a"]) == (site, answer)
    with pytest.raises(Refused, match="repeated"):
        site.unmask(replace(letters["a"], sealed=letters["b"].sealed))
    with pytest.raises(Refused, match="opened: a sum of this attempt was opened already"):
        site.ready(1, site.terms, lambda text: text)


def test_site_opens_no_other_set_than_it_masked_for() -> None:
    sites, letters, _ = masked()
    letter = letters["a"]
    without = {n: s for n, s in letter.sealed.items() if n != "d"}
    for changed, reason in (
        (replace(letter, session=1), "wrong_session: 1, it has masked for 0"),
        (replace(letter, members=("a", "b", "c")), "wrong_set"),
        (replace(letter, sealed=without), "wrong_set"),
        (replace(letter, sealed={**letter.sealed, "b": letter.sealed["c"]}), "wrong_share: b: "),
    ):
        with pytest.raises(Refused, match=reason):
            sites["a"].unmask(changed)
    (again, _), (unmasked, _) = sites["a"].ready(1, sites["a"].terms, lambda text: text), prepared()
    for site in (again, unmasked["a"]):
        with pytest.raises(Refused, match="wrong_session"):
            site.unmask(letter)


def test_attempt_has_four_sessions() -> None:
    site = make_sites(["a"], terms_for(4))["a"]
    for session in range(SESSIONS):
        site, _ = site.ready(session, site.terms, lambda text: text)
    with pytest.raises(Refused, match="sessions: 4 sets of this attempt had no sum"):
        site.ready(SESSIONS, site.terms, lambda text: text)


def test_next_set_of_an_attempt_has_the_same_terms_and_no_smaller_threshold() -> None:
    site = make_sites(["a"], terms_for(4))["a"]
    site, said = site.ready(0, site.terms, lambda text: text)
    assert site.ready(0, site.terms, lambda text: text) == (site, said)
    for session, terms, reason in (
        (0, terms_for(5), "wrong_session: 0, this one is in 0"),
        (1, terms_for(4, plan="q"), "wrong_plan: an earlier set of this attempt was for other terms"),
        (1, terms_for(4, threshold=2), "threshold: 2, an earlier set of this attempt had 3"),
    ):
        with pytest.raises(Refused, match=reason):
            site.ready(session, terms, lambda text: text)
    later, again = site.ready(2, terms_for(5, largest=7.0), lambda text: text)
    assert (later.session, later.terms, again.key != said.key) == (2, terms_for(5, largest=7.0), True)


def test_fewer_answers_than_the_threshold_open_nothing() -> None:
    sites, letters, server = masked()
    for name in NAMES[:2]:
        server = server.with_shares(sites[name].unmask(letters[name])[1])
    with pytest.raises(NoSum, match="2 sites have opened their shares, the threshold is 3"):
        server.sum()
    total = server.with_shares(sites["d"].unmask(letters["d"])[1]).sum()
    assert total.tolist() == [20, -28]


def test_any_answers_give_the_same_sum() -> None:
    sites, letters, server = masked()
    answers = {name: sites[name].unmask(letters[name])[1] for name in NAMES}
    for some in combinations(NAMES, 3):
        opened = server
        for name in some:
            opened = opened.with_shares(answers[name])
        assert opened.sum().tolist() == [20, -28]


def test_letters_that_do_not_belong_here_are_dropped() -> None:
    sites, letters, server = masked()
    answer = sites["a"].unmask(letters["a"])[1]
    for wrong in (replace(answer, session=1), replace(answer, site="e"), replace(answer, shares={})):
        assert server.with_shares(wrong) is server
    early = replace(server, sent={}, total=None, shares={})
    assert early.with_shares(answer) is early
    sent = sites["a"].sent
    assert sent is not None
    assert early.with_sent(sent).sent == {"a": sent.sealed}
    stranger = replace(sent, site="e", sealed=dict.fromkeys(NAMES, b""))
    for changed in (replace(sent, vector=sent.vector[:1]), replace(sent, sealed={}), replace(sent, site="e"), stranger):
        assert early.with_sent(changed) is early
    assert not replace(early, named=None).complete
    with pytest.raises(ValueError, match="its seeds stay closed"):
        early.unmask()
    with pytest.raises(ValueError, match="its sum may be opened"):
        server.again()


def test_other_contexts_give_other_masks() -> None:
    changes: list[dict[str, object]] = [
        {},
        {"run": "q"},
        {"attempt": 4},
        {"model": "n"},
        {"plan": "q"},
        {"sent": "zeros"},
        {"tensors": ("w.A",)},
        {"fraction": 19},
        {"largest": 2.0},
        {"threshold": 4},
    ]
    assert {f.name for f in fields(Terms)} == {"ring"}.union(*changes)  # another ring has other integers anyway
    vectors = []
    for terms in [terms_for(4, **change) for change in changes]:
        sites, named = prepared(terms=terms)
        vectors.append(sites["a"].masked(named, NUMBERS, random.Random(2).randbytes)[1].vector.tolist())
    sites, named = prepared()
    fewer = replace(named, members=named.members[:3])  # another set, of the same keys
    vectors.append(sites["a"].masked(fewer, NUMBERS, random.Random(2).randbytes)[1].vector.tolist())
    assert len({tuple(v) for v in vectors}) == 11


def test_keys_of_sites_sign_what_is_ready() -> None:
    key = ec.generate_private_key(ec.SECP384R1())

    def verify(signature: bytes, text: bytes) -> bool:
        try:
            key.public_key().verify(signature, text, ec.ECDSA(hashes.SHA384()))
            return True
        except InvalidSignature:
            return False

    sites, named = prepared()
    site = replace(sites["a"], peers={**sites["a"].peers, "b": verify})
    with pytest.raises(Refused, match="wrong_signature: b"):
        site.masked(named, NUMBERS)
    letter = named.members[1]
    letter = replace(letter, signature=key.sign(letter.text(), ec.ECDSA(hashes.SHA384())))
    _, sent = site.masked(replace(named, members=(named.members[0], letter, *named.members[2:])), NUMBERS)
    assert isinstance(sent, Sent)
    assert sent.sealed.keys() == {"b", "c", "d"}


def test_false_share_is_no_sum_or_another_one() -> None:
    sites, letters, server = masked()
    for name in NAMES[:3]:
        answer = sites[name].unmask(letters[name])[1]
        if name == "a":
            answer = Shares(name, 0, {**answer.shares, "b": bytes(33)})
        server = server.with_shares(answer)
    with contextlib.suppress(NoSum):
        assert server.sum().tolist() != [20, -28]
