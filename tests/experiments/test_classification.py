import dataclasses
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

from softsolve.cli import main
from softsolve.experiments import catalogue
from softsolve.experiments.classification import cifar, images
from softsolve.experiments.classification.experiment import (
    Classification,
    ClassificationConfig,
)
from softsolve.experiments.classification.losses import cross_entropy, fenchel_young
from softsolve.experiments.classification.network import VanillaCNN, moments
from softsolve.experiments.errors import DataError, SettingError
from softsolve.experiments.experiment import Values
from softsolve.experiments.runner import Order, execute

PER_BATCH = 12
TINY = ClassificationConfig(
    train_size=40,
    test_size=10,
    epochs=2,
    num_samples=(1,),
    sweep_temperatures=(0.1, 1.0),
    sweep_samples=3,
    sweep_epochs=1,
    sweep_train_size=20,
    batch_size=16,
    width=2,
    hidden=4,
)


def make_batches() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return images (n, 3072) and labels (n,) of the six files."""
    rng = np.random.default_rng(0)
    names = [name for names in cifar.BATCHES.values() for name in names]
    return {
        name: (
            rng.integers(256, size=(PER_BATCH, 3072), dtype=np.uint8),
            rng.integers(10, size=PER_BATCH, dtype=np.uint8),
        )
        for name in names
    }


def as_binary(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def as_pickled(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return pickle.dumps({"data": pixels, "labels": labels.tolist()}, protocol=2)


def as_pickled_by_python_2(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """Pickle a batch opcode by opcode, as published: with byte strings."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def integers(*values: int) -> bytes:
        return b"".join(b"J" + struct.pack("<i", value) for value in values)

    dtype = (
        b"cnumpy\ndtype\n(" + text(b"u1") + integers(0, 1) + b"tR"
        b"(" + integers(3) + text(b"|") + b"NNN" + integers(-1, -1, 0) + b"tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
        b"(" + integers(0) + b"t" + text(b"b") + b"tR"
        b"(" + integers(1) + b"(" + integers(*pixels.shape) + b"t" + dtype + b"I00\n"
    ) + (text(pixels.tobytes()) + b"tb")
    items = text(b"data") + array + text(b"labels") + b"(" + integers(*labels) + b"l"
    return b"\x80\x02(" + items + b"d."


WRITERS: dict[str, tuple[str, str, Callable[..., bytes]]] = {
    "binary": ("cifar-10-batches-bin", ".bin", as_binary),
    "python": ("cifar-10-batches-py", "", as_pickled),
    "python 2": ("cifar-10-batches-py", "", as_pickled_by_python_2),
}


def write_folder(data: Path, kind: str) -> Path:
    folder, suffix, write = WRITERS[kind]
    (data / folder).mkdir(parents=True)
    for name, (pixels, labels) in make_batches().items():
        (data / folder / f"{name}{suffix}").write_bytes(write(pixels, labels))
    return data / folder


def write_archive(data: Path, kind: str) -> Path:
    folder = write_folder(data / "unpacked", kind)
    name = folder.name.replace("batches-bin", "binary").replace("batches-py", "python")
    with tarfile.open(data / f"{name}.tar.gz", "w:gz") as archive:
        # The order of the published archive is not that of the numbers.
        for path in [folder, *sorted(folder.iterdir(), reverse=True)]:
            member = f"{folder.name}/{path.name}" if path != folder else folder.name
            archive.add(path, member, recursive=False)
    return data / f"{name}.tar.gz"


def check_loaded(data: Path) -> None:
    written = make_batches()
    for split, names in cifar.BATCHES.items():
        pixels, labels = cifar.load(data, split)
        assert pixels.dtype == np.uint8
        assert pixels.shape == (PER_BATCH * len(names), 32, 32, 3)
        planes = np.concatenate([written[name][0] for name in names])
        expected = planes.reshape(-1, 3, 32, 32)
        assert np.array_equal(pixels[:, 5, 7, 2], expected[:, 2, 5, 7])
        assert np.array_equal(pixels.transpose(0, 3, 1, 2), expected)
        assert labels.tolist() == [y for name in names for y in written[name][1]]


@pytest.mark.parametrize("kind", WRITERS)
def test_all_formats_hold_the_same(tmp_path: Path, kind: str) -> None:
    write_folder(tmp_path, kind)
    check_loaded(tmp_path)


@pytest.mark.parametrize("kind", WRITERS)
def test_archives_need_not_be_unpacked(tmp_path: Path, kind: str) -> None:
    write_archive(tmp_path, kind)
    check_loaded(tmp_path)


def cut(raw: bytes) -> bytes:
    return raw[:-100]


def relabel(raw: bytes) -> bytes:
    # The third label of a binary file.
    return raw[: 2 * 3073] + b"\x0b" + raw[2 * 3073 + 1 :]


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harmed"),))


def replace_by(value: object) -> Callable[[bytes], bytes]:
    return lambda _: pickle.dumps(value, protocol=2)


