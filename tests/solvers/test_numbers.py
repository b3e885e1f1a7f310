"""Counts and vertices that are no whole numbers."""

import numpy as np
import pytest

from softsolve import solvers

EDGES = [[0, 1], [1, 2]]

MADE = {
    r"TopK\(k\)": solvers.TopK,
    r"KSupportBall\(k=": solvers.KSupportBall,
    r"Chain\(states=": solvers.Chain,
    r"GraphPath\(num_vertices=": lambda n: solvers.GraphPath(n, EDGES),
    r"GraphPath\(source=": lambda n: solvers.GraphPath(3, EDGES, source=n, target=2),
    r"GraphPath\(target=": lambda n: solvers.GraphPath(3, EDGES, source=0, target=n),
    r"SpanningTree\(num_vertices=": lambda n: solvers.SpanningTree(n, EDGES),
    r"SpanningForest\(num_components=": lambda n: solvers.SpanningForest(
        3, EDGES, num_components=n
    ),
    r"Flow\(num_vertices=": lambda n: solvers.Flow(n, EDGES, 0, 2),
    r"Flow\(source=": lambda n: solvers.Flow(3, EDGES, n, 2),
    r"Flow\(target=": lambda n: solvers.Flow(3, EDGES, 0, n),
    r"BipartiteMatching\(num_left=": lambda n: solvers.BipartiteMatching(n, 3, EDGES),
    r"BipartiteMatching\(num_right=": lambda n: solvers.BipartiteMatching(2, n, EDGES),
}


@pytest.mark.parametrize("bad", [2.0, 1.5, "1"])
@pytest.mark.parametrize("name", MADE)
def test_what_is_no_whole_number(name, bad):
    with pytest.raises(
        TypeError, match=rf"{name}.* must be a whole number; got {bad!r}"
    ):
        MADE[name](bad)


@pytest.mark.parametrize("name", MADE)
def test_whole_numbers_of_numpy(name):
    number = 1 if "source" in name or "components" in name else 2
    number += "vertices" in name or "right" in name
    assert repr(MADE[name](np.int32(number))) == repr(MADE[name](number))
