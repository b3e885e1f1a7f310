"""CIFAR-10 in its official formats: the binary and the Python one, packed or not.

A file of the binary format is records of a label's byte and the 3,072 bytes of an
image: its red, green and blue planes. One of the Python format is a pickled dictionary
of ``data``, the images (n, 3072), and ``labels``.
"""

import dataclasses
import io
import pickle
import pickletools
import tarfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from softsolve.experiments import catalogue
from softsolve.experiments.errors import DataError

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
BATCHES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
SIDE, CHANNELS = 32, 3
IMAGE_BYTES = CHANNELS * SIDE * SIDE
RECORD_BYTES = 1 + IMAGE_BYTES

Batch = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Format:
    """An official format: its archive, the folder and files in it, how to read one."""

    archive: str
    folder: str
    suffix: str
    parse: Callable[[bytes, str], Batch]


def load(data: Path | None, split: str) -> Batch:
    """Return the images (n, 32, 32, 3) and labels (n,) of ``train`` or ``test``.

    ``data`` holds an archive, or the folder that was in it. What is unpacked is read
    first.
    """
    if data is None:
        msg = (
            "CIFAR-10 has to be read from its files. Pass --data DIR, with "
            f"{_choices()} in DIR; `softsolve data` says where they are published."
        )
        raise DataError(msg)
    found = _find(data)
    files = [f"{found.folder}/{name}{found.suffix}" for name in BATCHES[split]]
    if (data / found.folder).is_dir():
        contents = {str(data / file): catalogue.read(data / file) for file in files}
    else:
        archive = data / found.archive
        raw = _unpack(archive, files)
        contents = {f"{file} in {archive}": raw[file] for file in files}
    batches = [found.parse(content, where) for where, content in contents.items()]
    pixels = np.concatenate([images for images, _ in batches])
    planes = pixels.reshape(-1, CHANNELS, SIDE, SIDE)
    labels = np.concatenate([labels for _, labels in batches])
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _choices() -> str:
    places = [place for form in FORMATS for place in (f"{form.folder}/", form.archive)]
    return f"{', '.join(places[:-1])} or {places[-1]}"


def _find(data: Path) -> Format:
    for form in FORMATS:
        if (data / form.folder).is_dir():
            return form
    for form in FORMATS:
        if (data / form.archive).is_file():
            return form
    msg = (
        f"{data} must hold {_choices()}, and holds none of them. `softsolve data` says "
        "where they are published."
    )
    raise DataError(msg)


def _unpack(path: Path, files: Collection[str]) -> dict[str, bytes]:
    """Return the contents of files of an archive, in one pass over it."""
    raw: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                content = archive.extractfile(member)
                if member.name in files and content is not None:
                    raw[member.name] = content.read()
                if len(raw) == len(files):
                    return raw
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        msg = f"{path} cannot be unpacked: {error}. Is it truncated? Get it again."
        raise DataError(msg) from error
    missing = next(file for file in files if file not in raw)
    msg = f"{path} must hold the file {missing}, and does not. Get the archive again."
    raise DataError(msg)


def parse_binary(raw: bytes, where: str) -> Batch:
    """Return the images (n, 3072) and labels (n,) of a file of the binary format."""
    if not raw or len(raw) % RECORD_BYTES:
        msg = (
            f"{where} must be records of {RECORD_BYTES} bytes; got {len(raw)} bytes. "
            "Is the file truncated? Get it again."
        )
        raise DataError(msg)
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, RECORD_BYTES)
    return records[:, 1:], _check_labels(records[:, 0].tolist(), where)


def parse_pickled(raw: bytes, where: str) -> Batch:
    """Return the images (n, 3072) and labels (n,) of a file of the Python format."""
    try:
        _check_memo(raw)
        batch = _BatchUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except BROKEN_PICKLE as error:
        msg = (
            f"{where} cannot be unpickled: {error}. Is the file truncated? Get it "
            "again."
        )
        raise DataError(msg) from error
    values = {}
    if isinstance(batch, dict):
        # Python 2 wrote bytes.
        values = {
            key.decode("latin1") if isinstance(key, bytes) else key: value
            for key, value in batch.items()
        }
    images, labels = values.get("data"), values.get("labels")
    if not isinstance(images, np.ndarray) or not isinstance(labels, list):
        msg = (
            f"{where} must be a dictionary with an array data and a list labels; got "
            f"{sorted(map(str, values)) or type(batch).__name__}. Get the file again."
        )
        raise DataError(msg)
    if images.shape != (len(labels), IMAGE_BYTES):
        msg = (
            f"{where} has {len(labels)} labels and must have data of shape "
            f"({len(labels)}, {IMAGE_BYTES}); got {images.shape}. Get the file again."
        )
        raise DataError(msg)
    return images, _check_labels(labels, where)


def _check_labels(labels: list[Any], where: str) -> np.ndarray:
    wrong = [
        (row, label)
        for row, label in enumerate(labels)
        if not (isinstance(label, int) and 0 <= label < len(CLASSES))
    ]
    if wrong:
        row, label = wrong[0]
        msg = (
            f"{where}: labels must be 0 to {len(CLASSES) - 1}; got {label!r} at image "
            f"{row}. Get the file again."
        )
        raise DataError(msg)
    return np.asarray(labels, dtype=np.int64)


def _check_memo(raw: bytes) -> None:
    """Raise where a pickle numbers its objects beyond what it can hold.

    Unpickling makes room for as many: gigabytes, for a byte that was changed.
    """
    for opcode, number, _ in pickletools.genops(raw):
        if not (opcode.name.endswith("PUT") and isinstance(number, int)):
            continue
        if number > len(raw):
            msg = f"it has {len(raw)} bytes, and an object number {number}"
            raise pickle.UnpicklingError(msg)


class _BatchUnpickler(pickle.Unpickler):
    """An unpickler of arrays of bytes, and of nothing that runs code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickled batch may name, or raise."""
        allowed = ALLOWED.get((module.replace("_core", "core"), name))
        if allowed is None:
            msg = f"it asks for {module}.{name}, which no batch of CIFAR-10 needs"
            raise pickle.UnpicklingError(msg)
        return allowed


def _bytes_dtype(*_: Any) -> np.dtype[np.uint8]:
    # A copy, since unpickling sets its state.
    return np.dtype(np.uint8, align=False, copy=True)


def _latin1(text: str, _: str) -> bytes:
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _bytes_dtype,
    ("_codecs", "encode"): _latin1,  # bytes, as Python 3 writes them for Python 2
}

# What unpickling may raise where bytes were lost or changed.
BROKEN_PICKLE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)

FORMATS = (
    Format(
        "cifar-10-binary.tar.gz", "cifar-10-batches-bin", ".bin", parse=parse_binary
    ),
    Format("cifar-10-python.tar.gz", "cifar-10-batches-py", "", parse=parse_pickled),
)
