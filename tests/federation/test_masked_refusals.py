"""A site refuses every letter of a masked sum that could open more than one sum of enough sites, and says why."""

from __future__ import annotations

import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from desk_line import SITES, DeskLine, Killed, desk_of
from parties import OPEN
from test_masked_kills import served

from rondo.engine.wire import masked
from rondo.engine.wire.letters import Reply, Request
from rondo.engine.wire.parcel import version
from rondo.engine.wire.strict import Rejected
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.identity.peers import Voice
from rondo.federation.letter import SUMS
from rondo.federation.plan import Consent
from rondo.federation.site.audit.account import account
from rondo.federation.site.audit.audit import Audit, lines
from rondo.federation.site.sum_state import SumState
from rondo.federation.site.sums import Sums
from rondo.privacy.masking import masks
from rondo.privacy.masking.session import Named, Ready, Sent, Unmask
from watched import failing

SECRET = b"\1" * 32
"""The private key of every other site's letters."""


@dataclass
class Server:
    """Everything that a server of bob's site could write, which has trained in round 0."""

    sums: Sums
    voices: dict[str, Voice]

    def again(self) -> Server:
        """After the site was killed."""
        return replace(self, sums=replace(self.sums, _attempt=None, _loaded=False))

    def asked(self, **changes: object) -> masked.AskReady:
        """The letter of an honest server, with ``changes``."""
        honest = masked.AskReady(self.sums.run, 0, 0, 2, 100.0, ("bob",))
        return replace(honest, **changes)  # type: ignore[arg-type]

    def ready(self, **changes: object) -> Ready:
        return masked.decode_ready(self.sums.answer("ready", self.asked(**changes).encode()), "south")

    def other(self, site: str, like: Ready, *, signed: str | None = None, **changes: object) -> Ready:
        """The letter of another site, signed by itself unless another is named."""
        letter = replace(like, site=site, key=masks.public_key(SECRET))
        letter = replace(letter, **changes)  # type: ignore[arg-type]
        return replace(letter, signature=self.voices[signed or site].sign(letter.text()))

    def named(self, own: Ready, **changes: object) -> tuple[Ready, ...]:
        """The honest set of three; ``changes`` to west's letter."""
        return self.other("north", own), own, self.other("west", own, **changes)  # type: ignore[arg-type]

    def masked(self, members: tuple[Ready, ...], session: int = 0, **where: object) -> Sent:
        asked = masked.AskMasked(self.sums.run, 0, Named(session, members))
        data = self.sums.answer("masked", replace(asked, **where).encode())  # type: ignore[arg-type]
        numbers = (len(data) - 8 - int.from_bytes(data[:8], "little") - 49 * (len(members) - 1)) // 4
        return masked.decode_sent(data, "south", [m.site for m in members], max(0, numbers), 32)

    def sealed(self, members: tuple[Ready, ...], sites: tuple[str, ...] = ("north", "west")) -> Unmask:
        """The shares of 33 zeros from the other sites, sealed for the site."""
        own = next(m for m in members if m.site == "south")
        context = masks.digest(
            "rondo session 1", own.terms.hex(), own.session, [(m.site, m.key.hex()) for m in members]
        )
        shares = {}
        for site in sites:
            key = masks.agreed(SECRET, own.key, f"share {site!r} to 'south'", context)
            shares[site] = masks.seal(key, bytes(33), context)
        return Unmask(own.session, tuple(m.site for m in members), shares)

    def unmask(self, letter: Unmask, **where: object) -> bytes:
        asked = replace(masked.AskShares(self.sums.run, 0, letter), **where)  # type: ignore[arg-type]
        data = self.sums.answer("unmask", asked.encode("south"))
        masked.decode_shares(data, "south", letter.members)
        return data


@contextmanager
def refused(reason: str) -> Iterator[None]:
    """Within, a letter is refused for a reason that has these words, whatever their quotes."""
    with pytest.raises(Rejected) as error:
        yield
    words = str(error.value).replace('"', "").replace("'", "")
    assert words.startswith(f"refused: {reason}"), words


@pytest.fixture(scope="module")
def trained(place: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sums, dict[str, bytes]]:
    """The state of bob's site after it has trained, before it was asked for a key; and the letters to it."""
    folder = tmp_path_factory.mktemp("trained")

    def strike(site: str, kind: str, moment: str) -> None:
        if kind == "ready":
            raise Killed

    line = DeskLine(place, folder, strike)
    with pytest.raises(Killed):
        served(place, line, folder / "run")
    sums = line._desks["south"]._sums
    assert sums is not None
    letters = {kind: letter for site, kind, letter, _ in line.heard if site == "south"}
    return folder / "at-south", sums, letters


