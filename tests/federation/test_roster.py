"""The roster: read strictly, written in one step, and the only word on which key signs for which clients."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from rondo.errors import ConfigError
from rondo.federation.identity.roster import Enrolled, Roster, alike, name_fault


def pem(key: Any) -> str:
    public = key.public_key()
    content = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return str(content.decode())


KEYS = [pem(ec.generate_private_key(ec.SECP384R1())) for _ in range(4)]
GOOD: dict[str, Any] = {
    "sites": [
        {"name": "st-anna", "public_key": KEYS[0]},
        {"name": "north", "public_key": KEYS[1], "clients": ["a", "b"], "expires": "2029-02-25", "revoked": False},
        {"name": "gone", "public_key": KEYS[2], "clients": ["c"], "expires": None, "revoked": True},
    ]
}
EXPECTED = Roster(
    (
        Enrolled("st-anna", KEYS[0], ("st-anna",), None, False),
        Enrolled("north", KEYS[1], ("a", "b"), date(2029, 2, 25), False),
        Enrolled("gone", KEYS[2], ("c",), None, True),
    )
)


def fault(path: Path, content: Any) -> str:
    """The message about a roster, without its heading: one line."""
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(ConfigError) as error:
        Roster.read(path)
    (problem,) = error.value.problems
    assert "\n" not in str(problem)
    assert str(problem).startswith(str(path))
    return str(problem).removeprefix(str(path))


# --- good rosters --------------------------------------------------------------------------------------------------


def test_roster_is_read_with_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "roster.json").write_text(json.dumps(GOOD))
    assert Roster.read(tmp_path / "roster.json") == EXPECTED


def test_key_counts_until_it_expires_or_is_revoked() -> None:
    def names(day: date) -> list[str]:
        return [site.name for site in EXPECTED.valid(day)]

    assert names(date(2029, 2, 25)) == ["st-anna", "north"]
    assert names(date(2029, 2, 26)) == ["st-anna"]


def test_site_is_found_by_its_key_in_any_spelling() -> None:
    for site in EXPECTED.sites:
        key = site.public_key
        for text in (key, key.strip(), key.replace("\n", "\r\n"), f"a key\n{key}"):
            assert EXPECTED.site_of(text.encode()) == site


@pytest.mark.parametrize(
    "key",
    [b"", b"\xff", b"st-anna", KEYS[3].encode(), KEYS[0][:60].encode()],
    ids=["empty", "no text", "no PEM", "another", "cut"],
)
def test_unknown_key_has_no_site(key: bytes) -> None:
    assert EXPECTED.site_of(key) is None


def test_fingerprint_is_that_of_openssl(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEYS[0])
    command = ["openssl", "pkey", "-pubin", "-in", str(tmp_path / "key"), "-outform", "DER"]
    try:
        der = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    except FileNotFoundError:
        pytest.skip("no openssl here")
    assert EXPECTED.sites[0].fingerprint == hashlib.sha256(der).hexdigest()


TEXT = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"]), min_size=1)
SITES = st.lists(
    st.tuples(TEXT.filter(lambda t: name_fault(t) is None), st.none() | st.dates(), st.booleans()),
    max_size=4,
    unique_by=lambda t: alike(t[0]),
)


@given(SITES, st.data())
def test_written_roster_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, sites: list[tuple[str, date | None, bool]], data: st.DataObject
) -> None:
    ids = iter(data.draw(st.lists(TEXT, min_size=8, max_size=8, unique_by=alike)))
    counts = [data.draw(st.integers(1, 2)) for _ in sites]
    roster = Roster(
        tuple(
            Enrolled(name, key, tuple(next(ids) for _ in range(count)), expires, revoked)
            for (name, expires, revoked), key, count in zip(sites, KEYS, counts, strict=False)
        )
    )
    path = tmp_path_factory.mktemp("roster") / "roster.json"
    roster.write(path)
    assert Roster.read(path) == roster
    assert [p.name for p in path.parent.iterdir()] == ["roster.json"]


@given(st.dates(date(2000, 1, 1), date(2100, 1, 1)), st.integers(-2, 2))
def test_last_day_counts(expires: date, days: int) -> None:
    site = Enrolled("x", KEYS[0], ("x",), expires)
    assert site.valid(expires + timedelta(days=days)) == (days <= 0)


# --- bad rosters ---------------------------------------------------------------------------------------------------


def changed(change: Callable[[list[Any]], Any]) -> Any:
    tree = copy.deepcopy(GOOD)
    change(tree["sites"])
    return tree


def with_key(key: str) -> Any:
    return changed(lambda s: s[1].update(public_key=key))


BAD: list[tuple[Any, str]] = [
    (b"", ": the file is not JSON: "),
    (b"\xff", ": the file is not JSON: "),
    (b"sites = []", ": the file is not JSON: "),
    (b"[" * 100_000, ": the file is not JSON: "),
    (b'{"sites": NaN}', ": the file is not JSON: NaN is not JSON"),
    (b'{"sites": [], "sites": []}', ": 'sites' is there 2 times in the file; mend it there"),
    (b" " * (2**24 + 1), ": 16 MiB, too large"),
    ([], ": the file is not a JSON object {...}; mend it there"),
    ({}, ": 'sites' is missing; add a list [...]"),
    ({"site": []}, ": unknown key 'site'; did you mean 'sites'?"),
    ({"sites": {}}, ".sites: should be a list [...], got {}"),
    (changed(lambda s: s.append(3)), ": sites.3: should be an object {...}, got 3"),
    (changed(lambda s: s[0].update(key="x")), ": sites.0: unknown key 'key'; "),
    (changed(lambda s: s[0].pop("name")), ": sites.0: 'name' is missing; add a text in quotes"),
    (changed(lambda s: s[0].update(name=3)), ": sites.0.name: should be a text in quotes, got 3"),
    (changed(lambda s: s[0].update(name=None)), ": sites.0.name: should be a text in quotes, got None"),
    (changed(lambda s: s[0].update(name="../x")), ": sites.0.name: '../x' is used as a folder's name"),
    (changed(lambda s: s[0].update(clients="x")), ": sites.0.clients: should be a list [...], got 'x'"),
    (changed(lambda s: s[0].update(clients=[])), ": sites.0.clients: is empty; name at least one"),
    (changed(lambda s: s[0].update(clients=["x", 3])), ": sites.0.clients.1: should be a text in quotes"),
    (changed(lambda s: s[0].update(clients=["a\n"])), ": sites.0.clients.0: should be a text in quotes"),
    (changed(lambda s: s[0].update(revoked=1)), ": sites.0.revoked: should be true or false, got 1"),
    (
        changed(lambda s: s[0].update(expires="soon")),
        ": sites.0.expires: 'soon' is not a day; write it as in 2029-02-25",
    ),
    (changed(lambda s: s[0].update(expires="20290225")), ": sites.0.expires: '20290225' is not a day"),
    (changed(lambda s: s[2].update(name="north")), ": sites.2.name: 'north' is there already, at the site 'north'"),
    (
        changed(lambda s: s[2].update(clients=["c", "b"])),
        ": sites.2.clients: 'b' is there already, at the site 'north'",
    ),
    (changed(lambda s: s[2].update(clients=["st-anna"])), ": sites.2.clients: 'st-anna' is there already"),
    (changed(lambda s: s[2].update(clients=["c", "c"])), ": sites.2.clients: 'c' is there already, at the site 'gone'"),
    (with_key(KEYS[0].replace("\n", "\r\n")), ": sites.1.public_key: this key is there already, at the site 'st-anna'"),
    (with_key(""), ": sites.1.public_key: not a public key in PEM"),
    (with_key("\ud800"), ": sites.1.public_key: not a public key in PEM"),
    (with_key(KEYS[1][:100]), ": sites.1.public_key: not a public key in PEM"),
    (with_key(pem(ed25519.Ed25519PrivateKey.generate())), ": sites.1.public_key: not a key on an elliptic curve of"),
    (with_key(pem(rsa.generate_private_key(65537, 2048))), ": sites.1.public_key: not a key on an elliptic curve of"),
    (with_key(pem(ec.generate_private_key(ec.SECP256K1()))), ": sites.1.public_key: not a key on an elliptic curve of"),
]


@pytest.mark.parametrize(("content", "message"), BAD, ids=lambda v: v if isinstance(v, str) else "")
def test_bad_roster_names_file_and_place(tmp_path: Path, content: Any, message: str) -> None:
    assert fault(tmp_path / "roster.json", content).startswith(message)


def test_missing_roster_and_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: no such file; name the folder of keys that has it"):
        Roster.read(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="this is a folder"):
        Roster.read(tmp_path)


def test_roster_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        EXPECTED.write(tmp_path / "none" / "roster.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from(KEYS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["sites", "name", "public_key", "clients", "expires", "revoked", "x"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.sampled_from([*GOOD["sites"][1], "x"]), JSON), max_size=2), JSON, st.booleans())
def test_any_json_is_a_roster_or_one_fault(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, Any]], tree: Any, whole: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / "roster.json"
    path.write_text(json.dumps(tree if whole else changed(lambda sites: sites[1].update(changes))))
    try:
        roster = Roster.read(path)
    except ConfigError as error:
        problems = [str(problem) for problem in error.problems]
    else:
        problems = ["none"]
        clients = [client for site in roster.sites for client in site.clients]
        assert len(set(clients)) == len(clients)
    assert len(problems) == 1
    assert "\n" not in problems[0]
