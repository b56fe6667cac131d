"""Tensors that clients keep: one file each, under a name that no other client has."""

from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rondo.engine.wire import serialization
from rondo.params import Params
from rondo.records import durable
from rondo.records.durable import Damaged
from rondo.runs.storage import checkpoint
from rondo.runs.storage.checkpoint import Kept


def values(value: float) -> Params:
    return {"a": torch.full((2, 3), value)}


def shortened(client: str) -> str:
    """The part of a file's name that stands for ``client``."""
    return checkpoint._stem(client)


LONG = "x" * 130
LOOKALIKES = (LONG, shortened(LONG), shortened(shortened(LONG)), "Ann", shortened("Ann"), shortened(shortened("Ann")))


def test_id_like_another_clients_file_name_gets_its_own_file(tmp_path: Path) -> None:
    """An id that is, letter by letter, the shortened name of another client's file."""
    kept = Kept(tmp_path)
    for i, client in enumerate(LOOKALIKES):
        kept[client] = values(float(i))
    kept.write(1)
    again = Kept(tmp_path)
    assert [float(again[c]["a"][0, 0]) for c in LOOKALIKES] == list(range(len(LOOKALIKES)))
    assert (set(again), len(again)) == (set(LOOKALIKES), len(LOOKALIKES))


any_ids = st.one_of(
    st.text(max_size=8),
    st.text("aA%.-~_é病\ud800İſ ", max_size=6),
    st.text(min_size=100, max_size=300),
    st.sampled_from(("", "ANN", "ann", "a%2f", "a%2F", "a/", "ß", "ss", "SS", "é", "e\u0301", "con")),
)


@given(ids=st.sets(any_ids, min_size=2, max_size=6))
def test_file_names_differ_for_any_ids(ids: set[str]) -> None:
    """On file systems too that are blind to capitals or normalise characters, and for names made of names."""
    ids |= {shortened(client) for client in ids}
    stems = {unicodedata.normalize("NFKD", shortened(client)).casefold() for client in ids}
    assert len(stems) == len(ids)
    for client in ids:
        name = checkpoint._File(shortened(client), 10**6, "0" * 64).name + durable.TEMPORARY
        assert name.isascii()
        assert len(name) < 256
        assert not set(name) & set('/\\:*?"<>|\0')


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("ann", "ann"),
        ("a/b é", "a%2Fb%20%C3%A9"),
        ("", "-cae66941d9efbd404e4d88758ea67670"),
        ("Ann", "Ann-07cb6c3a9b917ee7df6122e2eadd6970"),
        ("x" * 120, "x" * 120),
        ("x" * 121, "x" * 80 + "-a6141c743b35b75fec8fc6e480b35db4"),
        ("ann-" + "0" * 32, "ann-" + "0" * 32 + "-fc508a920a719003137854dde8fdf2ce"),
    ],
)
def test_file_name_of_a_client_stays_the_same(client: str, name: str) -> None:
    """In later versions too, which could otherwise not find what earlier ones wrote."""
    assert shortened(client) == name


def test_digest_is_of_the_newest_files_names(tmp_path: Path) -> None:
    assert Kept(tmp_path).digest == "0" * 64
    kept = Kept(tmp_path)
    for rounds, clients in ((1, ("ann", "bob")), (2, ("ann",))):
        kept.update({client: values(float(rounds)) for client in clients})
        kept.write(rounds)
    newest = [p.name for p in (tmp_path / "clients").iterdir() if not p.name.startswith("ann.1.")]
    assert len(newest) == 2
    ann, bob = (int(hashlib.sha256(name.encode()).hexdigest(), 16) for name in newest)
    assert kept.digest == Kept(tmp_path).digest == f"{ann ^ bob:064x}"


def test_changed_client_file_is_named(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept["ann"] = values(1.0)
    kept.write(1)
    (file,) = (tmp_path / "clients").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(Damaged) as error:
        kept["ann"]
    assert str(error.value) == f"clients/{file.name} is not as it was written (SHA-256)"


def test_missing_old_client_file_stops_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for rounds in (1, 2):
        kept["ann"] = values(float(rounds))
        kept.write(rounds)
    (old,) = (tmp_path / "clients").glob("ann.1.*")
    old.unlink()
    kept.forget(2)
    assert serialization.same(dict(kept), {"ann": values(2.0)})


def test_file_of_another_client_is_noticed(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept["ann"] = values(1.0)
    kept.write(1)
    (file,) = (tmp_path / "clients").iterdir()
    file.rename(file.with_name(file.name.replace("ann", "bob")))
    with pytest.raises(Damaged, match=r"clients/bob\..* has the tensors of another client, 'ann'"):
        Kept(tmp_path)["bob"]
    with pytest.raises(Damaged, match="another client, 'ann'"):
        Kept(tmp_path).check()


def test_local_tensors_cannot_be_deleted(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^what a client keeps is replaced, never deleted$"):
        del Kept(tmp_path)["ann"]


def test_store_without_files_is_empty_and_clean(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.clean(0)
    with pytest.raises(KeyError, match="'ann'"):
        kept["ann"]
    assert not list(tmp_path.iterdir())
