"""Sites in the roster by their requests: read as from anybody, added in one step, also by several commands at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import unicodedata
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from rondo.errors import ConfigError
from rondo.federation.identity import enrolment, files, keys
from rondo.federation.identity.roster import Enrolled, Roster, alike, read_request, request_of
from rondo.records import durable


def pem(key: Any) -> str:
    public = key.public_key()
    content = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return str(content.decode())


def private_pem(key: Any, form: Any = serialization.PrivateFormat.PKCS8) -> str:
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return str(content.decode())


SECRET = ec.generate_private_key(ec.SECP384R1())
KEYS = [pem(ec.generate_private_key(ec.SECP384R1())) for _ in range(4)]
ANNA = Enrolled("st-anna", KEYS[0], ("st-anna",))
MARY = Enrolled("st-mary", KEYS[1], ("ward-1", "ward-2"))


def in_days(days: int) -> date:
    return (datetime.now(UTC) + timedelta(days=days)).date()


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A server's folder of keys, without sites."""
    keys.make(["localhost"], [], tmp_path / "keys", days=825, clients={})
    return tmp_path / "keys" / "server"


@pytest.fixture
def sent(tmp_path: Path) -> Callable[[Enrolled], Path]:
    """Writes the request of a site."""

    def sent(site: Enrolled) -> Path:
        path = tmp_path / f"{len(list(tmp_path.glob('*.json')))}.json"
        path.write_bytes(request_of(site))
        return path

    return sent


def roster(server: Path) -> tuple[Enrolled, ...]:
    return Roster.read(server / "roster.json").sites


def fault(server: Path, change: Callable[[], object]) -> str:
    """The one line about a change, which changed nothing."""
    before = {path: path.read_bytes() for path in server.iterdir()}
    with pytest.raises(ConfigError) as error:
        change()
    (problem,) = error.value.problems
    assert "\n" not in str(problem)
    assert {path: path.read_bytes() for path in server.iterdir()} == before
    return str(problem)


# --- a site's way --------------------------------------------------------------------------------------------------


def test_site_is_added_renewed_extended_and_revoked(server: Path, sent: Callable[[Enrolled], Path]) -> None:
    assert enrolment.add(server, sent(ANNA), days=10) == Enrolled("st-anna", KEYS[0], ("st-anna",), in_days(10))
    enrolment.add(server, sent(MARY), days=20)
    assert roster(server) == (
        Enrolled("st-anna", KEYS[0], ("st-anna",), in_days(10)),
        Enrolled("st-mary", KEYS[1], ("ward-1", "ward-2"), in_days(20)),
    )
    old, new = enrolment.renew(server, sent(Enrolled("st-anna", KEYS[2], ("st-anna",))), days=30)
    assert (old.public_key, new.public_key, new.expires) == (KEYS[0], KEYS[2], in_days(30))
    assert [site.name for site in roster(server)] == ["st-anna", "st-mary"]
    old, new = enrolment.extend(server, "st-mary", days=40)
    assert (old.expires, new.expires) == (in_days(20), in_days(40))
    enrolment.revoke(server, "st-mary")
    assert roster(server) == (
        Enrolled("st-anna", KEYS[2], ("st-anna",), in_days(30)),
        Enrolled("st-mary", KEYS[1], ("ward-1", "ward-2"), in_days(40), revoked=True),
    )


def test_revoked_site_comes_back_by_another_key_alone(server: Path, sent: Callable[[Enrolled], Path]) -> None:
    enrolment.add(server, sent(MARY), days=10)
    enrolment.revoke(server, "st-mary")
    path = sent(MARY)
    message = fault(server, lambda: enrolment.add(server, path, days=10))
    assert "the site 'st-mary' is there already; for a new key of it: rondo federate sites renew REQUEST" in message
    message = fault(server, lambda: enrolment.renew(server, path, days=10))
    assert "the key that 'st-mary' has already; it is revoked, so the site makes another" in message
    message = fault(server, lambda: enrolment.extend(server, "st-mary", days=100))
    assert message.startswith("SITE: the key of 'st-mary' is revoked: it needs a new one (rondo federate sites renew")
    old, new = enrolment.renew(server, sent(Enrolled("st-mary", KEYS[3], ("ward-1", "ward-3"))), days=10)
    assert (old.revoked, new.revoked) == (True, False)
    assert roster(server) == (Enrolled("st-mary", KEYS[3], ("ward-1", "ward-3"), in_days(10)),)


