"""The published terrain maps: six .npy files, read and checked."""

from pathlib import Path

import numpy as np

from softsolve.experiments import catalogue
from softsolve.experiments.errors import DataError
from softsolve.experiments.records import replacing
from softsolve.experiments.shortest_path.terrain import CELLS, PIXELS, Maps
from softsolve.solvers import GridPath

SHAPES = {
    "maps": (PIXELS, PIXELS, 3),
    "vertex_weights": (CELLS, CELLS),
    "shortest_paths": (CELLS, CELLS),
}


def load(data: Path, split: str, count: int) -> Maps:
    """Return the first ``count`` maps of a split, ``train`` or ``test``.

    ``data`` is the folder that the archive was unpacked in, or any folder below it.
    """
    arrays = {kind: _load_array(data, split, kind)[:count] for kind in SHAPES}
    found = {kind: len(array) for kind, array in arrays.items()}
    if set(found.values()) != {count}:
        msg = (
            f"{data}: the {split} files must have at least {count} maps each; got "
            f"{found}. Are they truncated? Get them again, or ask for fewer maps."
        )
        raise DataError(msg)
    costs = arrays["vertex_weights"].astype(np.float32)
    paths = arrays["shortest_paths"].astype(np.uint8)
    _check(data, split, costs, paths)
    return Maps(arrays["maps"].astype(np.uint8), costs, paths)


def save(maps: Maps, folder: Path, split: str) -> None:
    """Write maps as the published files are."""
    arrays = {
        "maps": maps.images,
        "vertex_weights": maps.costs.astype(np.float16),
        "shortest_paths": maps.paths,
    }
    for kind, array in arrays.items():
        with replacing(folder / f"{split}_{kind}.npy") as file:
            np.save(file, array)


def _load_array(data: Path, split: str, kind: str) -> np.ndarray:
    path = catalogue.find(data, catalogue.WARCRAFT_MAPS, f"{split}_{kind}")
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        msg = f"{path} cannot be read: {error}. Get the file again."
        raise DataError(msg) from error
    if array.shape[1:] != SHAPES[kind]:
        msg = f"{path} must be of shape (n, *{SHAPES[kind]}); got {array.shape}."
        raise DataError(msg)
    return array


def _check(data: Path, split: str, costs: np.ndarray, paths: np.ndarray) -> None:
    """Raise unless every path is one, and a cheapest one."""
    cheapest = (GridPath()(-costs) * costs).sum(axis=(1, 2))
    optimal = np.isclose((paths * costs).sum(axis=(1, 2)), cheapest, rtol=1e-3)
    optimal &= GridPath().feasible(paths)
    if not optimal.all():
        row = int(np.argmin(optimal))
        msg = (
            f"{data}: in the {split} files, the path of map {row} must be a "
            "cheapest one for its costs, and is not. Are the files of one release?"
        )
        raise DataError(msg)