@pytest.fixture
def server(place: Path, trained: tuple[Path, Sums, dict[str, bytes]], tmp_path: Path) -> Iterator[Server]:
    state, sums, _ = trained
    shutil.copytree(state, tmp_path / "state")
    folder = tmp_path / "state" / sums.folder.name
    voices = {site: Voice.of(SiteKeys.read(place / "keys" / site)) for site in SITES}
    assert None not in voices.values()
    sums = replace(sums, folder=folder, audit=Audit(tmp_path / "state" / "letters.jsonl"), _attempt=None, _loaded=False)
    yield Server(sums, voices)  # type: ignore[arg-type]
    assert [line.number for line in lines(tmp_path / "state" / "letters.jsonl") if not line.linked] == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": "another"}, "wrong_run: another, this is"),
        ({"attempt": 1}, "wrong_client: bob has not trained in this round here"),
        ({"clients": ("ann",)}, "wrong_client: ann has not trained"),
        ({"clients": ("../bob",)}, "wrong_client: ../bob has not trained"),
        ({"clients": ("bob", "bob")}, "wrong_client: a client is named twice"),
        ({"largest": 1.5}, "wrong_weight: 1.5 is the largest, and a client here weighs more"),
        ({"session": 4}, "unreadable: unreadable: the header: session should be a number below 4, got 4"),
    ],
)
def test_no_key_for_what_the_site_has_not_done(server: Server, change: dict[str, object], reason: str) -> None:
    with refused(reason):
        server.ready(**change)
    assert server.ready().session == 0


WRONG_SETS: dict[str, Callable[[Server, Ready], tuple[Ready, ...]]] = {
    "wrong_set: it lacks this site": lambda s, own: (s.other("north", own), s.other("west", own)),
    "wrong_set: it lacks this site, or has another key of it": lambda s, own: (
        s.other("north", own),
        replace(own, key=masks.public_key(SECRET)),
        s.other("west", own),
    ),
    "wrong_set: its sites are not in order": lambda s, own: (own, s.other("north", own)),
    "wrong_peer: east is not among the peers": lambda s, own: (s.other("east", own, signed="west"), *s.named(own)),
    "wrong_signature: west has not signed this key": lambda s, own: s.named(own, signed="north"),
    "wrong_plan: west has agreed to other terms": lambda s, own: s.named(own, terms=bytes(32)),
    "few_sites: 1 sites, the contract and the threshold ask for 2": lambda s, own: (own,),
}


@pytest.mark.parametrize("reason", WRONG_SETS)
def test_no_vector_for_a_wrong_set(server: Server, reason: str) -> None:
    own = server.ready()
    with refused(reason):
        server.masked(WRONG_SETS[reason](server, own))
    assert server.masked(server.named(own)).sealed.keys() == {"north", "west"}


def test_no_vector_for_fewer_sites_than_the_contract_asks_for(server: Server) -> None:
    server.sums.least = 3
    own = server.ready()
    with refused("few_sites: 2 sites, the contract and the threshold ask for 3"):
        server.masked((server.other("north", own), own))


def test_no_vector_where_too_few_sites_could_open_it(server: Server) -> None:
    own = server.ready(threshold=1)
    with refused("threshold: 1 of 3 sites open a sum, 2 are needed"):
        server.masked(server.named(own))


def test_no_vector_of_another_model_than_the_key_was_for(
    place: Path, trained: tuple[Path, Sums, dict[str, bytes]], tmp_path: Path
) -> None:
    """The others would have signed the model of the first training."""
    desk = desk_of(place, tmp_path, "south", print)
    desk.answer("plan", trained[2]["plan"])
    assert Reply.decode(desk.answer("round", trained[2]["round"])) == Reply()
    assert desk._sums is not None
    voices = {site: Voice.of(SiteKeys.read(place / "keys" / site)) for site in SITES}
    server = Server(desk._sums, voices)  # type: ignore[arg-type]
    members = server.named(server.ready())
    request = Request.decode(trained[2]["round"])
    zeros = {name: torch.zeros_like(tensor) for name, tensor in desk.parties["bob"].holdings.params.items()}
    parcel = replace(request.parcel, params=zeros, versions={name: version(t) for name, t in zeros.items()})
    assert Reply.decode(desk.answer("round", replace(request, parcel=parcel).encode())) == Reply()
    with refused("wrong_plan: a client has trained other tensors, or another model, since"):
        server.masked(members)


