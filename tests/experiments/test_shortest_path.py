"""The shortest-path experiment: maps, metrics, losses and runs that are stopped."""

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.neighbors import KNeighborsClassifier

from softsolve.cli import main
from softsolve.experiments.errors import DataError, SettingError
from softsolve.experiments.shortest_path import maps, terrain
from softsolve.experiments.shortest_path.experiment import (
    ShortestPath,
    ShortestPathConfig,
)
from softsolve.experiments.shortest_path.losses import LOSSES, path_loss
from softsolve.experiments.shortest_path.metrics import Judgement, are_lines
from softsolve.experiments.shortest_path.network import CostNetwork
from softsolve.experiments.shortest_path.training import PathTraining
from softsolve.solvers import GridPath

TINY = ShortestPathConfig(
    train_size=40, test_size=10, epochs=3, batch_size=20, milestones=(2,), channels=4
)


@pytest.fixture(scope="module")
def generated() -> terrain.Maps:
    return terrain.generate(120, seed=0)


def cell_means(images: np.ndarray) -> np.ndarray:
    """Return the mean colour of each cell (n, 12, 12, 3)."""
    cell = terrain.CELL
    return images.reshape(-1, 12, cell, 12, cell, 3).mean(axis=(2, 4))


def test_maps_are_as_published(generated: terrain.Maps) -> None:
    assert generated.images.shape == (120, 96, 96, 3)
    assert generated.images.dtype == generated.paths.dtype == np.uint8
    assert generated.costs.shape == generated.paths.shape == (120, 12, 12)
    assert set(np.unique(generated.costs)) == set(terrain.COSTS)
    assert are_lines(generated.paths).all()


def test_every_terrain_has_its_share(generated: terrain.Maps) -> None:
    shares = [(generated.costs == cost).mean() for cost in terrain.COSTS]
    assert min(shares) > 0.1
    assert max(shares) < 0.4


def test_a_seed_makes_the_same_maps(generated: terrain.Maps) -> None:
    again, other = terrain.generate(3, seed=1), terrain.generate(3, seed=1)
    assert all(map(np.array_equal, vars(again).values(), vars(other).values()))
    assert not np.array_equal(again.costs, generated.costs[:3])


def test_terrains_share_colours_and_differ_in_patterns() -> None:
    tiles = terrain.tile_set()
    colours = terrain.GROUNDS[terrain.SOILS][:, :, None]
    np.testing.assert_allclose(
        tiles.mean(axis=(3, 4)), np.broadcast_to(colours, (5, 3, 4, 3)), rtol=1e-4
    )
    assert np.bincount(terrain.SOILS.ravel()).min() >= 2
    patterns = (tiles - colours[..., None, None, :])[:, 0, :, :, :, 0].reshape(20, -1)
    apart = np.square(patterns[:, None] - patterns).mean(axis=-1)
    assert apart[~np.eye(20, dtype=bool)].min() > 10**2