PIXELS = np.zeros((2, 3072), dtype=np.uint8)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("binary", cut, r"data_batch_2.bin must be records of 3073 bytes; got 36776"),
        ("binary", lambda _: b"", "must be records of 3073 bytes; got 0 bytes"),
        ("binary", relabel, "labels must be 0 to 9; got 11 at image 2"),
        ("python", cut, "data_batch_2 cannot be unpickled: .*truncated"),
        ("python 2", cut, "data_batch_2 cannot be unpickled: .*truncated"),
        ("python", lambda _: b"", "cannot be unpickled"),
        ("python", replace_by([1]), "an array data and a list labels; got list"),
        ("python", replace_by({"data": 1}), r"a list labels; got \['data'\]"),
        (
            "python",
            replace_by({"data": PIXELS, "labels": [1]}),
            r"must have data of shape \(1, 3072\); got \(2, 3072\)",
        ),
        (
            "python",
            replace_by({"data": PIXELS, "labels": [1, "cat"]}),
            "labels must be 0 to 9; got 'cat' at image 1",
        ),
        (
            "python",
            replace_by({"data": PIXELS, "labels": [1, Harmful()]}),
            "it asks for __builtin__.getattr, which no batch of CIFAR-10 needs",
        ),
        ("binary", None, r"data_batch_2.bin cannot be read: .*No such file"),
    ],
)
def test_files_that_are_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    change: Callable[[bytes], bytes] | None,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_folder(tmp_path, kind) / f"data_batch_2{WRITERS[kind][1]}"
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        cifar.load(tmp_path, "train")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("kind", ["python", "python 2"])
def test_a_pickle_with_a_changed_byte_is_read_or_refused(kind: str) -> None:
    raw = WRITERS[kind][2](PIXELS, np.array([3, 4]))
    rng = np.random.default_rng(0)
    header = [*range(200), *range(len(raw) - 60, len(raw))]
    refused = 0
    for place in [*header, *rng.integers(len(raw), size=100)]:
        changed = bytearray(raw)
        changed[place] ^= int(rng.integers(1, 256))
        try:
            cifar.parse_pickled(bytes(changed), "here")
        except DataError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_archives_that_are_wrong(tmp_path: Path, kind: str) -> None:
    path = write_archive(tmp_path, kind)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"tar.gz cannot be unpacked: .*truncated"):
        cifar.load(tmp_path, "train")
    path.write_bytes(b"not an archive")
    with pytest.raises(DataError, match=r"tar.gz cannot be unpacked"):
        cifar.load(tmp_path, "train")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("readme.html"))
    path.write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match=r"must hold the file cifar-10-.*/data_batch_1"):
        cifar.load(tmp_path, "train")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"Pass --data DIR, with cifar-10-batches-bin/,"
    ):
        cifar.load(None, "train")
    with pytest.raises(DataError, match=r"must hold cifar-10-batches-bin/, .* none of"):
        cifar.load(tmp_path, "train")
    write_folder(tmp_path, "binary")
    config = dataclasses.replace(TINY, sweep_train_size=100)
    with pytest.raises(DataError, match="at least 100 train images; got 60"):
        Classification().trials(config, tmp_path)
    with pytest.raises(DataError, match="at least 20 test images; got 12"):
        Classification().trials(dataclasses.replace(TINY, test_size=20), tmp_path)


def test_data_verifies_lengths_and_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path, "binary")
    name = "cifar-10-batches-bin/test_batch.bin"
    assert catalogue.status(tmp_path, catalogue.CIFAR_10, name) == "differs"
    size = (tmp_path / name).stat().st_size
    archive = write_archive(tmp_path, "python").name
    assert catalogue.status(tmp_path, catalogue.CIFAR_10, archive) == "differs"
    assert (
        catalogue.status(tmp_path, catalogue.CIFAR_10, "cifar-10-binary.tar.gz")
        == "missing"
    )
    known = dataclasses.replace(
        catalogue.CIFAR_10,
        checksums={
            name: f"bytes:{size}",
            "empty": "md5:d41d8cd98f00b204e9800998ecf8427e",
        },
    )
    (tmp_path / "empty").touch()
    assert catalogue.status(tmp_path, known, name) == "found"
    assert catalogue.status(tmp_path, known, "empty") == "verified"


def test_digits_are_split_once() -> None:
    train = images.load("digits", "train", None)
    test = images.load("digits", "test", None)
    assert train.images.shape == (images.DIGITS_TRAIN, 8, 8, 1)
    assert len(test) == 360
    assert train.first(5).labels.tolist() == train.labels[:5].tolist()
    assert len(np.unique(np.concatenate([train.labels, test.labels]))) == 10
    seen = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in seen for image in test.images)


