"""Terrain maps made for this experiment, like those of the game Warcraft II.

A map is 96 by 96 pixels for 12 by 12 cells. Each cell has one of five terrains with the
costs of the published maps, and terrains come in patches. Colour alone does not give
the cost away: the palettes overlap, each cell and each map is lit differently, and what
sets neighbouring palettes apart is texture: stripes, speckles, waves.
"""

import dataclasses

import numpy as np
from scipy import ndimage

from softsolve.solvers import GridPath

CELLS, PIXELS = 12, 96
CELL = PIXELS // CELLS

# Water, mountain, forest, dirt and grass: the costs of the published maps.
COSTS = np.array([7.7, 9.2, 5.3, 1.2, 0.8], dtype=np.float32)
SHARES = np.array([0.14, 0.14, 0.22, 0.2, 0.3])

PALETTE = np.array(
    [[70, 100, 120], [110, 105, 95], [75, 105, 70], [115, 100, 70], [90, 115, 75]],
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
    terrain = _terrains(count, rng)
    costs = COSTS[terrain]
    images = np.concatenate(
        [_draw(part, rng) for part in np.array_split(terrain, -(-count // 500))]
    )
    paths = GridPath()(-costs).astype(np.uint8)
    return Maps(images, costs, paths)


def _terrains(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the terrains (n, 12, 12): levels of a smooth random field, shuffled."""
    field = rng.normal(size=(count, CELLS, CELLS))
    field = ndimage.gaussian_filter(field, (0, 0.9, 0.9), mode="reflect")
    field += 0.1 * rng.normal(size=field.shape)
    field /= field.std()
    edges = np.quantile(field, np.cumsum(SHARES)[:-1])
    return np.digitize(field, edges)


def _draw(terrain: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the pictures (n, 96, 96, 3) of terrains (n, 12, 12)."""
    count = len(terrain)
    pixels = terrain.repeat(CELL, axis=1).repeat(CELL, axis=2)
    picture = PALETTE[pixels]
    cells = rng.normal(0, 12, size=(count, CELLS, CELLS, 3)).astype(np.float32)
    picture = picture + cells.repeat(CELL, axis=1).repeat(CELL, axis=2)
    picture += rng.normal(0, 10, size=(count, 1, 1, 3)).astype(np.float32)
    picture += _textures(pixels, rng)[..., None]
    picture += rng.normal(0, 6, size=picture.shape).astype(np.float32)
    return np.clip(picture, 0, 255).astype(np.uint8)


def _textures(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return what texture adds to the light of each pixel (n, 96, 96)."""
    count = len(pixels)
    row, column = np.mgrid[:PIXELS, :PIXELS].astype(np.float32)
    phase = rng.uniform(0, 2 * np.pi, size=(2, count, 1, 1)).astype(np.float32)
    waves = 16 * np.sin(2 * np.pi * row / 4 + np.sin(column / 3) + phase[0])
    ridges = 16 * np.sin(2 * np.pi * (row + column) / 5 + phase[1])
    grain = rng.normal(size=pixels.shape).astype(np.float32)
    tufts = 40 * (ndimage.gaussian_filter(grain, (0, 1, 1)) > 0.25)
    pebbles = np.where(grain > 1.6, 45, 0)
    blades = 14 * np.sin(2 * np.pi * column / 3 + grain)
    kinds = np.stack([waves, ridges, tufts - 15, pebbles, blades])
    return np.take_along_axis(kinds, pixels[None], axis=0)[0]