def test_the_pattern_of_a_cell_tells_its_cost(generated: terrain.Maps) -> None:
    cell = terrain.CELL
    light = generated.images[:10].mean(axis=-1).reshape(10, 12, cell, 12, cell)
    cells = light.swapaxes(2, 3).reshape(-1, 1, cell * cell)
    tiles = terrain.tile_set()[:, 0].mean(axis=-1).reshape(1, -1, cell * cell)
    cells, tiles = (x - x.mean(axis=-1, keepdims=True) for x in (cells, tiles))
    nearest = np.square(cells - tiles).sum(axis=-1).argmin(axis=1)
    found = terrain.COSTS[nearest // terrain.VARIANTS]
    assert (found == generated.costs[:10].ravel()).mean() > 0.99


def accuracy(features: np.ndarray, costs: np.ndarray) -> float:
    """Return how many cells nearest neighbours get right on the last maps."""
    labels = np.searchsorted(np.sort(terrain.COSTS), costs).reshape(len(costs), -1)
    flat = features.reshape(len(costs), -1, features.shape[-1])
    flat = flat / flat.std(axis=(0, 1))
    model = KNeighborsClassifier(15)
    model.fit(np.concatenate(flat[:80]), np.concatenate(labels[:80]))
    found = model.predict(np.concatenate(flat[80:]))
    return float((found == np.concatenate(labels[80:])).mean())


def test_colour_alone_does_not_give_the_cost_away(generated: terrain.Maps) -> None:
    colour = cell_means(generated.images)
    light = generated.images.mean(axis=-1)
    rows = np.abs(np.diff(light, axis=1, append=0))[..., None]
    columns = np.abs(np.diff(light, axis=2, append=0))[..., None]
    dark_and_bright = np.abs(light - light.mean(axis=(1, 2), keepdims=True))[..., None]
    texture = np.concatenate([rows, columns, dark_and_bright], axis=-1)
    both = np.concatenate([colour, cell_means(texture)], axis=-1)
    by_colour = accuracy(colour, generated.costs)
    assert 0.35 < by_colour < 0.75
    assert accuracy(both, generated.costs) > by_colour + 0.1


def test_paths_by_colour_are_seldom_optimal(generated: terrain.Maps) -> None:
    colour = cell_means(generated.images)
    model = KNeighborsClassifier(15)
    order = np.sort(terrain.COSTS)
    labels = np.searchsorted(order, generated.costs)
    model.fit(colour[:80].reshape(-1, 3), labels[:80].ravel())
    expected = model.predict_proba(colour[80:].reshape(-1, 3)) @ order
    paths = GridPath()(-expected.reshape(-1, 12, 12))
    valid = np.ones(len(paths), dtype=bool)
    judged = Judgement(paths, valid, generated.costs[80:], generated.paths[80:])
    assert judged.summary()["optimal"] < 0.4
    assert judged.summary()["ratio"] > 1.05


def test_files_hold_what_was_generated(tmp_path: Path) -> None:
    ran = CliRunner().invoke(main, ["maps", str(tmp_path), "--train=6", "--test=4"])
    assert ran.exit_code == 0, ran.output
    for place, (split, count) in enumerate((("train", 6), ("test", 4))):
        made, read = (
            terrain.generate(count, seed=place),
            maps.load(tmp_path, split, count),
        )
        assert np.array_equal(made.images, read.images)
        assert np.array_equal(made.paths, read.paths)
        np.testing.assert_allclose(made.costs, read.costs, rtol=1e-3)
    assert np.load(tmp_path / "train_vertex_weights.npy").dtype == np.float16


def broken(folder: Path, name: str, change: object) -> None:
    path = folder / f"{name}.npy"
    if isinstance(change, int):
        path.write_bytes(path.read_bytes()[:change])
    else:
        np.save(path, change(np.load(path)))


def spoil(row: int, value: float) -> object:
    def change(array: np.ndarray) -> np.ndarray:
        array[row, 5, 5] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train_maps", 1000, r"train_maps\.npy cannot be read: .*Get the file again"),
        ("train_maps", 5, r"train_maps\.npy cannot be read"),
        ("train_maps", lambda x: x[:3], "must have at least 5 maps each; got {'maps'"),
        ("train_maps", lambda x: x[:, :80], r"must be of shape \(n, 96, 96, 3\)"),
        ("train_maps", lambda x: x / 255, "colours as uint8, from 0 to 255; got float"),
        ("train_vertex_weights", spoil(2, np.nan), "the costs of map 2 must be posi"),
        ("train_vertex_weights", spoil(1, -1), r"of map 1 must be .* got -1\.0 among"),
        ("train_shortest_paths", lambda x: x[::-1], "path of map 0 must be a cheapest"),
    ],
)
def test_files_that_are_wrong(
    tmp_path: Path, name: str, change: object, message: str
) -> None:
    maps.save(terrain.generate(5, seed=0), tmp_path, "train")
    broken(tmp_path, name, change)
    with pytest.raises(DataError, match=message):
        maps.load(tmp_path, "train", 5)