def test_images_are_normalised_by_channel() -> None:
    pixels = torch.randint(0, 200, (7, 8, 8, 3), dtype=torch.uint8)
    mean, deviation = moments(pixels)
    flat = pixels.double().flatten(end_dim=-2)
    torch.testing.assert_close(mean.double(), flat.mean(dim=0))
    torch.testing.assert_close(deviation.double(), flat.std(dim=0, correction=0))
    network = VanillaCNN(pixels, 10, width=2, hidden=4)
    assert network(pixels).shape == (7, 10)
    whole = VanillaCNN(torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8), 10)
    shapes = [tuple(weight.shape) for weight in whole.parameters() if weight.ndim > 1]
    assert shapes == [
        (32, 3, 3, 3),
        (32, 32, 3, 3),
        (64, 32, 3, 3),
        (64, 64, 3, 3),
        (512, 4096),
        (10, 512),
    ]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_objectives_fit_probabilities_to_labels(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(4, 5, generator=generator).requires_grad_()
    labels = torch.tensor([0, 4, 2, 2])
    y = functional.one_hot(labels, 5)
    for objective, scale in (
        (fenchel_young(temperature, 20_000), 1.0),
        (cross_entropy(temperature), temperature),
    ):
        probabilities = objective.probabilities(theta.detach(), generator)
        torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(4))
        loss = objective.loss(theta, labels, generator)
        (gradient,) = torch.autograd.grad(loss, theta)
        # 1,000 draws of a probability: a standard error of at most 0.016.
        gap = 4 * scale * gradient - (probabilities - y)
        assert gap.abs().max() < 5 * 0.016
        assert (probabilities - y).abs().max() > 0.3


def run(data: Path, out: Path, config: ClassificationConfig, watcher: Any) -> Values:
    order = Order(Classification(), "paper", config, data, out, seed=3, command="-")
    return execute(order, watcher)


class Silent:
    def begin(self, trials: Any, finished: int) -> None: ...
    def round(self, trial: Any, done: int, metrics: Values) -> None: ...
    def finish(self, trial: Any, result: Values) -> None: ...


class Interrupting(Silent):
    """Stops a run after so many rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def round(self, trial: Any, done: int, metrics: Values) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_interrupted_run_continues_to_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(
        "softsolve.experiments.runner.SECONDS_BETWEEN_CHECKPOINTS", -1.0
    )
    data, config = tmp_path / "data", dataclasses.replace(TINY, precision=precision)
    write_archive(data, "binary")
    whole = run(data, tmp_path / "whole", config, Silent())
    for rounds in (2, 2, 1):
        with pytest.raises(KeyboardInterrupt):
            run(data, tmp_path / "parts", config, Interrupting(rounds))
    assert run(data, tmp_path / "parts", config, Silent()) == whole
    assert set(whole["curves"]) == {"Cross entropy", "FY, M = 1"}
    assert set(whole["sweep"]) == {"0.1", "1"}


def test_all_losses_learn_the_digits(tmp_path: Path) -> None:
    settings = ["epochs=5", "sweep_temperatures=0.1,1000", "sweep_epochs=5"]
    settings += ["learning_rate=0.005"]
    arguments = ["run", "classification", *(f"--set={text}" for text in settings)]
    ran = CliRunner().invoke(main, [*arguments, "--json", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    results = json.loads(ran.stdout)
    assert len(results["curves"]) == 3
    for result in results["curves"].values():
        assert result["test_accuracy"] > 0.9
        assert result["train_squared"] < 0.3
    usual, extreme = results["sweep"].values()
    assert usual["test_accuracy"] > extreme["test_accuracy"] + 0.1
    assert usual["test_squared"] < 0.2
    page = Path(CliRunner().invoke(main, ["report", str(tmp_path)]).stdout.strip())
    assert page.read_text().count("<img") == 2
    assert "FY, M = 1000" in page.read_text()
    assert "within 2 points of the best at ε = 0.1<" in page.read_text()


@pytest.mark.parametrize(
    ("part", "there", "not_there", "pictures"),
    [
        ("losses=", "Against ε", "At the end", 1),
        ("sweep_temperatures=", "At the end", "Against ε", 2),
    ],
)
def test_a_part_can_be_run_alone(
    tmp_path: Path, part: str, there: str, not_there: str, pictures: int
) -> None:
    short = ["epochs=1", "sweep_epochs=1", "train_size=32", "sweep_train_size=32", part]
    arguments = ["run", "classification", *(f"--set={text}" for text in short)]
    ran = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    page = Path(CliRunner().invoke(main, ["report", str(tmp_path)]).stdout.strip())
    text = page.read_text()
    assert there in text
    assert not_there not in text
    assert "Beside the paper" in text
    assert text.count("<img") == pictures


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"data_set": "mnist"},
            "data_set must be one of cifar-10, digits; got 'mnist'",
        ),
        ({"losses": ("hinge",)}, "losses must be among cross-entropy, fenchel-young"),
        ({"losses": (), "sweep_temperatures": ()}, "losses must be given where sweep"),
        ({"precision": "int8"}, "precision must be one of float32, bfloat16"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"sweep_epochs": 0}, "sweep_epochs must be at least 1"),
        ({"num_samples": (0,)}, "num_samples must be ≥ 1"),
        ({"num_samples": (1, 1)}, "num_samples must be different from each other"),
        ({"sweep_temperatures": (0.0,)}, "sweep_temperatures must be positive"),
        ({"temperature": -1.0}, "temperature must be positive"),
        ({"test_size": 2}, "test_size must be at least 8"),
    ],
)
def test_settings_that_are_wrong(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ClassificationConfig(**changed)
