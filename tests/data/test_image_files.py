"""Pictures from every kind of file: the same rows, the right splits, faults in one line, and bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from rondo.config.load import load as load_config
from rondo.data.client_rows import Dealt, deal_rows, resolved
from rondo.data.labels import find_labels
from rondo.data.sources import Source, load, read_rows
from rondo.errors import ConfigError
from rondo.tasks.images import image_classification
from rondo.tasks.images.reading import opened
from watched import noted

PUBLISHED = Path(__file__).parents[3] / "shared" / "data"
"""Real sets, where they lie beside the repository."""
DRAW = np.random.default_rng(0)
TRAIN, TEST = (DRAW.integers(0, 256, (n, 5, 4), dtype=np.uint8) for n in (12, 6))
LABELS, TEST_LABELS = np.arange(12) % 3, np.arange(6) % 3


def config(source: Path, **data: Any) -> Any:
    settings = {
        "model": {"name": "image_network:LinearClassifier"},
        "algorithm": {"name": "own_task:FedAvg"},
        "seed": data.pop("seed", 0),
        "task": {"kind": "image-classification", **data.pop("task", {})},
        "data": {"source": str(source), **data},
        "partition": {"kind": "iid", "clients": 3},
    }
    return load_config(settings)


def loaded(source: Path, **data: Any) -> Source:
    return load(config(source, **data))


def dealt(source: Path, **data: Any) -> Dealt:
    settings = config(source, **data)
    rows = load(settings)
    settings = resolved(settings, rows)
    return deal_rows(settings, rows, find_labels(settings, rows))


def fault(source: Path, **data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        dealt(source, **data)
    return str(caught.value.problems[0])


def idx(path: Path, array: Any) -> None:
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype("u1").tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def as_npz(folder: Path) -> Path:
    np.savez_compressed(folder / "a.npz", x_train=TRAIN, y_train=LABELS[:, None], x_test=TEST, y_test=TEST_LABELS)
    return folder / "a.npz"


def as_idx(folder: Path) -> Path:
    for name, pictures, labels in (("train", TRAIN, LABELS), ("t10k", TEST, TEST_LABELS)):
        idx(folder / f"{name}-images-idx3-ubyte.gz", pictures)
        idx(folder / f"{name}-labels-idx1-ubyte", labels)
    return folder


def as_folders(folder: Path) -> Path:
    for name, pictures, labels in (("train", TRAIN, LABELS), ("test", TEST, TEST_LABELS)):
        for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
            path = folder / name / str(label) / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(picture))
    (folder / "train" / ".hidden").mkdir()
    return folder


def as_parquet(folder: Path) -> Path:
    for name, pictures, labels in (("train", TRAIN, LABELS), ("validation", TEST, TEST_LABELS)):
        structs = [{"bytes": png(p), "path": None} for p in pictures]
        table = pyarrow.table({"image": structs, "label": labels})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    return folder


KINDS = {"npz": as_npz, "idx": as_idx, "folders": as_folders, "parquet": as_parquet}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_pictures(kind: str, tmp_path: Path) -> None:
    result = dealt(KINDS[kind](tmp_path))
    rows = [row for rows in result.rows.values() for row in rows]
    assert len(rows) == 12
    expected = {(p.tobytes(), str(n)) for p, n in zip(TRAIN, LABELS, strict=True)}
    assert {(r["image"].tobytes(), str(r["label"])) for r in rows} == expected
    test = {(r["image"].tobytes(), str(r["label"])) for r in result.test.rows}
    assert test == {(p.tobytes(), str(n)) for p, n in zip(TEST, TEST_LABELS, strict=True)}


@pytest.mark.parametrize(
    "names",
    [("images", "labels"), ("X", "Y"), ("data", "targets"), ("x_train", "y_train"), ("train_images", "train_labels")],
    ids="-".join,
)
def test_npz_names_are_known(names: tuple[str, str], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **dict(zip(names, (TRAIN, LABELS), strict=True)), notes=np.zeros(3))
    source = loaded(tmp_path / "a.npz")
    assert len(source.train or ()) == 12
    assert source.test is None


def test_pictures_of_an_array_are_not_copied(tmp_path: Path) -> None:
    rows = loaded(as_npz(tmp_path)).train or []
    assert rows[0]["image"].base is not None
    assert np.shares_memory(rows[0]["image"].base, rows[1]["image"].base)
    assert np.shares_memory(opened(rows[0]["image"]), rows[0]["image"])


def test_test_set_of_its_own_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "test.npz", images=TEST, labels=TEST_LABELS)
    source = loaded(as_npz(tmp_path), test_source=str(tmp_path / "test.npz"))
    assert len(source.test or ()) == 6
    assert loaded(as_npz(tmp_path), test_split="").test is None


def test_one_file_of_pictures_per_client(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", images=TEST, labels=TEST_LABELS)
    settings = load_config({"task": {"kind": "image-classification"}, "data": {"clients_from": str(tmp_path)}})
    assert {c: len(rows) for c, rows in (load(settings).clients or {}).items()} == {"a": 6, "b": 6}


def test_class_names_in_parquet_are_read(tmp_path: Path) -> None:
    table = pyarrow.table({"image": [png(p) for p in TRAIN], "label": [*LABELS[:-1], None]})
    features = {"label": {"names": ["ant", "bee", "cat"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    labels = [row["label"] for row in read_rows(tmp_path / "a.parquet", "data.source")]
    assert labels == ["ant", "bee", "cat"] * 3 + ["ant", "bee", None]


def test_damaged_sources_are_refused_in_one_line(tmp_path: Path) -> None:
    source = tmp_path / "a.npz"
    source.write_bytes(b"no archive")
    assert "is not a valid npz file: File is not a zip file; mend it" in fault(source)
    np.savez(source, left=TRAIN, right=LABELS)
    assert "it has no pictures with labels, such as x_train and y_train; its arrays are: left, right" in fault(source)
    np.savez(source, images=TRAIN, labels=LABELS[1:])
    assert "12 pictures and 11 labels: give one label per picture" in fault(source)
    np.savez(source, images=TRAIN, labels=np.eye(12))
    assert "12 x 5 x 4 pictures and 12 x 12 labels: give one picture per row" in fault(source)
    objects = np.array([None] * 12)
    for name, arrays in (("images", (objects, LABELS)), ("labels", (TRAIN, objects))):
        np.savez(source, images=arrays[0], labels=arrays[1])
        words = f"its array {name} holds Python objects, a pickle, which could run code and is not loaded: save it as "
        assert words + "numbers or as text; mend it" in fault(source)
    np.savez(source, images=TRAIN.astype(int), labels=LABELS)
    assert "a.npz, row 1, column 'image': the pixels are int64: give uint8, from 0 to 255, or floats" in fault(source)
    np.savez(source, data=np.array({"x": TRAIN, "y": LABELS}, dtype=object))
    assert "is a pickle as PFLlib writes it" in fault(source)
    np.savez(source, **np.load(source, allow_pickle=True)["data"].item())  # as the refusal says
    assert len(read_rows(source, "data.source")) == 12


def test_damaged_idx_files_are_refused_in_one_line(tmp_path: Path) -> None:
    pictures, labels = as_idx(tmp_path) / "train-images-idx3-ubyte.gz", tmp_path / "train-labels-idx1-ubyte"
    whole = pictures.read_bytes()
    pictures.write_bytes(whole[:-9])
    assert "train-images-idx3-ubyte.gz is damaged: " in fault(pictures)
    pictures.write_bytes(gzip.compress(gzip.decompress(whole) + b"x"))
    assert "it is longer than it says" in fault(pictures)
    pictures.write_bytes(gzip.compress(b"hello"))
    assert "is no IDX file of bytes with 3 axes" in fault(pictures)
    pictures.write_bytes(whole)
    labels.unlink()
    assert "the labels of train-images-idx3-ubyte.gz are missing: put train-labels-idx1-ubyte beside it" in fault(
        tmp_path
    )


def test_file_among_pictures_is_a_bad_row(tmp_path: Path) -> None:
    (as_folders(tmp_path) / "train" / "1" / "notes.txt").write_text("hello")
    message = fault(tmp_path)
    assert (
        f"{tmp_path}, row 9, column 'image': the picture cannot be decoded: 1/notes.txt: it is not in one of the"
        in message
    )
    assert dealt(tmp_path, bad_rows="drop").bad == 1


def test_pictures_are_sampled_before_they_are_opened(tmp_path: Path) -> None:
    as_folders(tmp_path)
    limits: dict[str, Any] = {"max_train_rows": 6, "max_test_rows": 3}
    with noted(image_classification, "opened") as calls:
        result = dealt(tmp_path, **limits)
    assert len(calls) == 6 + 3 + 1  # the first picture tells the shape
    assert (result.loaded, result.unsampled, result.bad) == (12, 6, 0)
    assert (result.test.loaded, result.test.unsampled) == (6, 3)
    kept = [row for rows in (*result.rows.values(), result.test.rows) for row in rows]
    assert sorted(row["label"] for row in kept) == sorted("012" * 3)
    assert [row for row in kept if not isinstance(row["image"], np.ndarray)] == []


def test_only_sampled_pictures_can_be_bad(tmp_path: Path) -> None:
    """Their place in the message is that in the source."""
    folder = as_folders(tmp_path) / "train"
    damaged = [folder / label / "z.png" for label in "012"]
    for number, file in enumerate(damaged):
        file.write_text(f"no picture {number}")
    found = [dealt(tmp_path, max_train_rows=14, bad_rows="drop", seed=seed) for seed in range(4)]
    assert {(r.loaded, r.unsampled) for r in found} == {(15, 1)}
    assert {sum(map(len, r.rows.values())) + r.bad for r in found} == {14}
    assert {r.bad for r in found} == {2, 3}
    message = fault(tmp_path, max_train_rows=14)
    places = [f"row {n + 1}, column 'image': the picture cannot be decoded: {n // 5}/z.png" for n in (4, 9, 14)]
    assert [place for place in places if place in message], message


def write_classes(folder: Path, *names: str) -> Path:
    for n, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            (folder / name / f"{i}.png").write_bytes(png(TRAIN[3 * (n % 4) + i]))
    return folder


@pytest.mark.parametrize("names", [("bus", "train"), ("train", "val", "tram")], ids="-".join)
def test_classes_may_be_called_like_splits(names: tuple[str, ...], tmp_path: Path) -> None:
    result = dealt(write_classes(tmp_path, *names))
    labels = [row["label"] for rows in result.rows.values() for row in rows]
    assert sorted(labels) == sorted(names * 3)
    assert result.test.rows == []


def test_folders_that_are_neither_classes_nor_splits_are_named(tmp_path: Path) -> None:
    write_classes(tmp_path / "a", "train", "test/cat", "test/dog")
    words = "folder train holds pictures and folder test holds folders, so they are neither classes nor splits: "
    assert words + "give each class a folder in train and in test" in fault(tmp_path / "a")
    write_classes(tmp_path / "c", "test", "train")
    words = "folders test and train hold pictures and no folder per class: give each class a folder in each of them, "
    assert words + "or rename them if they are classes" in fault(tmp_path / "c")
    write_classes(tmp_path / "b", "train/cat", "train/dog", "test")
    words = "folder test holds pictures and no folder per class: give each class a folder in it, or set data.test_split"
    assert words in fault(tmp_path / "b")
    assert dealt(tmp_path / "b", test_split="").loaded == 6


def test_missing_split_is_named(tmp_path: Path) -> None:
    source = as_npz(tmp_path)
    assert "data.train_split: no 'learn' pictures in" in fault(source, train_split="learn")
    assert "data.test_split: no 'dev' pictures in" in fault(source, test_split="dev")
    assert "has the splits train, test: name a file with one" in fault(source, test_source=str(source))


def test_small_file_of_many_pixels_is_not_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((2, 1500, 1500), np.uint8), labels=np.arange(2))
    assert (tmp_path / "a.npz").stat().st_size < 20_000
    assert "take more memory than the 4 MiB of this key" in fault(tmp_path / "a.npz", max_read_mb=4)
    idx(tmp_path / "train-images-idx3-ubyte.gz", np.zeros((2, 1500, 1500), np.uint8))
    idx(tmp_path / "train-labels-idx1-ubyte", np.arange(2))
    assert "take more memory than the 4 MiB of this key" in fault(
        tmp_path / "train-images-idx3-ubyte.gz", max_read_mb=4
    )


REAL = {
    "mnist": ("mnist.npz", 60000, 10000, [28, 28, 1]),
    "fashion_mnist": ("", 60000, 10000, [28, 28, 1]),
    "cifar10": ("", 50000, 10000, [32, 32, 3]),
    "cifar100": ("", 10000, 2000, [32, 32, 3]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_published_sets_are_read_whole(name: str) -> None:
    file, train, test, shape = REAL[name]
    if not (PUBLISHED / name).is_dir():
        pytest.skip("the data are not here")
    settings = config(PUBLISHED / name / file, test_split="test")
    rows = load(settings)
    settings = resolved(settings, rows)
    assert settings.task.image_shape == shape
    labels = find_labels(settings, rows)
    assert len(labels) == (100 if name == "cifar100" else 10)
    result = deal_rows(settings, rows, labels)
    assert sum(map(len, result.rows.values())) == train
    assert len(result.test.rows) == test


def test_folder_with_two_sets_of_idx_files_names_them(tmp_path: Path) -> None:
    as_idx(tmp_path)
    idx(tmp_path / "letters-train-images-idx3-ubyte", TRAIN)
    with pytest.raises(ConfigError, match="it has several sets of pictures: name one of the files letters-train-"):
        loaded(tmp_path)