def test_no_vector_of_another_session_or_round(server: Server) -> None:
    own = server.ready()
    for changes, reason in (
        ({"session": 1}, "wrong_session"),
        ({"attempt": 1}, "wrong_round"),
        ({"run": "x"}, "wrong_run"),
    ):
        with refused(reason):
            server.masked(server.named(own), **changes)  # type: ignore[arg-type]


def test_one_set_in_a_session(server: Server) -> None:
    own = server.ready()
    members = server.named(own)
    first = server.masked(members)
    assert server.again().masked(members).vector.tolist() == first.vector.tolist()
    with refused("wrong_set: session 0 has another set already"):
        server.again().masked((server.other("north", own), own))


def test_one_sum_of_a_round_whatever_happens(server: Server) -> None:
    own = server.ready()
    members = server.named(own)
    with refused("wrong_session: 0, it has masked for 0"):
        server.unmask(server.sealed(members))
    server.masked(members)
    letter = server.sealed(members)
    for wrong, reason in (
        (replace(letter, members=("north", "south"), sealed={"north": letter.sealed["north"]}), "wrong_set"),
        (replace(letter, session=1), "wrong_session"),
        (replace(letter, sealed={**letter.sealed, "west": letter.sealed["north"]}), "wrong_share: west: "),
    ):
        with refused(reason):
            server.unmask(wrong)
    opened = server.unmask(letter)
    for after in (server, server.again()):  # the same once more, after a crash too; another never
        assert after.unmask(letter) == opened
        with refused("repeated: a sum of this attempt was opened already"):
            after.unmask(replace(letter, sealed={**letter.sealed, "west": letter.sealed["north"]}))
        with refused("opened: a sum of this attempt was opened already"):
            after.ready(session=1)
        with refused("opened: a sum of this attempt was opened already"):
            after.masked(members)


def test_no_sum_of_an_earlier_round(server: Server) -> None:
    """A server that goes back would have another sum of a round that may have been opened."""
    own = server.ready()
    server.masked(server.named(own))
    state = SumState(server.sums.folder, "south")
    first = state.learned("bob")
    assert first is not None
    state.keep(replace(first, attempt=1))
    assert server.ready(attempt=1).session == 0
    state.keep(first)
    for after in (server, server.again()):
        with refused("wrong_round: 0, this site is in 1"):
            after.ready()
        with refused("wrong_round: 0, this site has no key in it"):
            after.masked(server.named(own))


def test_next_set_of_a_round_needs_new_keys_and_no_smaller_threshold(server: Server) -> None:
    own = server.ready()
    sent = server.masked(server.named(own))
    with refused("threshold: 1, an earlier set of this attempt had 2"):
        server.ready(session=1, threshold=1)
    server = server.again()
    later = server.ready(session=1)
    assert later.key != own.key
    with refused("wrong_session"):
        server.unmask(server.sealed(server.named(own)))
    again = server.masked(server.named(later), session=1)
    assert again.vector.tolist() != sent.vector.tolist()


@pytest.mark.parametrize("kind", SUMS)
def test_nothing_leaves_that_is_not_on_the_disk(server: Server, kind: str) -> None:
    own = server.ready()
    members = server.named(own)
    letter = server.sealed(members)
    if kind == "unmask":
        server.masked(members)
    asks: dict[str, Callable[[], object]] = {
        "ready": lambda: server.ready(session=1),
        "masked": lambda: server.masked(members),
        "unmask": lambda: server.unmask(letter),
    }
    full = OSError(28, "No space left on device")
    with failing(SumState, "save", full), pytest.raises(OSError, match="No space left"):
        asks[kind]()
    asks[kind]()


def test_damaged_state_opens_nothing(server: Server) -> None:
    server.ready()
    file = server.sums.folder / "sum.session"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with refused("damaged: sum.session is not as it was written"):
        server.again().ready(session=1)


def test_files_can_be_read_by_their_owner_alone(server: Server) -> None:
    server.masked(server.named(server.ready()))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in server.sums.folder.iterdir()}
    assert {name: mode for name, mode in modes.items() if name in ("sum.session", "bob.change")} == {
        "sum.session": 0o600,
        "bob.change": 0o600,
    }


def test_change_of_a_client_is_deleted_once_it_is_in_a_sum(server: Server) -> None:
    own = server.ready()
    server.masked(server.named(own))
    assert (server.sums.folder / "bob.change").exists()
    server.unmask(server.sealed(server.named(own)))
    assert not (server.sums.folder / "bob.change").exists()
    assert SECRET not in (server.sums.folder / "sum.session").read_bytes()


