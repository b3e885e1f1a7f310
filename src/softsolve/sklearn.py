"""Label ranking for scikit-learn: scores of the labels, learned from rankings."""

import math
from numbers import Integral, Real
from typing import Any, Self

try:
    import torch
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_array, check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:  # pragma: no cover
    _msg = (
        f"softsolve.sklearn needs {error.name}, which is not installed: "
        'pip install "softsolve[sklearn]".'
    )
    raise ImportError(_msg, name=error.name) from error

import numpy as np
from scipy.stats import rankdata

from softsolve.solvers import Ranking
from softsolve.torch import FenchelYoungLoss, Perturbed

__all__ = ["LabelRanker"]


class LabelRanker(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Rank labels by affine scores, learned with the perturbed Fenchel-Young loss.

    The scores of a row x are :math:`\theta = W x + b`, and the label of the largest
    score is the best. Training minimises the mean of
    :math:`L_\varepsilon(\theta_i; y_i)` for the perturbed ranking, a convex function of
    W and b, by Adam on minibatches, with a learning rate that falls linearly to zero.

    Rankings are rows of ranks, one for each label, **1 for the best**. Targets may be
    any numbers: only their order within a row counts, the smallest is the best label's,
    and equal ones share their mean rank.

    Parameters
    ----------
    temperature
        ε, of the perturbed ranking.
    num_samples
        M, draws of the noise for each row and step.
    learning_rate
        Of Adam, at the start.
    max_iter
        Passes over the training rows.
    batch_size
        Rows of a minibatch; the last one of a pass may be smaller.
    alpha
        Weight of the penalty :math:`\frac{\alpha}{2}\|W\|^2`.
    fit_intercept
        Whether there is a b.
    random_state
        Of minibatches and noise: None, an integer or a ``RandomState``.

    Attributes
    ----------
    coef_ : array (labels, features)
        W.
    intercept_ : array (labels,)
        b.
    loss_curve_ : list of float
        The mean training loss of each pass.
    n_iter_ : int
        How many passes were made.
    n_features_in_, feature_names_in_
        What scikit-learn's estimators have.

    Notes
    -----
    Features should be of one scale, as for other linear models trained by gradients:
    put a ``StandardScaler`` before it. Temperature and learning rate are worth a
    search.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 3))
    >>> Y = (-X @ rng.normal(size=(3, 5))).argsort().argsort() + 1  # 1 is the best
    >>> ranker = LabelRanker(learning_rate=0.1, random_state=0).fit(X, Y)
    >>> ranker.predict(X[:1]).shape
    (1, 5)
    >>> ranker.score(X, Y) > 0.95  # the mean of Spearman's correlations
    True
    >>> pipeline = make_pipeline(StandardScaler(), LabelRanker(random_state=0))
    >>> grid = {"labelranker__temperature": [0.1, 1.0]}
    >>> bool(GridSearchCV(pipeline, grid, cv=2).fit(X, Y).best_score_ > 0.9)
    True
    """

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        num_samples: int = 2,
        learning_rate: float = 0.05,
        max_iter: int = 100,
        batch_size: int = 32,
        alpha: float = 0.0,
        fit_intercept: bool = True,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.temperature = temperature
        self.num_samples = num_samples
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit scores to rankings.

        Parameters
        ----------
        X : array-like (rows, features)
        y : array-like (rows, labels)
            Ranks, 1 for the best label.
        """
        self._check_parameters()
        X, y = validate_data(
            self,
            X,
            y,
            dtype=(np.float64, np.float32),
            multi_output=True,
            y_numeric=True,
        )
        if y.ndim != 2:
            msg = (
                f"y must be an array (rows, labels) of ranks; got the shape {y.shape}. "
                "For one label, which has nothing to rank, pass y.reshape(-1, 1)."
            )
            raise ValueError(msg)
        # The solver gives the largest score the largest entry: the best label's.
        target = rankdata(-y, axis=1).astype(X.dtype)
        self._train(torch.as_tensor(X.copy()), torch.as_tensor(target))
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the labels' scores, (rows, labels): the largest is the best's."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        return X @ self.coef_.T + self.intercept_

    def predict(self, X: Any) -> np.ndarray:
        """Return the labels' ranks, (rows, labels): 1 for the best."""
        scores = self.decision_function(X)
        ascending: np.ndarray = Ranking()(scores)
        return (scores.shape[1] + 1 - ascending).astype(np.int64)

    def score(self, X: Any, y: Any) -> float:
        r"""Return the mean over the rows of Spearman's rank correlation.

        It is Pearson's correlation of the ranks, equal ones sharing their mean. As in
        scikit-learn's scores, a row without any order to predict – one label, or all
        equal – counts 1 if the prediction is the same and else 0.
        """
        predicted = self.predict(X)
        y = check_array(y, ensure_2d=False, dtype=(np.float64, np.float32))
        if y.shape != predicted.shape:
            msg = (
                f"y must be ranks of the {predicted.shape[1]} labels that were fitted "
                f"on, of shape {predicted.shape}; got the shape {y.shape}."
            )
            raise ValueError(msg)
        return float(_spearman(predicted, y).mean())

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what the estimator takes."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def _train(self, x: torch.Tensor, y: torch.Tensor) -> None:
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        generator = torch.Generator().manual_seed(int(seed))
        weight = torch.zeros(y.shape[1], x.shape[1], dtype=x.dtype, requires_grad=True)
        bias = torch.zeros(y.shape[1], dtype=x.dtype, requires_grad=self.fit_intercept)
        loss = FenchelYoungLoss(
            Perturbed(
                Ranking(),
                temperature=float(self.temperature),
                num_samples=int(self.num_samples),
            )
        )
        trained = [weight, bias] if self.fit_intercept else [weight]
        adam = torch.optim.Adam(trained, lr=self.learning_rate)
        batches = -(-len(x) // self.batch_size)
        falling = torch.optim.lr_scheduler.LinearLR(
            adam, 1.0, end_factor=1e-6, total_iters=batches * self.max_iter
        )
        self.loss_curve_ = []
        for _ in range(self.max_iter):
            total = 0.0
            order = torch.randperm(len(x), generator=generator)
            for rows in torch.split(order, self.batch_size):
                adam.zero_grad()
                value = loss(x[rows] @ weight.T + bias, y[rows], generator=generator)
                penalty = self.alpha / 2 * weight.square().sum()
                (value + penalty).backward()
                adam.step()
                falling.step()
                total += value.item() * len(rows)
            self.loss_curve_.append(total / len(x))
        self.coef_ = weight.detach().numpy()
        self.intercept_ = bias.detach().numpy()
        self.n_iter_ = self.max_iter

    def _check_parameters(self) -> None:
        for name in ("num_samples", "max_iter", "batch_size"):
            count: Any = getattr(self, name)
            whole = isinstance(count, Integral) and not isinstance(count, bool)
            if not whole or count < 1:
                msg = f"{name} must be an integer of at least 1; got {count!r}."
                raise ValueError(msg)
        for name, must in (
            ("temperature", "positive"),
            ("learning_rate", "positive"),
            ("alpha", "0 or positive"),
        ):
            number: Any = getattr(self, name)
            real = isinstance(number, Real) and math.isfinite(number)
            if not real or number < 0 or (number == 0 and must == "positive"):
                msg = f"{name} must be a finite number, {must}; got {number!r}."
                raise ValueError(msg)
        choice: Any = self.fit_intercept
        if not isinstance(choice, bool | np.bool_):
            msg = f"fit_intercept must be True or False; got {choice!r}."
            raise ValueError(msg)


def _spearman(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation row by row; see :meth:`LabelRanker.score`."""

    def centred(values: np.ndarray) -> np.ndarray:
        return rankdata(values, axis=1) - (values.shape[1] + 1) / 2

    p, q = centred(predicted), centred(y)
    scale = np.sqrt((p**2).sum(axis=1) * (q**2).sum(axis=1))
    same = (p == q).all(axis=1).astype(float)
    return np.divide((p * q).sum(axis=1), scale, out=same, where=scale > 0)
