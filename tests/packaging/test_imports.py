"""What an import loads, and that the core needs none of the extras.

Each test runs a new interpreter, in which nothing is imported yet.
"""

import subprocess
import sys

import pytest

EXTRAS = (
    "click",
    "highspy",
    "jax",
    "jaxlib",
    "joblib",
    "matplotlib",
    "rich",
    "sklearn",
    "torch",
)

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

MISSING = set(sys.argv[1:])
sys.meta_path.insert(0, Missing())
"""

CORE = """
import importlib, pkgutil
import softsolve

OTHERS = ("torch", "jax", "experiments", "cli", "sklearn")
names = [
    found.name
    for found in pkgutil.walk_packages(softsolve.__path__, "softsolve.")
    if found.name.split(".")[1] not in OTHERS
]
for name in names:
    importlib.import_module(name)
print(*names)
"""

NUMPY = """
import numpy as np
import softsolve as ss
from softsolve.numpy import FenchelYoungLoss, Perturbed
from softsolve.testing import check_solver

theta = np.array([[0.3, -1.0, 2.0]])
own = ss.solver(lambda theta: ss.solvers.OneHot()(theta), linear=True)
knapsack = ss.solvers.Knapsack([1, 1, 1], 2)
for solver in (ss.solvers.Ranking(), ss.solvers.L1Ball(), knapsack, own):
    layer = Perturbed(solver, num_samples=50)
    y = layer(theta, rng=0)
    assert y.shape == layer.vjp(theta, y, rng=0).theta.shape == (1, 3)
    assert FenchelYoungLoss(layer)(theta, solver(theta), rng=0) >= 0
    check_solver(solver, theta)
print(sorted(name for name in sys.modules if "." not in name))
"""


def run(code, *arguments, options=()):
    done = subprocess.run(
        [sys.executable, *options, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(module):
    code = f"import sys, {module}; print(*{{n.partition('.')[0] for n in sys.modules}})"
    return set(run(code).split())


def test_softsolve_loads_no_framework():
    loaded = loaded_by("softsolve")
    assert "numba" in loaded
    assert not loaded & set(EXTRAS)


@pytest.mark.parametrize(
    ("module", "its", "others"),
    [
        ("softsolve.numpy", "numpy", {"torch", "jax"}),
        ("softsolve.torch", "torch", {"jax", "sklearn", "matplotlib"}),
        ("softsolve.jax", "jax", {"torch", "sklearn", "matplotlib"}),
        ("softsolve.testing", "numpy", {"torch", "jax"}),
    ],
)
def test_frontends_load_their_own_framework_only(module, its, others):
    loaded = loaded_by(module)
    assert its in loaded
    assert not loaded & others


def test_the_core_imports_without_extras_and_warnings():
    names = run(WITHOUT + CORE, *EXTRAS, options=("-W", "error")).split()
    for name in ("noise", "estimators", "numpy.layers", "solvers.grid", "testing"):
        assert f"softsolve.{name}" in names
    assert len(names) > 60


def test_the_core_works_without_extras():
    loaded = run(WITHOUT + NUMPY, *EXTRAS)
    assert "'softsolve'" in loaded
    assert "'torch'" not in loaded


@pytest.mark.parametrize(
    ("module", "missing", "message"),
    [
        ("softsolve.torch", "torch", "softsolve.torch needs PyTorch.*softsolve[torch]"),
        ("softsolve.jax", "jax", "softsolve.jax needs JAX.*softsolve[jax]"),
        ("softsolve.sklearn", "sklearn", "needs sklearn.*softsolve[sklearn]"),
        ("softsolve.sklearn", "torch", "needs torch.*softsolve[sklearn]"),
        ("softsolve.cli", "click", "needs click.*softsolve[experiments]"),
        ("softsolve.cli", "torch", "needs torch.*softsolve[experiments]"),
        ("softsolve.cli", "matplotlib", "needs matplotlib.*softsolve[experiments]"),
    ],
)
def test_import_errors_name_the_extra(module, missing, message):
    code = f"""
try:
    import {module}
except ImportError as error:
    print(error)
"""
    text = run(WITHOUT + code, missing)
    first, last = message.split(".*")
    assert first in text
    assert last in text


def test_solvers_name_their_extra():
    code = """
import softsolve
try:
    softsolve.solvers.LinearProgram([[1.0]])
except ImportError as error:
    print(error)
"""
    assert "pip install 'softsolve[lp]'" in run(WITHOUT + code, "highspy")
