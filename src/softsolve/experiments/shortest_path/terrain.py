"""Terrain maps made for this experiment, like those of the game Warcraft II.

A map is 96 by 96 pixels for 12 by 12 cells. Each cell has one of five terrains with the
costs of the published maps: lakes lie low, mountains high, and between them forest
grows on wet ground, grass on drier, and dirt is left where it is dry. Colour alone does
not give the cost away: seasons shift the palettes into each other (dry grass has the
colours of dirt, muddy water those of a wood), light falls differently on every part of
every map, and borders are ragged. What tells terrains apart is texture as well.
"""

import dataclasses

import numpy as np
from scipy import ndimage

from softsolve.solvers import GridPath

CELLS, PIXELS = 12, 96
CELL = PIXELS // CELLS
DRAWN_AT_ONCE = 20  # what fits into a cache

TERRAINS = ("water", "mountain", "forest", "dirt", "grass")
WATER, MOUNTAIN, FOREST, DIRT, GRASS = range(5)
COSTS = np.array([7.7, 9.2, 5.3, 1.2, 0.8], dtype=np.float32)

# Colours in the wet and in the dry season.
PALETTE = np.array(
    [
        [[62, 92, 128], [98, 106, 84], [50, 86, 48], [90, 108, 60], [82, 118, 56]],
        [[88, 100, 74], [136, 118, 88], [104, 96, 52], [150, 120, 76], [146, 122, 72]],
    ],
    dtype=np.float32,
)


@dataclasses.dataclass(frozen=True)
class Maps:
    """Maps (n, 96, 96, 3) in uint8, costs (n, 12, 12) and cheapest paths (n, 12, 12).

    Both ends, the first cell and the last, belong to a path and to its cost.
    """

    images: np.ndarray
    costs: np.ndarray
    paths: np.ndarray

    def __len__(self) -> int:
        return len(self.images)


def generate(count: int, seed: int) -> Maps:
    """Make maps; the same count and seed make the same maps."""
    rng = np.random.default_rng(seed)
    terrain = make_terrain(count, rng)
    costs = COSTS[terrain]
    images = np.empty((count, PIXELS, PIXELS, 3), dtype=np.uint8)
    for start in range(0, count, DRAWN_AT_ONCE):
        part = slice(start, start + DRAWN_AT_ONCE)
        images[part] = draw(terrain[part], rng)
    paths = GridPath()(-costs).astype(np.uint8)
    return Maps(images, costs, paths)


def make_terrain(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the terrains (n, 12, 12), by the height and the wetness of the ground."""
    height, wetness = (_noise((count, CELLS, CELLS), 3, rng) for _ in range(2))
    terrain = np.digitize(wetness, [-0.55, 0.6])
    terrain = np.array([DIRT, GRASS, FOREST])[terrain]
    terrain[height < -1.0] = WATER
    terrain[height > 0.95] = MOUNTAIN
    return terrain


def draw(terrain: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return pictures (n, 96, 96, 3) of terrains (n, 12, 12)."""
    shape = (len(terrain), PIXELS, PIXELS)
    ground = _ragged(terrain, rng)
    dryness = 1 / (1 + np.exp(-2.5 * _noise(shape, 25, rng)))
    wet, dry = PALETTE[:, ground]
    picture = wet + dryness[..., None] * (dry - wet)
    picture += _texture(ground, rng)[..., None]
    tint = 0.06 * rng.standard_normal((len(terrain), 1, 1, 3), dtype=np.float32)
    picture *= np.exp(0.18 * _noise(shape, 21, rng))[..., None] * np.exp(tint)
    picture += 3 * rng.standard_normal(picture.shape, dtype=np.float32)
    return np.clip(picture, 0, 255).astype(np.uint8)


def _noise(shape: tuple[int, ...], box: int, rng: np.random.Generator) -> np.ndarray:
    """Return random fields (n, h, w) of mean 0, variance 1 and smooth over a box.

    Three running means come close to a Gaussian filter, at any width for one price.
    """
    field = rng.standard_normal(shape, dtype=np.float32)
    if box > 1:
        for _ in range(3):
            ndimage.uniform_filter(field, (0, box, box), output=field, mode="wrap")
    return field / field.std()


def _ragged(terrain: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the terrain of each pixel (n, 96, 96): cells with ragged borders."""
    count = len(terrain)
    shape = (count, PIXELS, PIXELS)
    place = np.arange(PIXELS, dtype=np.float32)
    row, column = (
        ((along + 0.6 * _noise(shape, 3, rng)) // CELL).clip(0, CELLS - 1).astype(int)
        for along in (place[:, None], place[None, :])
    )
    cells = (row * CELLS + column).reshape(count, -1)
    return np.take_along_axis(terrain.reshape(count, -1), cells, axis=1).reshape(shape)


def _texture(ground: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the light and dark of each pixel (n, 96, 96) around its colour."""
    shape = ground.shape
    fine, coarse = _noise(shape, 1, rng), _noise(shape, 3, rng)
    row = np.arange(PIXELS, dtype=np.float32)[:, None]
    ripples = 9 * np.sin(row * 1.5 + 1.6 * coarse)
    ridges = 15 * (coarse - np.roll(coarse, (1, 1), axis=(1, 2)))
    crowns = 13 * np.clip(2 * coarse, -1.5, 1)
    pebbles = 34 * ((fine > 1.4) * 1.0 - (fine < -1.4))
    blades = 9 * (fine + np.roll(fine, 1, axis=1)) / np.sqrt(2)
    kinds = {
        WATER: ripples,
        MOUNTAIN: ridges,
        FOREST: crowns,
        DIRT: pebbles,
        GRASS: blades,
    }
    result = np.zeros(shape, dtype=np.float32)
    for kind, light in kinds.items():
        np.copyto(result, light, where=ground == kind, casting="same_kind")
    return result
