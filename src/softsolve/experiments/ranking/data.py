"""Label-ranking data: features, and a ranking of the labels in every row.

Files are CSV, gzipped or not, with the header ``x1,…,xp,y1,…,yk``; yj is the rank of
label j, 1 for the best.
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.naive_bayes import GaussianNB

from softsolve.experiments import catalogue
from softsolve.experiments.errors import DataError


@dataclasses.dataclass(frozen=True)
class LabelRankingData:
    """Features (n, p) and ranks (n, k), 1 for the best label."""

    features: np.ndarray
    ranks: np.ndarray


def load(name: str, data: Path | None) -> LabelRankingData:
    """Return a data set from its file, or built if it can be.

    Without a directory, or where the data set is not one of the published ones, it is
    built from scikit-learn's.

    Raises
    ------
    DataError
        If there is no such data set, or the file is not what it should be.
    """
    if built(name, data):
        return BUILDERS[name]()
    return parse(catalogue.find(data, catalogue.LABEL_RANKING, name))


def built(name: str, data: Path | None) -> bool:
    """Tell whether a data set is built, and not read."""
    published = name in catalogue.LABEL_RANKING.checksums
    return name in BUILDERS and (data is None or not published)


def parse(path: Path) -> LabelRankingData:
    """Read a file, and check that every row holds a ranking."""
    header, *lines = catalogue.read(path).decode("utf-8", "replace").splitlines() or [
        ""
    ]
    names = header.strip().split(",")
    features = sum(re.fullmatch(r"x\d+", name) is not None for name in names)
    labels = sum(re.fullmatch(r"y\d+", name) is not None for name in names)
    if features + labels != len(names) or not features or not labels:
        msg = f"{path} must start with the header x1,…,xp,y1,…,yk; got {header[:80]!r}."
        raise DataError(msg)
    table = np.empty((len(lines), len(names)))
    for row, line in enumerate(lines):
        try:
            table[row] = np.array(line.split(","), dtype=float)
        except ValueError:
            msg = (
                f"{path}, line {row + 2}: must be {len(names)} numbers; got "
                f"{line[:80]!r}. Is the file truncated? Get it again."
            )
            raise DataError(msg) from None
    ranks = table[:, features:]
    wrong = (np.sort(ranks, axis=1) != np.arange(1, labels + 1)).any(axis=1)
    wrong |= ~np.isfinite(table).all(axis=1)
    if wrong.any() or not len(table):
        row = int(np.argmax(wrong)) if wrong.any() else 0
        shown = ranks[row].tolist() if len(table) else "no rows"
        msg = (
            f"{path}, line {row + 2}: must be finite features and ranks 1 to {labels}, "
            f"each once; got the ranks {shown}. Get the file again."
        )
        raise DataError(msg)
    return LabelRankingData(table[:, :features], ranks)


def from_classes(features: np.ndarray, classes: np.ndarray) -> LabelRankingData:
    """Rank classes by the probabilities that a naive Bayes classifier gives them.

    The construction of type A of Cheng et al. (2009); among equals, the class of lower
    index comes first.
    """
    model = GaussianNB(var_smoothing=1e-6).fit(features, classes)
    probabilities = model.predict_joint_log_proba(features)
    return LabelRankingData(_scaled(features), _ranks(-probabilities))


def from_attributes(features: np.ndarray, labels: list[int]) -> LabelRankingData:
    """Rank some attributes, standardised, by their values; the others are features.

    The construction of type B of Cheng et al. (2009), the largest value first.
    """
    chosen = features[:, labels]
    standardised = (chosen - chosen.mean(axis=0)) / chosen.std(axis=0)
    others = np.delete(features, labels, axis=1)
    return LabelRankingData(_scaled(others), _ranks(-standardised))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return each value's place in its row, 1 for the smallest."""
    order = np.argsort(values, axis=1, kind="stable")
    return np.argsort(order, axis=1) + 1.0


def _scaled(features: np.ndarray) -> np.ndarray:
    """Scale each feature to [-1, 1]; drop those that are constant."""
    low, high = features.min(axis=0), features.max(axis=0)
    varies = high > low
    width = high[varies] - low[varies]
    return 2 * (features[:, varies] - low[varies]) / width - 1


def _built_from(
    load_classes: Callable[..., tuple[np.ndarray, np.ndarray]],
) -> Callable[[], LabelRankingData]:
    return lambda: from_classes(*load_classes(return_X_y=True))


def _diabetes() -> LabelRankingData:
    # The six measurements of blood serum are ranked.
    return from_attributes(datasets.load_diabetes().data, [4, 5, 6, 7, 8, 9])


BUILDERS: dict[str, Callable[[], LabelRankingData]] = {
    "iris": _built_from(datasets.load_iris),
    "wine": _built_from(datasets.load_wine),
    "digits": _built_from(datasets.load_digits),
    "diabetes": _diabetes,
}
