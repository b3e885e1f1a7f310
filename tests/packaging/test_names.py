"""The public names: listed, there, documented, and on the page of the API."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.rst").read_text()
MODULES = sorted(set(re.findall(r"automodule:: (softsolve[\w.]*)", API)))


def test_every_public_module_is_on_the_page():
    top = {path.stem for path in (ROOT / "src" / "softsolve").glob("[a-z]*.py")}
    packages = {
        path.parent.name for path in (ROOT / "src" / "softsolve").glob("[a-z]*/*.py")
    }
    # The formulas and what layers share, for those who change softsolve.
    inner = {
        "array_route",
        "cli",
        "compiled",
        "errors",
        "estimators",
        "experiments",
        "fused_products",
        "fused_route",
        "layer",
        "perturbation",
        "products",
        "retained",
        "settings",
    }
    public = {name.removeprefix("softsolve").removeprefix(".") for name in MODULES}
    assert public - {""} == (top | packages) - inner


@pytest.mark.parametrize("name", MODULES)
def test_names_are_listed_and_documented(name):
    module = importlib.import_module(name)
    names = module.__all__
    assert len(names) == len(set(names)) > 0
    assert module.__doc__
    for public in names:
        item = getattr(module, public)
        assert not public.startswith("_") or public == "__version__"
        if inspect.isclass(item) or inspect.isroutine(item):
            assert item.__doc__, public


@pytest.mark.parametrize("name", MODULES)
def test_nothing_public_is_left_out(name):
    """A class of a public module, rather than one that it imports, is listed."""
    module = importlib.import_module(name)
    own = {
        public
        for public, item in vars(module).items()
        if not public.startswith("_")
        and inspect.isclass(item)
        and item.__module__ == name
    }
    assert own <= set(module.__all__)


def test_frontends_have_the_same_names():
    listed = {
        name: set(importlib.import_module(f"softsolve.{name}").__all__)
        for name in ("numpy", "torch", "jax")
    }
    assert listed["torch"] == listed["jax"]
    # NumPy has no backward pass to replace, and returns gradients by name.
    assert listed["numpy"] == listed["torch"] - {"BlackBox"} | {"Gradients"}


def test_frontends_take_the_same_options():
    layers, losses = (
        {
            frontend: set(inspect.signature(getattr(module, kind)).parameters)
            for frontend in ("numpy", "torch", "jax")
            for module in [importlib.import_module(f"softsolve.{frontend}")]
        }
        for kind in ("Perturbed", "FenchelYoungLoss")
    )
    assert layers["torch"] == layers["jax"]
    assert layers["numpy"] == layers["torch"] - {"backward"}
    assert losses["torch"] == losses["jax"] == losses["numpy"]


def test_methods_have_the_same_names():
    methods = {"jacobian", "maximum", "sample", "distribution"}
    for frontend, more in (
        ("torch", set()),
        ("jax", set()),
        ("numpy", {"vjp", "jvp", "hessian"}),
    ):
        layer = importlib.import_module(f"softsolve.{frontend}").Perturbed
        for name in methods | more:
            parameters = inspect.signature(getattr(layer, name)).parameters
            assert getattr(layer, name).__doc__, name
            assert {"theta", "context", "temperature"} <= set(parameters)