def test_account_tells_of_masked_vectors_and_opened_sums(server: Server) -> None:
    own = server.ready()
    members = server.named(own)
    server.masked(members)
    before = list(account(lines(server.sums.audit.path)))
    server.unmask(server.sealed(members))
    server.unmask(server.sealed(members))
    after = list(account(lines(server.sums.audit.path)))
    assert [line for line in before if "masked" in line or "sums" in line] == ["  1 masked vectors (1.4 kB) of bob"]
    assert "    of which 1 in sums that were opened, each of 3 sites at least" in after


def test_plan_is_refused_by_a_site_that_knows_too_few_peers(
    place: Path, trained: tuple[Path, Sums, dict[str, bytes]], tmp_path: Path
) -> None:
    for least, voice, allowed in (
        (
            2,
            False,
            "none before peers.json is taken in: rondo federate site peers peers.json, then start the client again",
        ),
        (4, True, "sums of 4 sites at least (training.least_sites), with 2 others in peers.json"),
    ):
        contract = OPEN.model_copy(update={"training": OPEN.training.model_copy(update={"least_sites": least})})
        desk = desk_of(place, tmp_path / str(least), "south", print, contract)
        desk.joining = replace(desk.joining, voice=desk.voice if voice else None)
        consent = Consent.decode(desk.answer("plan", trained[2]["plan"]))
        words = consent.refused.replace("'", "")
        assert words == f"masked sum: of the sites that are ready, and its owner allows {allowed}"


@pytest.mark.parametrize("kind", SUMS)
def test_bytes_that_are_no_letter(server: Server, kind: str) -> None:
    draw = random.Random(0)
    for junk in (b"", b"x" * 100, draw.randbytes(1000), (2).to_bytes(8, "little") + b"{}", bytes(masked.LARGEST + 1)):
        with refused("unreadable: "):
            masked.decode_ready(server.sums.answer(kind, junk), "south")
    assert server.ready().session == 0


def test_answer_beyond_the_contract_does_not_leave(server: Server) -> None:
    own = server.ready()
    server.sums.largest = 1000.0
    with refused("too_large: its answer has more than the 0.001 MB of its contract"):
        server.masked(server.named(own))


def test_run_with_masks_tells_no_scores_and_counts_its_trainings(
    place: Path, trained: tuple[Path, Sums, dict[str, bytes]], tmp_path: Path
) -> None:
    _, _, letters = trained
    contract = OPEN.model_copy(update={"outgoing": OPEN.outgoing.model_copy(update={"uploads_per_day": 1})})
    desk = desk_of(place, tmp_path, "south", print, contract)
    assert Consent.decode(desk.answer("plan", letters["plan"])).refused == ""
    scores = replace(Request.decode(letters["round"]), scores=True)
    reply = Reply.decode(desk.answer("round", scores.encode()))
    assert (reply.reason, reply.scores) == ("refused", None)
    assert reply.detail == "its uploads are masked, so no scores of single clients leave"
    assert Reply.decode(desk.answer("round", letters["round"])) == Reply()  # it has trained, and tells no loss
    again = Reply.decode(desk.answer("round", letters["round"]))
    assert again.detail == "1 uploads have left it today, as many as its owner allows"
    kinds = [line.entry["kind"] for line in lines(tmp_path / "at-south" / "letters.jsonl") if line.entry is not None]
    assert kinds == ["plan", "consent", "scores asked", "reason", "work", "trained", "work", "reason"]


def test_weight_that_a_server_makes_up_is_refused(
    place: Path, trained: tuple[Path, Sums, dict[str, bytes]], tmp_path: Path
) -> None:
    _, _, letters = trained
    desk = desk_of(place, tmp_path, "south", print)
    desk.answer("plan", letters["plan"])
    request = Request.decode(letters["round"])
    request = replace(request, client=replace(request.client, num_examples=1))
    reply = Reply.decode(desk.answer("round", request.encode()))
    assert reply.detail == "its upload would have a weight that is not its number of examples, nor 1"


def test_letter_that_was_not_fetched_is_refused(place: Path, tmp_path: Path) -> None:
    desk = desk_of(place, tmp_path, "south", print)
    with refused("too_large: a letter of more than 5 bytes"):
        masked.decode_ready(desk.refused("masked", "a letter of more than 5 bytes"), "south")


def test_desk_of_a_run_without_masks_opens_nothing(place: Path, tmp_path: Path) -> None:
    desk = desk_of(place, tmp_path, "south", print)
    for kind in SUMS:
        with refused("wrong_run: no run of this site masks its uploads"):
            masked.decode_ready(desk.answer(kind, b"anything"), "south")
