"""Images with labels: CIFAR-10 from its files, or scikit-learn's digits."""

import dataclasses
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from softsolve.experiments.classification import cifar
from softsolve.experiments.errors import DataError

CLASSES = {"cifar-10": cifar.CLASSES, "digits": tuple("0123456789")}
DIGITS_TRAIN = 1437


@dataclasses.dataclass(frozen=True)
class Images:
    """Images (n, h, w, channels) of bytes, labels (n,) and what these are called."""

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Images":
        """Return the first ``count`` of them."""
        return Images(self.images[:count], self.labels[:count], self.classes)


def load(name: str, split: str, data: Path | None) -> Images:
    """Return the images of a split, ``train`` or ``test``.

    Raises
    ------
    DataError
        If the files are not there, or not what they should be.
    """
    pixels, labels = _digits(split) if name == "digits" else cifar.load(data, split)
    return Images(pixels, labels, CLASSES[name])


def check_size(images: Images, split: str, count: int) -> None:
    """Raise unless there are so many images."""
    if len(images) < count:
        msg = (
            f"there must be at least {count} {split} images; got {len(images)}. Are "
            "files truncated? Get them again, or ask for fewer images with --set."
        )
        raise DataError(msg)


def _digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a part of the 1,797 digits, 8x8 in 17 shades, in an order of our own."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    rows = order[:DIGITS_TRAIN] if split == "train" else order[DIGITS_TRAIN:]
    return (15 * digits.images[rows, :, :, None]).astype(np.uint8), digits.target[rows]
