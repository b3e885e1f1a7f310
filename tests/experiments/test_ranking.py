import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from softsolve.experiments.errors import DataError, SettingError
from softsolve.experiments.page import Picture, Table
from softsolve.experiments.ranking import data, paper
from softsolve.experiments.ranking.experiment import RankingConfig, nested_folds
from softsolve.experiments.ranking.losses import LOSSES, ranking_loss
from softsolve.experiments.ranking.page import (
    at_least_similar,
    ranking_page,
    shortfall,
    verdict,
)
from softsolve.experiments.ranking.training import AffineModels, spearman
from softsolve.experiments.records import RunDirectory


def make_models(loss: str, seed: int = 0) -> AffineModels:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=generator)
    y = (x @ torch.randn(3, 4, generator=generator)).argsort().argsort() + 1.0
    return AffineModels(
        x,
        y,
        [torch.arange(0, 30), torch.arange(5, 40)],
        learning_rates=torch.tensor([0.01, 0.1, 0.03]),
        loss=ranking_loss(
            loss,
            temperatures=torch.tensor([0.1, 1.0, 0.5]),
            num_samples=5,
            interpolation=0.1,
        ),
        batch_size=8,
        total_steps=200,
        seed=seed,
    )


def test_models_side_by_side_are_the_models_one_by_one() -> None:
    models = make_models("squared")
    replay = torch.Generator().manual_seed(0)
    weights = [
        [torch.zeros(3, 4, requires_grad=True) for _ in range(3)] for _ in range(2)
    ]
    adams = [
        [
            torch.optim.Adam([weight], lr=rate)
            for weight, rate in zip(row, (0.01, 0.1, 0.03), strict=True)
        ]
        for row in weights
    ]
    for step in range(50):
        models.step()
        places = (
            torch.rand(2, 8, generator=replay) * torch.tensor([[30], [35]])
        ).long()
        for split, start in enumerate((0, 5)):
            rows = places[split] + start
            for weight, adam, rate in zip(
                weights[split], adams[split], (0.01, 0.1, 0.03), strict=True
            ):
                adam.param_groups[0]["lr"] = rate * (1 - step / 200)
                adam.zero_grad()
                difference = models.y[rows] - models.x[rows] @ weight
                (difference.square().sum(dim=1) / 2).mean().backward()
                adam.step()
    ours = models.weights.view(2, 3, 3, 4).movedim(2, 1)
    single = torch.stack([torch.stack(row) for row in weights]).detach()
    assert ours.abs().mean() > 0.1
    torch.testing.assert_close(ours, single, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_learns_to_rank(loss: str) -> None:
    models = make_models(loss)
    held_out = [torch.arange(30, 40), torch.arange(0, 5)]
    for _ in range(200):
        models.step()
    assert models.correlations(held_out).max(dim=1).values.min() > 0.8


def test_training_continues_from_its_state() -> None:
    models, other = make_models("fenchel-young"), make_models("fenchel-young", seed=5)
    for _ in range(5):
        models.step()
    other.load_state_dict(models.state_dict())
    torch.testing.assert_close(models.step(), other.step(), rtol=0, atol=0)
    torch.testing.assert_close(models.weights, other.weights, rtol=0, atol=0)


def test_spearman_is_scipys() -> None:
    rng = np.random.default_rng(0)
    first = torch.tensor(rng.permuted(np.tile(np.arange(1.0, 8), (20, 1)), axis=1))
    second = torch.tensor(rng.permuted(np.tile(np.arange(1.0, 8), (20, 1)), axis=1))
    expected = [spearmanr(a, b).statistic for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(spearman(first, second), expected, atol=1e-6)


def test_inner_folds_never_see_the_fold_that_judges() -> None:
    train, held_out = nested_folds(53)
    assert len(train) == len(held_out) == 60
    judged = torch.cat(held_out[::6]).sort().values
    assert judged.tolist() == list(range(53))
    for fold in range(10):
        test = set(held_out[6 * fold].tolist())
        for split in range(6 * fold + 1, 6 * fold + 6):
            inner = train[split].tolist() + held_out[split].tolist()
            assert sorted(inner) == sorted(set(range(53)) - test)


def column(table: dict[str, tuple[paper.Cell, ...]], place: int) -> dict[str, float]:
    return {name: cells[place][0] for name, cells in table.items()}


def test_the_papers_tables_have_the_means_and_shares_it_claims() -> None:
    for table, means in (
        (paper.TABLE_1, (0.611, 0.476, 0.614, 0.572)),
        (paper.TABLE_2, (0.624, 0.613, 0.613, 0.572)),
    ):
        assert len(table) == 21
        for place, mean in enumerate(means):
            found = np.mean(list(column(table, place).values()))
            np.testing.assert_allclose(found, mean, atol=6e-4)
    ours = column(paper.TABLE_1, 0)
    assert at_least_similar(ours, column(paper.TABLE_1, 2)) == pytest.approx(16 / 21)
    assert at_least_similar(ours, column(paper.TABLE_1, 3)) == pytest.approx(19 / 21)


def test_shortfall_allows_the_larger_of_errors_and_three_points() -> None:
    ours = {"spearman": 0.50, "deviation": 0.0}
    assert shortfall(ours, (0.52, 0.0)) < 0 < shortfall(ours, (0.54, 0.0))
    wide = {"spearman": 0.50, "deviation": 0.1}
    assert shortfall(wide, (0.54, 0.1)) < 0 < shortfall(wide, (0.60, 0.1))


@pytest.mark.parametrize(
    ("spearman", "deviation", "theirs", "mark"),
    [
        (0.50, 0.0, (0.50, 0.0), ""),
        (0.504, 0.0, (0.50, 0.0), ""),  # the paper's number is rounded
        (0.51, 0.0, (0.50, 0.0), "+"),
        (0.49, 0.0, (0.50, 0.0), "−"),
        (0.46, 0.0, (0.50, 0.0), "↓"),
        (0.46, 0.1, (0.50, 0.1), ""),
    ],
)
def test_cells_are_judged_against_both_standard_errors(
    spearman: float, deviation: float, theirs: paper.Cell, mark: str
) -> None:
    assert verdict({"spearman": spearman, "deviation": deviation}, theirs) == mark


def record(name: str, loss: str, spearman: float) -> dict[str, object]:
    cell = {"spearman": spearman, "deviation": 0.0}
    fixed = {"0.1": cell} if loss == "fenchel-young" else {}
    trial = {"data": name, "loss": loss}
    return {"trial": trial, "result": {**cell, "fixed": fixed}, "seconds": 1.0}


def test_the_page_of_an_unfinished_run_has_what_there_is(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert "No trial" in ranking_page(LOSSES, run).blocks[0].as_html()
    run.open_metrics(0)
    run.append({"trial": {"data": "wine", "loss": "fenchel-young"}, "round": 1} | LOSS)
    run.append(record("wine", "fenchel-young", 0.90))
    run.append(record("wine", "squared", 0.96))
    run.append(record("iris", "fenchel-young", 0.85))
    run.close()
    page = ranking_page(LOSSES, run)
    tables = {block.title: block for block in page.blocks if isinstance(block, Table)}
    second = tables["Table 2: learning rate and temperature chosen"]
    assert second.header[1:] == ["Perturbed FY", "paper", "Squared", "paper"]
    assert second.rows == [
        ["wine", "0.900 ± 0.000 ↓", "0.95 ± 0.04", "0.960 ± 0.000", "0.96 ± 0.04"],
        ["iris", "0.850 ± 0.000 +", "0.80 ± 0.12", "–", "0.81 ± 0.08"],
        ["mean", "0.875", "0.875", "0.960", "0.960"],
    ]
    shares = tables["Data sets where our loss is better, or within 5%"]
    assert shares.rows[0] == ["table 2", "0%"]
    assert shares.rows[-2:] == [
        ["the paper's table 1", "76%"],
        ["the paper's table 2", "90%"],
    ]
    pictures = [block.name for block in page.blocks if isinstance(block, Picture)]
    assert pictures == ["scatter", "curves"]


LOSS = {"loss": 2.0}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_files_are_read(tmp_path: Path) -> None:
    text = "x1,x2,y1,y2\n0.5,1,2,1\n-1,0,1,2\n"
    plain = data.parse(write(tmp_path / "a.csv", text))
    np.testing.assert_array_equal(plain.features, [[0.5, 1], [-1, 0]])
    np.testing.assert_array_equal(plain.ranks, [[2, 1], [1, 2]])
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    packed = data.parse(tmp_path / "a.csv.gz")
    np.testing.assert_array_equal(packed.ranks, plain.ranks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must start with the header"),
        ("a,b\n1,2\n", "must start with the header"),
        ("x1,y1,y2\n", "got the ranks no rows"),
        ("x1,y1,y2\n1,1,2\n1,2\n", "line 3: must be 3 numbers; got '1,2'"),
        ("x1,y1,y2\n1,1,2\n1,2,2\n", r"line 3: .*got the ranks \[2.0, 2.0\]"),
        ("x1,y1,y2\nnan,1,2\n", "line 2: must be finite"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.parse(write(tmp_path / "a.csv", text))


def test_a_truncated_archive(tmp_path: Path) -> None:
    packed = gzip.compress(b"x1,y1,y2\n" + b"1,1,2\n" * 100)
    (tmp_path / "a.csv.gz").write_bytes(packed[:-12])
    with pytest.raises(DataError, match=r"cannot be read.*Get the file again"):
        data.parse(tmp_path / "a.csv.gz")


@pytest.mark.parametrize(
    ("name", "rows", "labels"), [("iris", 150, 3), ("diabetes", 442, 6)]
)
def test_data_sets_are_built(name: str, rows: int, labels: int) -> None:
    built = data.load(name, None)
    assert built.ranks.shape == (rows, labels)
    ordered = np.sort(built.ranks, axis=1)
    np.testing.assert_array_equal(ordered, np.tile(np.arange(1, labels + 1), (rows, 1)))
    assert built.features.min() == -1
    assert built.features.max() == 1


def test_attributes_are_ranked_by_their_values() -> None:
    features = np.array([[1.0, 5, 0, 3], [2, 0, 10, 4], [3, 1, 5, 4]])
    built = data.from_attributes(features, [1, 2])
    np.testing.assert_array_equal(built.ranks, [[1, 2], [2, 1], [2, 1]])
    np.testing.assert_array_equal(built.features, [[-1, -1], [0, 1], [1, 1]])


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"glass has to be read .* Pass --data"):
        data.load("glass", None)
    with pytest.raises(DataError, match="no file label_ranking/iris"):
        data.load("iris", tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"losses": ("hinge",)}, "losses must be among fenchel-young"),
        ({"num_samples": 1}, "num_samples must be at least 2"),
        ({"steps": 7, "rounds": 2}, "steps must be a multiple of rounds"),
        ({"temperatures": (0.0,)}, "temperatures must be positive"),
        ({"data_sets": ()}, "data_sets must be one or more"),
        ({"data_sets": ("iris", "iris")}, "data_sets must be different from each"),
    ],
)
def test_settings_that_are_wrong(changed: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        RankingConfig(**changed)  # type: ignore[arg-type]
