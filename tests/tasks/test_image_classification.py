"""Image classification: batches, augmentation, digests, and runs on the embedded digits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rondo
from rondo.algorithm import Client, Round
from rondo.config.inputs import TaskConfig
from rondo.config.schema import ClientsConfig, TrainConfig
from rondo.data.demo.digits import digits
from rondo.engine.client.trainer import CohortTrainer
from rondo.errors import ConfigError
from rondo.records.directory import RunDirectory
from rondo.report.rows import account
from rondo.tasks.images.image_classification import ImageClassification, ImageExample, cropped_and_flipped, normalized
from rondo.tasks.images.reading import opened

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

from image_network import LinearClassifier

RNG = np.random.default_rng(0)


def pictures(count: int, *shape: int) -> list[Any]:
    return list(RNG.integers(0, 256, (count, *shape), dtype=np.uint8))


def task(**keys: Any) -> ImageClassification:
    config = TaskConfig(kind="image-classification", image="image", label="label", image_shape=[6, 8, 3], **keys)
    return ImageClassification.of(config, None, ("a", "b"))


def test_batch_is_normalised_per_channel() -> None:
    both = pictures(2, 6, 8, 3)
    batch, targets = task(normalize="cifar10").collate([ImageExample(p, i) for i, p in enumerate(both)])
    pixels = batch["pixel_values"]
    assert pixels.shape == (2, 3, 6, 8)
    assert pixels.dtype == torch.float32
    assert pixels[1, 2, 4, 5].item() == pytest.approx((both[1][4, 5, 2] / 255 - 0.4465) / 0.2616, rel=1e-5)
    assert targets["labels"].tolist() == [0, 1]


def test_floats_enter_as_they_are_and_bytes_beside_them_are_divided() -> None:
    both = pictures(2, 6, 8, 3)
    mixed = [both[0], (both[1] / np.float32(255))]
    for name in ("unit", "cifar10"):
        torch.testing.assert_close(normalized(mixed, name), normalized(both, name))  # type: ignore[arg-type]
    normal = np.linspace(-2, 2, 144, dtype=np.float32).reshape(6, 8, 3)
    assert torch.equal(normalized([normal], "unit")[0], torch.from_numpy(normal).permute(2, 0, 1))


def floats(low: float, high: float) -> list[dict[str, Any]]:
    rows = [{"image": p.astype(np.float32) / 255 * (high - low) + low, "label": i % 2} for i, p in enumerate(SHADES)]
    rows[0]["image"][0, 0], rows[0]["image"][0, 1] = low, high
    return rows


SHADES = pictures(40, 6, 8, 3)


def test_normalised_floats_train_and_their_range_is_told(tmp_path: Path) -> None:
    rondo.run(config(), train=floats(-2, 2.5), test=floats(-2, 2.5)[:9], run_dir=tmp_path / "run")
    partition = RunDirectory.open(tmp_path / "run").read("partition.json")
    assert partition["text"] == {"pictures_of_floats": 40, "pictures_of_bytes": 0, "lowest": -2.0, "highest": 2.5}
    lines = list(account(partition))
    assert lines[0].startswith("float pixels of 40 training pictures are from -2 to 2.5, so taken as normalised")
    assert (tmp_path / "run" / "partition-samples.png").exists()


def test_pictures_of_two_scales_are_told_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="normalised already .* and others are not"):
        rondo.run(config(), train=floats(-2, 2.5), test=floats(0, 1)[:9], run_dir=tmp_path / "run")


def test_normalised_floats_are_not_normalised_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"from -2 to 2\.5, so they are normalised already, .*set it to 'unit'"):
        rondo.run(config(normalize="half"), train=floats(-2, 2.5), run_dir=tmp_path / "run")
    rondo.run(config(normalize="half"), train=floats(0, 1), test=floats(0, 1)[:9], run_dir=tmp_path / "run")


def test_augmented_picture_is_a_shifted_one() -> None:
    picture = pictures(1, 6, 8, 3)[0]
    pixels = normalized([picture] * 200, "cifar10")
    result = cropped_and_flipped(pixels, [200], [torch.Generator().manual_seed(0)], "cifar10")
    padded = np.zeros((14, 16, 3), np.uint8)  # black
    padded[4:-4, 4:-4] = picture
    crops = [padded[i : i + 6, j : j + 8] for i in range(9) for j in range(9)]
    expected = normalized(crops, "cifar10")
    both = torch.cat([expected, expected.flip(3)]).flatten(1)
    distances = torch.cdist(result.flatten(1), both, compute_mode="donot_use_mm_for_euclid_dist")
    assert distances.min(1).values.max() < 1e-5
    assert len(set(distances.argmin(1).tolist())) > 100  # of 162


def test_picture_is_shifted_by_four_pixels_either_way() -> None:
    """As often as by any other number."""
    marked = np.zeros((9, 9, 1), np.uint8)
    marked[4, 4] = 255  # stays inside whatever the shift
    pixels = normalized([marked] * 400, "unit")
    result = cropped_and_flipped(pixels, [400], [torch.Generator().manual_seed(0)], "unit")
    rows = result[:, 0].sum(2).argmax(1).bincount(minlength=9)
    assert [row for row, count in enumerate(rows.tolist()) if not 20 < count < 70] == []


def test_augmentation_of_a_client_ignores_the_others() -> None:
    pixels = normalized(pictures(7, 6, 8, 1), "unit")

    def generator(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    together = cropped_and_flipped(pixels, [3, 0, 4], [generator(1), generator(2), generator(3)], "unit")
    assert torch.equal(together[3:], cropped_and_flipped(pixels[3:], [4], [generator(3)], "unit"))


def test_store_digest_sees_pixels_targets_and_shape() -> None:
    def digest(picture: Any, target: int) -> str:
        store = task().store()
        store.add([ImageExample(picture, target)])
        return store.sha256()

    picture = pictures(1, 6, 8, 3)[0]
    changed = picture.copy()
    changed[0, 0, 0] += 1
    shaped = picture.reshape(8, 6, 3)
    assert len({digest(picture, 0), digest(picture, 1), digest(changed, 0), digest(shaped, 0)}) == 4
    assert digest(picture, 0) == digest(picture.copy(), 0)


def test_store_holds_the_arrays_of_the_source() -> None:
    picture = pictures(1, 6, 8, 3)[0]
    examples = task().encode([{"image": picture, "label": "b"}])
    store = task().store()
    assert np.shares_memory(store[store.add(examples)[0]].pixels, picture)
    assert store[0].target == 1
    assert store.cost(0) == 48


def test_digits_are_split_by_their_order() -> None:
    train, test = digits()
    assert len(train) + len(test) == 1797
    assert [sum(r["label"] == d for r in test) for d in range(10)] == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    assert train[0]["image"].dtype == np.uint8
    assert {int(r["image"].max()) for r in train} <= set(range(200, 256))


def config(**task: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "algorithm": {"name": "own_task:FedAvg"},
        "model": {"name": "image_network:LinearClassifier"},
        "task": {"kind": "image-classification", **task},
        "partition": {"kind": "iid", "clients": 4},
        "train": {"lr": 0.02, "batch_size": 32},
    }


@pytest.mark.slow
def test_run_on_digits_learns(tmp_path: Path) -> None:
    result = rondo.run(config(), run_dir=tmp_path / "run")
    after = result.summary["after"]["global"]
    assert after["accuracy"] > 0.75
    assert list(after) == ["accuracy", "f1", "matthews", "auc", "loss", "examples"]


def test_cohort_equals_one_at_a_time_with_augmentation(tmp_path: Path) -> None:
    kind = task(augment="crop-flip")
    network = LinearClassifier(None, kind)
    clients = (Client("a", 20), Client("b", 13))
    rows = tuple([ImageExample(p, i % 2) for i, p in enumerate(pictures(c.num_examples, 6, 8, 3))] for c in clients)

    def trained(*places: int) -> torch.Tensor:
        chosen = tuple(clients[i] for i in places)
        trainer = CohortTrainer(
            network, kind, chosen, tuple(rows[i] for i in places), Round(0, 1, 0, 2), TrainConfig(lr=0.01),
            ClientsConfig(), {},
        )  # fmt: skip
        start = {n: t.expand(len(places), *t.shape) for n, t in network.initial.items()}
        return trainer.fit(start).params["weight"]

    both = trained(0, 1)
    torch.testing.assert_close(both[:1], trained(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(both[1:], trained(1), rtol=0, atol=1e-6)
    kind.augmentation = "none"
    assert (trained(0) - both[:1]).abs().max() > 1e-4


def faults(rows: list[dict[str, Any]], tmp_path: Path, **keys: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        rondo.run(config(**keys), train=rows, run_dir=tmp_path / "run")
    return [str(p) for p in caught.value.problems]


def given(count: int = 12, *shape: int) -> list[dict[str, Any]]:
    return [{"image": p, "label": i % 3} for i, p in enumerate(pictures(count, *(shape or (8, 8))))]


@pytest.mark.slow
def test_rows_given_in_python_run(tmp_path: Path) -> None:
    result = rondo.run(config(), train=given(24), test=given(), run_dir=tmp_path / "run")
    assert result.summary["after"]["global"]["examples"] == 12
    assert RunDirectory.open(tmp_path / "run").config().task.image_shape == [8, 8, 1]


def test_bad_pictures_name_row_and_remedy(tmp_path: Path) -> None:
    rows = given()
    rows[1]["image"] = np.zeros((4, 8), np.uint8)
    rows[3]["image"] = b"hello"
    rows[5]["image"] = np.zeros((8, 8, 3), np.uint8)
    del rows[7]["image"]
    assert faults(rows, tmp_path) == [
        "data: train[1], column 'image': the picture is 4 x 8 with 1 channel, and the others are 8 x 8 with 1 "
        "channel: set task.image_size, to which all are resized",
        "data: train[3], column 'image': the picture cannot be decoded: it is not in one of the formats PNG, JPEG, "
        "WEBP, BMP",
        "data: train[5], column 'image': the picture is 8 x 8 with 3 channels, and the others are 8 x 8 with 1 "
        "channel: set task.image_shape with 3 channels, which greyscale is turned to",
        "data: train[7], column 'image': no such column; there are: label",
        "data.bad_rows: mend the rows, or leave them out with data.bad_rows = 'drop'",
    ]  # fmt: skip


def test_mixed_sizes_and_modes_have_a_way(tmp_path: Path) -> None:
    rows = given()
    rows[1]["image"], rows[3]["image"] = np.zeros((4, 8), np.uint8), np.zeros((8, 8, 3), np.uint8)
    rondo.run(config(image_size=4, image_shape=[4, 4, 3]), train=rows, run_dir=tmp_path / "run")


def test_constants_must_fit_the_channels(tmp_path: Path) -> None:
    assert faults(given(), tmp_path, normalize="cifar10") == [
        "task.normalize: 'cifar10' has constants for 3 channels and the pictures have 1: take 'unit' or 'half'"
    ]


@pytest.mark.slow
def test_decoded_pictures_count_against_the_limit(tmp_path: Path) -> None:
    rows = [{"image": np.zeros((600, 600, 3), np.uint8).tolist(), "label": i % 2} for i in range(2)]
    settings = config()
    settings["data"] = {"max_read_mb": 1}
    with pytest.raises(ConfigError, match=r"data\.max_read_mb: the rows of 'column image' take more memory"):
        rondo.run(settings, train=rows, run_dir=tmp_path / "run")


def test_opened_row_is_not_opened_again() -> None:
    config = TaskConfig(kind="image-classification", image="image", label="label")
    row = ImageClassification.opened(config, {"image": [[1, 2], [3, 4]], "label": 1})
    assert opened(row["image"]) is not None
    assert np.shares_memory(opened(row["image"]), row["image"])