def test_files_are_found_where_the_archive_puts_them(tmp_path: Path) -> None:
    folder = tmp_path / "warcraft_shortest_path_oneskin" / "12x12"
    with pytest.raises(DataError, match="has no file warcraft_shortest_path_oneskin"):
        maps.load(tmp_path, "test", 2)
    maps.save(terrain.generate(2, seed=0), folder, "test")
    for data in (tmp_path, folder.parent, folder):
        assert len(maps.load(data, "test", 2)) == 2


def drawn(text: str) -> np.ndarray:
    return np.array([[int(c) for c in line] for line in text.split()])


@pytest.mark.parametrize(
    ("text", "is_line"),
    [
        ("100 010 001", True),
        ("110 001 001", True),
        ("110 011 001", False),  # cells to spare
        ("111 111 111", False),
        ("100 000 001", False),  # not joined
        ("000 010 001", False),  # not from the first cell
        ("10000 01000 00100 00010 11001", False),  # more beside it
        ("1000000 0100011 0010011 0001000 0000100 0000010 0000001", False),
    ],
)
def test_a_line_is_a_path_with_no_cells_to_spare(text: str, is_line: bool) -> None:
    assert are_lines(drawn(text)[None]).tolist() == [is_line]


def test_ties_are_optimal_and_detours_are_not() -> None:
    costs = np.array([[1.0, 1, 9], [1, 9, 1], [9, 1, 1]])
    paths = np.stack([drawn("110 001 001"), drawn("100 100 011"), drawn("100 010 001")])
    valid = np.ones(3, dtype=bool)
    cheapest = np.repeat(paths[:1], 3, axis=0)
    judged = Judgement(paths, valid, np.repeat(costs[None], 3, axis=0), cheapest)
    assert judged.optimal.tolist() == [True, True, False]
    assert judged.summary()["ratio"] == pytest.approx((1 + 1 + 11 / 4) / 3)
    judged = Judgement(paths, valid & [True, False, True], costs[None], cheapest)
    assert judged.summary() == {"optimal": 1 / 3, "ratio": None, "valid": 2 / 3}


def test_the_network_is_the_start_of_resnet18() -> None:
    network = CostNetwork(12)
    # conv1 and layer1 of ResNet18, with their batch normalisations.
    count = 64 * 3 * 49 + 4 * 64 * 64 * 9 + 5 * 2 * 64
    assert sum(p.numel() for p in network.parameters()) == count
    costs = network(torch.rand(2, 3, 96, 96))
    assert costs.shape == (2, 12, 12)
    assert (costs >= 0).all()


