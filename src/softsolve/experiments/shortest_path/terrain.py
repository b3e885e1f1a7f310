"""Terrain maps made for this experiment, like those of the game Warcraft II.

A map is 96 by 96 pixels for 12 by 12 cells. Each cell has one of five terrains with the
costs of the published maps: lakes lie low, mountains high, and between them forest
grows on wet ground, grass on drier, and dirt is left where it is dry.

As in the game, all maps are made of one small set of tiles, with little noise, so that
a network can come to tell terrains apart almost without error. Colour alone does not
give the cost away: each terrain has a ground of three colours, by the season of the
place, which other terrains have too. The pattern of its tiles tells which one it is.
"""

import dataclasses
import functools

import numpy as np
from scipy import ndimage

from softsolve.solvers import GridPath

CELLS, PIXELS = 12, 96
CELL = PIXELS // CELLS
DRAWN_AT_ONCE = 20  # what fits into a cache
VARIANTS, TILE_SEED = 4, 0  # of the tiles

TERRAINS = ("water", "mountain", "forest", "dirt", "grass")
WATER, MOUNTAIN, FOREST, DIRT, GRASS = range(5)
COSTS = np.array([7.7, 9.2, 5.3, 1.2, 0.8], dtype=np.float32)

# Colours of the ground, and those that each terrain has in a wet, a usual and a dry
# place: each colour is that of two terrains or more.
GROUNDS = np.array(
    [
        [76, 98, 116],  # blue
        [62, 92, 60],  # dark green
        [90, 116, 60],  # green
        [146, 122, 72],  # ochre
        [106, 98, 72],  # brown
    ],
    dtype=np.float32,
)
BLUE, DARK, GREEN, OCHRE, BROWN = range(5)
SOILS = np.array(
    [
        [DARK, BLUE, BROWN],  # water
        [BLUE, BROWN, OCHRE],  # mountain
        [BROWN, DARK, GREEN],  # forest
        [GREEN, OCHRE, BROWN],  # dirt
        [DARK, GREEN, OCHRE],  # grass
    ]
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
    count = len(terrain)
    season = np.digitize(_noise(terrain.shape, 3, rng), [-0.9, 0.9])
    variant = rng.integers(VARIANTS, size=terrain.shape)
    cells = tile_set()[terrain, season, variant]
    picture = np.swapaxes(cells, 2, 3).reshape(count, PIXELS, PIXELS, 3)
    light = 0.05 * rng.standard_normal((count, 1, 1, 3), dtype=np.float32)
    picture *= np.exp(light)
    picture += 2 * rng.standard_normal(picture.shape, dtype=np.float32)
    return np.clip(picture, 0, 255).astype(np.uint8)


@functools.cache
def tile_set() -> np.ndarray:
    """Return the tiles (terrains, seasons, variants, 8, 8, 3) that maps are made of.

    Every tile has the mean colour of its ground; its pattern, light and dark around
    that colour, is the same in all seasons and tells which terrain it is.
    """
    rng = np.random.default_rng(TILE_SEED)
    shape = (len(TERRAINS), VARIANTS, CELL, CELL)
    fine, coarse = (
        np.stack([_noise(shape[1:], box, rng) for _ in TERRAINS]) for box in (1, 3)
    )
    row = np.arange(CELL, dtype=np.float32)[:, None]
    light = np.empty(shape, dtype=np.float32)
    light[WATER] = 18 * np.sin(row * np.pi / 2 + 1.6 * coarse[WATER])
    ridges = coarse[MOUNTAIN] - np.roll(coarse[MOUNTAIN], (1, 1), axis=(1, 2))
    light[MOUNTAIN] = 28 * ridges
    light[FOREST] = 22 * np.clip(2 * coarse[FOREST], -1.5, 1)
    light[DIRT] = 45 * ((fine[DIRT] > 1.3) * 1.0 - (fine[DIRT] < -1.3))
    light[GRASS] = 14 * (fine[GRASS] + np.roll(fine[GRASS], 1, axis=1))
    light -= light.mean(axis=(2, 3), keepdims=True)
    return GROUNDS[SOILS][:, :, None, None, None] + light[:, None, ..., None]


def _noise(shape: tuple[int, ...], box: int, rng: np.random.Generator) -> np.ndarray:
    """Return random fields (n, h, w) of mean 0, variance 1 and smooth over a box.

    Three running means come close to a Gaussian filter, at any width for one price.
    """
    field = rng.standard_normal(shape, dtype=np.float32)
    if box > 1:
        for _ in range(3):
            ndimage.uniform_filter(field, (0, box, box), output=field, mode="wrap")
    return field / field.std()