def test_renewal_of_an_unknown_site_or_by_its_own_key(server: Path, sent: Callable[[Enrolled], Path]) -> None:
    path = sent(ANNA)
    message = fault(server, lambda: enrolment.renew(server, path, days=10))
    assert message.endswith("there are: none; rondo federate sites add REQUEST adds one")
    enrolment.add(server, path, days=10)
    message = fault(server, lambda: enrolment.renew(server, path, days=20))
    assert message.endswith("for a longer validity: rondo federate sites extend st-anna")
    other = sent(Enrolled("st-ana", KEYS[2], ("st-anna",)))
    assert "did you mean 'st-anna'?" in fault(server, lambda: enrolment.renew(server, other, days=10))


@pytest.mark.parametrize("days", [1, 10])
def test_validity_is_not_made_shorter(server: Path, sent: Callable[[Enrolled], Path], days: int) -> None:
    enrolment.add(server, sent(ANNA), days=10)
    message = fault(server, lambda: enrolment.extend(server, "st-anna", days=days))
    assert message.startswith(f"--days: the key of 'st-anna' is valid until {in_days(10)} already; name more days")


def test_validity_without_end_is_not_extended(server: Path) -> None:
    Roster((ANNA,)).write(server / "roster.json")
    message = fault(server, lambda: enrolment.extend(server, "st-anna", days=10))
    assert message.startswith("--days: the key of 'st-anna' is valid without end already")


# --- names, clients and keys of others -----------------------------------------------------------------------------

DECOMPOSED, COMPOSED = unicodedata.normalize("NFD", "Zürich"), unicodedata.normalize("NFC", "Zürich")


@pytest.mark.parametrize(
    ("site", "field", "message"),
    [
        (
            Enrolled("ST-Anna", KEYS[3], ("x",)),
            "name",
            "'ST-Anna' is there already except for case or Unicode form ('st-anna')",
        ),
        (
            Enrolled(DECOMPOSED, KEYS[3], ("x",)),
            "name",
            f"is there already except for case or Unicode form ({COMPOSED!r})",
        ),
        (Enrolled("Strasse", KEYS[3], ("x",)), "name", "is there already except for case or Unicode form ('straße')"),
        (
            Enrolled("s\N{FULLWIDTH LATIN SMALL LETTER T}-anna", KEYS[3], ("x",)),
            "name",
            "except for case or Unicode form",
        ),
        (
            Enrolled("x", KEYS[3], ("WARD-2",)),
            "clients",
            "'WARD-2' is there already except for case or Unicode form ('ward-2')",
        ),
        (
            Enrolled("x", KEYS[3], ("ward-2",)),
            "clients",
            "'ward-2' is there already, at the site 'st-mary'; have the site",
        ),
        (
            Enrolled("x", KEYS[1], ("x",)),
            "public_key",
            "this key is there already, at the site 'st-mary'; have the site",
        ),
    ],
    ids=["case", "Unicode form", "folded", "width", "client's case", "client", "key"],
)
@pytest.mark.parametrize("renewed", [False, True])
def test_names_clients_and_keys_of_others(
    server: Path, sent: Callable[[Enrolled], Path], site: Enrolled, field: str, message: str, renewed: bool
) -> None:
    others = (ANNA, MARY, Enrolled(COMPOSED, KEYS[2], ("c",)), Enrolled("straße", pem(SECRET), ("d",)))
    own = Enrolled(site.name, pem(ec.generate_private_key(ec.SECP256R1())), ("own",))
    if renewed and field == "name":
        Roster(others).write(server / "roster.json")
        path = sent(site)
        assert "no site" in fault(server, lambda: enrolment.renew(server, path, days=10))
        return
    Roster((*others, own) if renewed else others).write(server / "roster.json")
    path = sent(site)
    change = enrolment.renew if renewed else enrolment.add
    told = fault(server, lambda: change(server, path, days=10))
    assert told.startswith(f"{path}.{field}: ")
    assert message in told


