"""What is handed to users: wheel and source distribution, in a new environment."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

FIRST_STEPS = """
import importlib.util, sys
from pathlib import Path
import numpy as np
import softsolve as ss
import softsolve.numpy as ssn

assert Path(ss.__file__).is_relative_to(sys.prefix), ss.__file__
for name in ("torch", "jax", "matplotlib", "click", "sklearn", "highspy"):
    assert importlib.util.find_spec(name) is None, name
soft = ssn.Perturbed(ss.solvers.Ranking(), temperature=0.1, num_samples=100)
theta = np.array([[0.3, -1.0, 2.0]])
assert np.allclose(soft(theta, rng=0), [[2, 1, 3]], atol=0.2)
assert soft.vjp(theta, theta, rng=0).theta.shape == theta.shape
for frontend in ("torch", "jax"):
    try:
        importlib.import_module(f"softsolve.{frontend}")
    except ImportError as error:
        assert f"softsolve[{frontend}]" in str(error)
    else:
        raise AssertionError(frontend)
print(ss.__version__)
"""


def python(environment, *arguments, cwd):
    scripts = "Scripts" if sys.platform == "win32" else "bin"
    done = subprocess.run(
        [environment / scripts / "python", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(environment, *what, cwd):
    constraints = ("-c", str(ROOT / "constraints.txt"))
    python(environment, "-m", "pip", "install", "-q", *constraints, *what, cwd=cwd)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return wheel and source distribution, built with the declared build system."""
    directory = tmp_path_factory.mktemp("built")
    builder = directory / "builder"
    venv.create(builder, with_pip=True)
    install(builder, "hatchling>=1.26", cwd=directory)
    python(builder, "-m", "hatchling", "build", "-d", directory, cwd=ROOT)
    (wheel,) = directory.glob("*.whl")
    (source,) = directory.glob("*.tar.gz")
    return wheel, source


def test_wheel_holds_the_package_and_its_types(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        text = wheel.read(metadata).decode()
    assert "softsolve/py.typed" in names
    for path in (ROOT / "src" / "softsolve").rglob("*.py"):
        assert str(path.relative_to(ROOT / "src")) in names
    assert {name.split("/")[0] for name in names} == {
        "softsolve",
        metadata.split("/")[0],
    }
    for line in ("License-Expression: Apache-2.0", "Requires-Python: >=3.11"):
        assert line in text
    for extra in ("torch", "jax", "lp", "cli", "experiments", "dev"):
        assert f"Provides-Extra: {extra}" in text


def test_source_holds_tests_and_licence(built):
    with tarfile.open(built[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {"LICENSE", "README.md", "CITATION.cff", "pyproject.toml"} <= names
    assert {"src/softsolve/py.typed", "tests/conftest.py"} <= names


@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_installed_without_extras(built, kind, tmp_path):
    wheel, source = built
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    install(environment, wheel if kind == "wheel" else source, cwd=tmp_path)
    assert python(environment, "-c", FIRST_STEPS, cwd=tmp_path).strip()
