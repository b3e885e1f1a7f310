"""LabelRanker, as scikit-learn's own tests and its users see it."""

import pickle

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from softsolve.sklearn import LabelRanker


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    scores = x @ rng.normal(size=(4, 5)) + rng.normal(size=5)
    return x, np.argsort(np.argsort(-scores, axis=1), axis=1) + 1


@parametrize_with_checks([LabelRanker(), LabelRanker(fit_intercept=False, alpha=0.1)])
def test_scikit_learns_checks(estimator, check) -> None:
    check(estimator)


def test_it_learns_with_rank_1_the_best(data) -> None:
    x, y = data
    ranker = LabelRanker(learning_rate=0.1, random_state=0).fit(x[:80], y[:80])
    predicted = ranker.predict(x[80:])
    assert np.array_equal(np.sort(predicted, axis=1), np.tile(np.arange(1, 6), (40, 1)))
    assert ranker.score(x[80:], y[80:]) > 0.9
    best = ranker.decision_function(x[80:]).argmax(axis=1)
    assert np.array_equal(predicted.argmin(axis=1), best)
    assert ranker.score(x[80:], 6 - y[80:]) < -0.9
    assert ranker.loss_curve_[-1] < ranker.loss_curve_[0] / 5
    assert len(ranker.loss_curve_) == ranker.n_iter_ == 100
    assert ranker.coef_.shape == (5, 4)


def test_score_is_the_mean_of_scipys_spearman(data) -> None:
    x, y = data
    ranker = LabelRanker(max_iter=2, random_state=0).fit(x, y)
    tied = np.minimum(y, 4).astype(float)  # the last two share a rank
    for target in (y, tied):
        expected = [
            spearmanr(a, b).statistic
            for a, b in zip(ranker.predict(x), target, strict=True)
        ]
        assert ranker.score(x, target) == pytest.approx(np.mean(expected), abs=1e-12)


def test_rows_without_an_order() -> None:
    x = np.arange(6.0).reshape(-1, 1)
    alone = LabelRanker(max_iter=1).fit(x, np.ones((6, 1)))
    assert alone.score(x, np.ones((6, 1))) == 1
    pair = LabelRanker(max_iter=1).fit(x, np.tile([1, 2], (6, 1)))
    assert pair.score(x, np.ones((6, 2))) == 0


def test_only_the_order_of_targets_counts(data) -> None:
    x, y = data
    first = LabelRanker(max_iter=3, random_state=0).fit(x, y)
    second = LabelRanker(max_iter=3, random_state=0).fit(x, np.exp(y) - 100)
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert first.score(x, np.exp(y)) == first.score(x, y)


def test_the_same_random_state_gives_the_same_model(data) -> None:
    x, y = data

    def fit(random_state: object) -> np.ndarray:
        return LabelRanker(max_iter=2, random_state=random_state).fit(x, y).coef_

    np.testing.assert_array_equal(fit(3), fit(3))
    np.testing.assert_array_equal(fit(3), fit(np.random.RandomState(3)))
    assert not np.array_equal(fit(3), fit(4))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_is_that_of_the_features(data, dtype) -> None:
    x, y = data
    ranker = LabelRanker(max_iter=1).fit(x.astype(dtype), y)
    assert ranker.coef_.dtype == ranker.intercept_.dtype == dtype
    assert ranker.decision_function(x.astype(dtype)).dtype == dtype


def test_the_penalty_shrinks_and_the_intercept_is_optional(data) -> None:
    x, y = data
    free = LabelRanker(random_state=0).fit(x, y)
    tied = LabelRanker(alpha=10.0, fit_intercept=False, random_state=0).fit(x, y)
    assert np.linalg.norm(tied.coef_) < 0.5 * np.linalg.norm(free.coef_)
    assert np.abs(free.intercept_).max() > 0
    assert np.array_equal(tied.intercept_, np.zeros(5))


def test_grid_search_and_pipelines(data) -> None:
    x, y = data
    pipeline = make_pipeline(StandardScaler(), LabelRanker(random_state=0, max_iter=30))
    grid = {"labelranker__learning_rate": [1e-6, 0.1]}
    search = GridSearchCV(pipeline, grid, cv=KFold(3)).fit(100 * x + 7, y)
    assert search.best_params_ == {"labelranker__learning_rate": 0.1}
    assert search.score(100 * x + 7, y) > 0.9
    assert cross_val_score(clone(pipeline), x, y, cv=3).min() > 0.8
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(x), search.predict(x))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"temperature": 0}, "temperature must be a finite number, positive; got 0"),
        ({"temperature": "hot"}, "temperature must be a finite number.* got 'hot'"),
        ({"learning_rate": np.inf}, "learning_rate must be a finite number"),
        ({"alpha": -1.0}, "alpha must be a finite number, 0 or positive; got -1.0"),
        ({"num_samples": 0}, "num_samples must be an integer of at least 1; got 0"),
        ({"max_iter": 2.5}, "max_iter must be an integer of at least 1; got 2.5"),
        ({"batch_size": True}, "batch_size must be an integer of at least 1; got True"),
        ({"fit_intercept": "no"}, "fit_intercept must be True or False; got 'no'"),
    ],
)
def test_parameters_that_are_wrong(data, parameters, message) -> None:
    with pytest.raises(ValueError, match=message):
        LabelRanker(**parameters).fit(*data)


def test_targets_that_are_wrong(data) -> None:
    x, y = data
    with pytest.raises(ValueError, match=r"y must be an array \(rows, labels\)"):
        LabelRanker().fit(x, y[:, 0])
    with pytest.raises(ValueError, match="Input y contains NaN"):
        LabelRanker().fit(x, np.where(y == 2, np.nan, y))
    ranker = LabelRanker(max_iter=1).fit(x, y)
    with pytest.raises(ValueError, match=r"ranks of the 5 labels .* got the shape"):
        ranker.score(x, y[:, :3])