@pytest.mark.slow
@given(st.text(max_size=6))
def test_alike_is_one_text_for_every_form_and_case(name: str) -> None:
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert alike(unicodedata.normalize(form, name)) == alike(name)  # type: ignore[arg-type]
    assert alike(name.casefold()) == alike(name)
    assert alike(alike(name)) == alike(name)


# --- requests from anybody -----------------------------------------------------------------------------------------


def changed(**fields: Any) -> bytes:
    tree = {"name": "x", "public_key": KEYS[0], "clients": ["x"], **fields}
    return json.dumps({key: value for key, value in tree.items() if value is not None}).encode()


SENT_AWAY = ": holds a private key, which should never leave its site: anybody with it can upload as that site. Delete"
HOSTILE: list[tuple[bytes, str]] = [
    (b"", ": the file is not JSON: "),
    (b"\xff\xfe", ": the file is not JSON: "),
    (b"{" * 100_000, ": the file is not JSON: "),
    (b"[" * 100_000, ": the file is not JSON: "),
    (b'{"name":' * 30_000, ": the file is not JSON: "),
    (b" " * (2**18 + 1), ": 256 KiB, too large; "),
    (b"1" * 10_000, ": the file is not JSON: "),
    (b"[]", ": the file is not a JSON object {...}; have the site send its request again, as it is"),
    (b'{"name": "x", "name": "y"}', ": 'name' is there 2 times in the file; have the site send its request"),
    (b'{"a": {"b": 1, "b": 2}}', ": 'b' is there 2 times in the file; "),
    (b'{"a": Infinity}', ": the file is not JSON: Infinity is not JSON; "),
    (KEYS[0].encode(), ": the file is not JSON: "),
    (changed(name=None), ": 'name' is missing; "),
    (changed(clients=None), ": 'clients' is missing; "),
    (changed(public_key=None), ": 'public_key' is missing; "),
    (changed(revoked=False), ": unknown key 'revoked'; "),
    (changed(expires="2999-01-01"), ": unknown key 'expires'; "),
    (json.dumps({"\ud800": 1}).encode(), ": unknown key '\\ud800'; "),
    (json.dumps({"k" * 200_000: 1}).encode(), f": unknown key '{'k' * 80}'...; "),
    (changed(name="\ud800"), ".name: '\\ud800' should be a name without control characters"),
    (changed(name="a\x1b[2J"), ".name: 'a\\x1b[2J' should be a name without control characters"),
    (changed(name="a\N{RIGHT-TO-LEFT OVERRIDE}b"), ".name: 'a\\u202eb' should be a name without control characters"),
    (changed(name="../../etc"), ".name: '../../etc' is used as a folder's name"),
    (changed(name="/etc/passwd"), ".name: '/etc/passwd' is used as a folder's name"),
    (changed(name="C:\\x"), ".name: 'C:\\\\x' is used as a folder's name"),
    (changed(name="server"), ".name: 'server' is the name of a folder of the server's owner"),
    (changed(name=""), ".name: '' should be a name"),
    (changed(name="n" * 100_000), f".name: '{'n' * 80}'... is longer than 128 bytes; choose a shorter one"),
    (changed(name={"a": [1] * 1000}), ".name: should be a text in quotes, got "),
    (changed(clients="x"), ".clients: should be a list [...], got 'x'"),
    (changed(clients=[]), ".clients: is empty; name at least one"),
    (changed(clients=["a", "\ud800"]), ".clients.1: should be a text in quotes without control characters"),
    (changed(clients=["a", "A"]), ".clients: 'A' is there already except for case or Unicode form ('a')"),
    (
        changed(clients=["a", "a"]),
        ".clients: 'a' is there already, at the site 'x'; have the site name each client once",
    ),
    (changed(public_key=""), ".public_key: not a public key in PEM"),
    (changed(public_key=KEYS[0][:80]), ".public_key: not a public key in PEM"),
    (
        changed(public_key=pem(ec.generate_private_key(ec.SECP256K1()))),
        ".public_key: not a key on an elliptic curve of",
    ),
    (
        changed(public_key=pem(ec.generate_private_key(ec.SECP224R1()))),
        ".public_key: not a key on an elliptic curve of",
    ),
    (changed(public_key=pem(ed25519.Ed25519PrivateKey.generate())), ".public_key: not a key on an elliptic curve of"),
    (changed(public_key=pem(rsa.generate_private_key(65537, 2048))), ".public_key: not a key on an elliptic curve of"),
    (changed(public_key=private_pem(SECRET)), SENT_AWAY),
    (changed(public_key=private_pem(SECRET, serialization.PrivateFormat.TraditionalOpenSSL)), SENT_AWAY),
    (private_pem(SECRET).encode(), SENT_AWAY),
    (changed(private_key=private_pem(SECRET)), SENT_AWAY),
    (keys.about("x", ["x"], "fed.example.org"), ": a site's site.json, not its request: NAME.request.json beside it"),
]


