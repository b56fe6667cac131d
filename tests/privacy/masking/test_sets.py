"""A site's vector stays in company, whatever sets the server names: it chooses them, and some sites are its own."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy
import pytest

from masked_rounds import make_sites, signs, terms_for
from rondo.privacy.masking.opening import ServerSession, able
from rondo.privacy.masking.session import Refused, SiteSession, Unmask, fewest
from rondo.privacy.masking.shares import threshold_of


@dataclass
class Server:
    """A server that names any set of an attempt, with colluding sites that answer anything.

    ``least``: of the honest sites' contracts.
    ``opened``: the honest sites of every sum that it has opened.
    """

    names: list[str]
    colluding: Collection[str]
    least: int | None
    opened: list[set[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        made = make_sites(self.names, terms_for(2), self.least)
        self.sites = {name: made[name] for name in self.names if name not in self.colluding}

    def mask(self, session: int, members: Collection[str], threshold: int) -> Mapping[str, Unmask]:
        """Have all of ``members`` mask. Gives the letters that open the set. Raises :class:`Refused`."""
        terms = terms_for(2, threshold=threshold)
        liars = make_sites([n for n in members if n in self.colluding], terms, 2)  # their past is forgotten each time
        peers = next(iter(self.sites.values())).peers
        now: dict[str, SiteSession] = {n: replace(site, peers=peers) for n, site in liars.items()}
        now |= {name: self.sites[name] for name in members if name in self.sites}
        server = ServerSession(terms, 1, session)
        for name in now:
            now[name], ready = now[name].ready(session, terms, partial(signs, name))
            server = server.with_ready(ready)
        server, named = replace(server, terms=replace(terms, threshold=0)).name_set()
        for name in now:
            now[name], sent = now[name].masked(named, numpy.array([1], numpy.int64))
            server = server.with_sent(sent)
        self.sites |= {name: site for name, site in now.items() if name in self.sites}
        return server.unmask()

    def open(self, letters: Mapping[str, Unmask], answering: Collection[str], threshold: int) -> None:
        """Have the honest sites ``answering`` open the set of ``letters``."""
        for name in answering:
            self.sites[name], _ = self.sites[name].unmask(letters[name])
        if len(answering) + len(letters.keys() & self.colluding) >= threshold:
            self.opened.append(letters.keys() - set(self.colluding))

    @property
    def alone(self) -> list[str]:
        """The honest sites whose vectors follow from the sums."""
        rows = [[float(name in honest) for name in self.sites] for honest in self.opened]
        rank = numpy.linalg.matrix_rank(rows) if rows else 0
        units = numpy.eye(len(self.sites)).tolist()
        ranks = [numpy.linalg.matrix_rank([*rows, unit]) for unit in units]
        return [name for name, more in zip(self.sites, ranks, strict=True) if more == rank]


@pytest.mark.parametrize(
    ("known", "least", "count"),
    [
        *((1, None, 2), (2, None, 2), (3, None, 3), (4, None, 3), (5, None, 4), (10, None, 7), (100, None, 67)),
        *((100, 2, 2), (100, 1, 2), (3, 5, 5)),
    ],
)
def test_a_sum_has_two_thirds_of_the_sites_that_one_knows(known: int, least: int | None, count: int) -> None:
    assert fewest(known - 1, least) == count


@pytest.mark.parametrize(
    ("asked", "colluding", "sites"),
    [
        ((2,), 0, 0),
        ((0, 0), 0, 2),
        ((2, 2, 4), 0, 2),  # who asks for four is in no sum of three
        ((3, 3, 4, 5), 0, 0),  # nor two who ask for three in one of two
        ((3, 3, 3), 2, 3),
        ((2, 2, 2), 2, 0),  # two open a sum of three, and their noise is known
        ((0, 0, 0, 0), 2, 4),
    ],
)
def test_sites_that_can_open_a_sum(asked: tuple[int, ...], colluding: int, sites: int) -> None:
    fewest = {f"s{k}": least for k, least in enumerate(asked)}
    assert able(fewest, colluding) == {f"s{k}" for k in range(sites)}


def test_one_site_of_a_hundred_opens_no_other() -> None:
    names = [f"s{k:03d}" for k in range(100)]
    server = Server(names, {"s099"}, None)
    with pytest.raises(Refused, match="few_sites: 2 sites, the contract and the threshold ask for 67"):
        server.mask(0, ["s000", "s099"], 2)


def test_two_sets_with_and_without_a_site_are_not_both_opened() -> None:
    """Two thirds of the smallest set would open it: one honest site with three of the server's."""
    names = list("abcdef")
    attack = Server(names, "def", 5)
    with pytest.raises(Refused, match="threshold: 4 of 6 sites open a sum, 5 are needed"):
        attack.mask(0, names, 4)
    attack = Server(names, "def", 5)
    attack.open(attack.mask(0, names, 5), "ab", 5)
    with pytest.raises(Refused, match="few_sites: 4 sites"):
        attack.mask(1, "cdef", 5)
    assert (attack.opened, attack.alone) == ([{"a", "b", "c"}], [])


@pytest.mark.parametrize("trials", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_sets_single_out_a_site_with_two_colluding_fewer_than_the_fewest(trials: int) -> None:
    sums, singled = 0, 0
    for trial in range(trials):
        luck = random.Random(trial)
        names = [f"s{k}" for k in range(luck.randint(3, 7))]
        least = luck.choice([None, *range(3, len(names) + 1)])
        needed = fewest(len(names) - 1, least)
        count = needed - 2 + trial % 2  # one more than that is enough
        server = Server(names, luck.sample(names, count), least)
        _name_any_sets(server, needed, luck)
        sums += len(server.opened) > 1
        assert trial % 2 or not server.alone, (trial, server)
        singled += bool(server.alone)
    assert sums > trials // 8
    assert singled > trials // 8


def _name_any_sets(server: Server, needed: int, luck: random.Random) -> None:
    for session in range(4):
        left = [name for name, site in server.sites.items() if site.given is None]
        for name in luck.sample(left, len(left)):  # a set that is not formed costs its sites the session
            if server.sites[name].session == session:
                continue
            here = [n for n in left if server.sites[n].session < session and server.sites[n].given is None]
            some = luck.sample(here, luck.randint(1, len(here)))
            members = sorted({*some, *server.colluding})
            threshold = max(needed, threshold_of(len(members)))
            try:
                letters = server.mask(session, members, threshold)
            except Refused:
                break
            answering = some[: max(1, threshold - len(server.colluding))]
            server.open(letters, answering, threshold)