def loss_of(name: str, costs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = path_loss(
        name, temperature=1.0, num_samples=1, squared_samples=10, interpolation=20.0
    )
    return loss(costs, y, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_fall_along_their_gradients(name: str) -> None:
    data = terrain.generate(8, seed=0)
    y = torch.from_numpy(data.paths).float()
    costs = torch.full((8, 12, 12), 2.0, requires_grad=True)
    value = loss_of(name, costs, y)
    (gradient,) = torch.autograd.grad(value, costs)
    assert value > 0
    assert (gradient * y).sum() != 0
    moved = costs.detach() - 8 * gradient
    assert loss_of(name, moved, y) < value


def test_the_two_gradients_differ_only_where_noise_makes_costs_negative() -> None:
    y = torch.from_numpy(terrain.generate(4, seed=0).paths).float()
    found = {}
    for level in (0.5, 50.0):
        for name in ("fenchel-young", "fenchel-young-exact"):
            costs = torch.full((4, 12, 12), level, requires_grad=True)
            loss_of(name, costs, y).backward()
            found[name] = costs.grad
        same = torch.equal(found["fenchel-young"], found["fenchel-young-exact"])
        assert same == (level == 50.0)
        lost = found["fenchel-young-exact"] == 0
        kept = ~lost
        assert torch.equal(
            found["fenchel-young"][kept], found["fenchel-young-exact"][kept]
        )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_network_learns_costs_from_paths(precision: str) -> None:
    config = dataclasses.replace(
        TINY,
        train_size=200,
        epochs=8,
        channels=8,
        learning_rate=1e-2,
        milestones=(6,),
        precision=precision,
    )
    train, test = terrain.generate(200, seed=0), terrain.generate(60, seed=1)
    training = PathTraining("fenchel-young", config, train, test, seed=0)
    metrics = [training.advance() for _ in range(config.epochs)]
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]
    assert metrics[-1]["test_ratio"] < 1.3 < metrics[0]["train_ratio"]
    predicted = training.predict(test.images)
    means = [predicted[test.costs == cost].mean() for cost in (0.8, 1.2, 9.2)]
    assert means[0] < means[1] < means[2]


@pytest.mark.parametrize("loss", LOSSES)
def test_training_continues_from_its_state(loss: str) -> None:
    train, test = terrain.generate(40, seed=0), terrain.generate(10, seed=1)
    training = PathTraining(loss, TINY, train, test, seed=0)
    training.advance()
    other = PathTraining(loss, TINY, train, test, seed=1)
    other.load_state_dict(copy.deepcopy(training.state_dict()))
    for _ in range(2):  # across the milestone
        assert training.advance() == other.advance()


def test_an_interrupted_run_ends_as_if_it_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softsolve.experiments.runner.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    settings = ["train_size=40", "test_size=10", "epochs=3", "channels=4"]
    settings += ["losses=fenchel-young,squared", "milestones=2", "batch_size=20"]
    arguments = ["run", "shortest-path", *(f"--set={text}" for text in settings)]
    whole = CliRunner().invoke(
        main, [*arguments, "--json", "--out", str(tmp_path / "whole")]
    )
    assert whole.exit_code == 0, whole.output
    advance = PathTraining.advance
    left = iter(range(4))

    def stopping(self: PathTraining) -> object:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return advance(self)

    parts = [*arguments, "--json", "--out", str(tmp_path / "parts")]
    with monkeypatch.context() as patched:
        patched.setattr(PathTraining, "advance", stopping)
        assert CliRunner().invoke(main, parts).exit_code == 130
    again = CliRunner().invoke(main, parts)
    assert again.exit_code == 0, again.output
    assert again.stdout == whole.stdout


def test_the_report_shows_curves_and_maps(tmp_path: Path) -> None:
    settings = ["train_size=20", "test_size=6", "epochs=5", "channels=4"]
    arguments = [f"--set={text}" for text in (*settings, "milestones=1")]
    ran = CliRunner().invoke(
        main, ["run", "shortest-path", *arguments, "--out", str(tmp_path)]
    )
    assert ran.exit_code == 0, ran.output
    assert "Fenchel-Young: " in ran.stdout
    written = CliRunner().invoke(main, ["report", str(tmp_path)])
    page = Path(written.stdout.strip())
    text = page.read_text()
    assert text.count("<img") == 2
    assert "Optimal paths on the test maps, by epoch" in text
    assert "after 5 epochs: " in text
    assert "Squared, no solver: " in text
    assert text.count("Perturbed + Squared</td>") == 2
    for kind in ("curves", "maps"):
        assert (page.parent / f"shortest-path-{kind}.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"losses": ("fenchel",)}, "losses must be among fenchel-young, "),
        ({"losses": ()}, "losses must be one or more"),
        ({"losses": ("squared",) * 2}, "losses must be different from each other"),
        ({"train_size": 0}, "train_size must be at least 1; got 0"),
        ({"test_size": 2}, "test_size must be at least 4; got 2"),
        ({"squared_samples": 1}, "squared_samples must be at least 2; got 1"),
        ({"temperature": 0.0}, "temperature must be positive; got 0.0"),
        ({"precision": "half"}, "precision must be float32 or bfloat16; got 'half'"),
    ],
)
def test_settings_that_are_wrong(changed: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ShortestPathConfig(**changed)  # type: ignore[arg-type]


def test_the_paper_preset_is_the_papers_setting() -> None:
    paper = ShortestPath.presets["paper"]
    assert (paper.train_size, paper.epochs, paper.batch_size) == (10_000, 50, 70)
    assert (paper.temperature, paper.num_samples) == (1.0, 1)
    assert (paper.interpolation, paper.channels, paper.precision) == (20, 64, "float32")
    assert (paper.learning_rate, paper.milestones) == (5e-4, (30, 40))