@pytest.mark.parametrize(("content", "message"), HOSTILE, ids=[f"{i}" for i in range(len(HOSTILE))])
@pytest.mark.parametrize("change", [enrolment.add, enrolment.renew])
def test_hostile_request(server: Path, tmp_path: Path, change: Any, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    told = fault(server, lambda: change(server, path, days=10))
    assert told.startswith(f"{path}{message}")
    assert len(told) < 1000


def test_deep_request_at_every_depth(tmp_path: Path) -> None:
    """What the stack just holds is parsed, and the beginning of it printed."""
    path, parsed = tmp_path / "x.json", set()
    for depth in range(sys.getrecursionlimit() - 200, sys.getrecursionlimit()):
        path.write_text('{"name": ' + "[" * depth + "]" * depth + "}")
        with pytest.raises(ConfigError) as error:
            read_request(path)
        parsed.add("is not JSON" not in str(error.value))
    assert parsed == {True, False}


def test_request_with_many_keys_twice_is_read_in_no_time(tmp_path: Path) -> None:
    """Compared pairwise, these keys would take minutes."""
    path = tmp_path / "x.json"
    path.write_text("{" + ",".join(f'"{i % 18_000}":1' for i in range(18_001)) + "}")
    with pytest.raises(ConfigError, match="'0' is there 2 times"):
        read_request(path)


@pytest.mark.parametrize("text", [b"\xef\xbb\xbf%s", b"\n\n%s\n"], ids=["byte order mark", "blank lines"])
def test_request_that_mail_has_touched(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text % request_of(MARY).replace(b"\n", b"\r\n"))
    assert read_request(path) == MARY


def test_request_that_is_no_file(server: Path, tmp_path: Path) -> None:
    none, folder, pipe = tmp_path / "none.json", tmp_path / "folder", tmp_path / "pipe"
    folder.mkdir()
    os.mkfifo(pipe)
    for path, message in (
        (none, f"REQUEST: no such file: {str(none)!r}; mend the path"),
        (folder, f"{folder}: this is a folder"),
        (pipe, f"{pipe}: a pipe or a device, not a file"),
    ):
        assert fault(server, lambda path=path: enrolment.add(server, path, days=10)).startswith(message)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from(KEYS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "public_key", "clients", "x"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(JSON | st.fixed_dictionaries({"name": st.text(), "public_key": st.sampled_from(KEYS), "clients": JSON}))
def test_any_json_is_a_request_or_one_fault(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    path = tmp_path_factory.mktemp("any") / "x.json"
    path.write_text(json.dumps(tree))
    try:
        site = read_request(path)
    except ConfigError as error:
        (problem,) = error.problems
        assert "\n" not in str(problem)
    else:
        path.write_bytes(request_of(site))
        assert read_request(path) == site


# --- one step ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_at_once_lose_no_site(server: Path, sent: Callable[[Enrolled], Path]) -> None:
    """Six processes, each of which adds three sites."""
    code = """
        import sys
        from pathlib import Path
        from rondo.federation.identity import enrolment
        sys.stdin.read()
        for path in sys.argv[2:]:
            enrolment.add(Path(sys.argv[1]), Path(path), days=10)
    """
    names = [f"site-{i}" for i in range(18)]
    paths = [str(sent(Enrolled(n, pem(ec.generate_private_key(ec.SECP256R1())), (n,)))) for n in names]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(server), *paths[i::6]],
            stdin=subprocess.PIPE,
            env=environment,
        )
        for i in range(6)
    ]
    for command in commands:
        assert command.stdin is not None
        command.stdin.close()
    for command in commands:
        assert command.wait(timeout=120) == 0
    assert sorted(site.name for site in roster(server)) == sorted(names)


