"""The published terrain maps: six .npy files, read and checked."""

from pathlib import Path

import numpy as np

from softsolve.experiments import catalogue
from softsolve.experiments.errors import DataError
from softsolve.experiments.records import replacing
from softsolve.experiments.shortest_path.metrics import TIES
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
    return Maps(np.array(arrays["maps"]), costs, paths)


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
        shape = ", ".join(map(str, ("n", *SHAPES[kind])))
        msg = f"{path} must be of shape ({shape}); got {array.shape}."
        raise DataError(msg)
    if kind == "maps" and array.dtype != np.uint8:
        msg = f"{path} must hold colours as uint8, from 0 to 255; got {array.dtype}."
        raise DataError(msg)
    return array


def _check(data: Path, split: str, costs: np.ndarray, paths: np.ndarray) -> None:
    """Raise unless costs are positive, and every path is one and a cheapest one."""
    positive = (np.isfinite(costs) & (costs > 0)).all(axis=(1, 2))
    if not positive.all():
        row = int(np.argmin(positive))
        msg = (
            f"{data}: in the {split} files, the costs of map {row} must be positive "
            f"numbers; got {costs[row].min()} among them. Get the files again."
        )
        raise DataError(msg)
    cheapest = (GridPath()(-costs) * costs).sum(axis=(1, 2))
    optimal = np.isclose((paths * costs).sum(axis=(1, 2)), cheapest, rtol=TIES)
    optimal &= GridPath().feasible(paths)
    if not optimal.all():
        row = int(np.argmin(optimal))
        msg = (
            f"{data}: in the {split} files, the path of map {row} must be a "
            "cheapest one for its costs, and is not. Are the files of one release?"
        )
        raise DataError(msg)