def test_command_waits_for_another_and_gives_up(
    server: Path, sent: Callable[[Enrolled], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = sent(ANNA), threading.Event()
    waiting = threading.Thread(target=lambda: (enrolment.add(server, path, days=10), done.set()))
    with durable.locked(server) as is_alone:
        assert is_alone
        waiting.start()
        assert not done.wait(0.5)
        assert roster(server) == ()
    waiting.join(30)
    assert done.is_set()
    monkeypatch.setattr(files, "_LOCK_WAIT", 0.2)
    with durable.locked(server):
        message = fault(server, lambda: enrolment.revoke(server, "st-anna"))
    assert message == f"{server}: is being changed by another command: wait until it is done, then try again"


def test_roster_is_the_old_or_the_new_one_wherever_it_ends(
    server: Path, sent: Callable[[Enrolled], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies, or a disk that is full, before each step of a write."""
    enrolment.add(server, sent(ANNA), days=10)
    path, before, steps = sent(MARY), (server / "roster.json").read_bytes(), 0
    for kind in (KeyboardInterrupt(), OSError(28, "No space left on device")):
        for name in ("open", "write", "fsync", "replace"):
            with monkeypatch.context() as patch:
                real = getattr(os, name)

                def failing(*arguments: Any, real: Any = real, kind: BaseException = kind, **rest: Any) -> Any:
                    # The lock opens the folder, to read.
                    if real.__name__ == "open" and arguments[1] == os.O_RDONLY:
                        return real(*arguments, **rest)
                    raise kind

                patch.setattr(os, name, failing)
                with pytest.raises((KeyboardInterrupt, ConfigError)) as error:
                    enrolment.add(server, path, days=10)
            steps += 1
            assert (server / "roster.json").read_bytes() == before
            if isinstance(error.value, ConfigError):
                assert "roster.json: cannot be written: No space left on device" in str(error.value)
    assert steps == 8
    (server / "roster.json.tmp").write_bytes(b"{ half")  # what a power cut left
    enrolment.add(server, path, days=10)
    assert [site.name for site in roster(server)] == ["st-anna", "st-mary"]
    assert sorted(p.name for p in server.iterdir()) == ["ca.crt", "roster.json", "server.crt", "server.key"]


@pytest.mark.parametrize("days", [0, -1, 36501])
def test_days_out_of_bounds(server: Path, sent: Callable[[Enrolled], Path], days: int) -> None:
    path = sent(ANNA)
    for change in (enrolment.add, enrolment.renew):
        message = fault(server, lambda change=change: change(server, path, days=days))
        assert message == f"--days: should be between 1 and 36500, got {days}"
    message = fault(server, lambda: enrolment.extend(server, "st-anna", days=days))
    assert message == f"--days: should be between 1 and 36500, got {days}"
