"""Compiled code on disk: found again, renewed when it must be, and done without."""

import enum
import logging
import os
import subprocess
import sys
import textwrap

import numba
import numpy as np
import pytest

from softsolve.compiled import compilation
from softsolve.compiled.compilation import (
    Compiled,
    compile_function,
    with_fingerprint,
)


class Colour(enum.Enum):
    RED = 1


LIMIT = 2.5
TABLE = np.arange(3.0)
PAIR = (1, (2, "three"))


@numba.njit
def helper(x):
    return x + LIMIT if x > 0 else other(x)


@numba.njit
def other(x):
    return x if x > TABLE[0] else helper(-x)


def uses_all(theta, y):
    y[0] = helper(theta[0]) + PAIR[0] + np.pi + Colour.RED.value


def run(script, environment, tmp_path):
    path = tmp_path / "script.py"
    if not path.exists() or path.read_text() != script:
        path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split(), done.stderr


SCRIPT = textwrap.dedent(
    """
    import logging, os
    logging.basicConfig(level=logging.INFO)
    import numpy as np
    import softsolve as ss
    import beside
    from beside import raised

    FACTOR = float(os.environ["FACTOR"])

    @ss.compiled
    def scaled(theta, y):
        y[0] = raised(theta[0] * FACTOR) + beside.OFFSET

    print(scaled(np.ones((1, 1)))[0, 0])
    """
)

BESIDE = """
import numba

OFFSET = {offset}

@numba.njit
def raised(x):
    return x + {step}
"""


def test_code_on_disk_follows_constants_and_functions_of_other_files(tmp_path):
    """Numba itself would go on using what it compiled for the first values."""
    found = []
    for factor, step, offset in ((2, 1, 0), (2, 1, 0), (3, 1, 0), (3, 5, 0), (3, 5, 9)):
        text = BESIDE.format(step=step, offset=offset)
        (tmp_path / "beside.py").write_text(text)
        # An edit within the resolution of the file system's clock must not matter.
        os.utime(tmp_path / "beside.py", (0, step + 10 * offset))
        out, err = run(SCRIPT, {"FACTOR": str(factor)}, tmp_path)
        found.append((out, "compiled scaled" in err))
    assert found == [
        (["3.0"], True),
        (["3.0"], False),
        (["4.0"], True),
        (["8.0"], True),
        (["17.0"], True),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LIMIT", 3.5),
        ("TABLE", np.arange(4.0)),
        ("PAIR", (1, (2, "four"))),
        ("Colour", enum.Enum("Colour", {"RED": 2})),
    ],
)
def test_the_name_changes_with_constants(monkeypatch, name, value):
    first = with_fingerprint(uses_all)
    assert with_fingerprint(uses_all).__qualname__ == first.__qualname__
    assert first.__qualname__.startswith("uses_all-")
    monkeypatch.setitem(globals(), name, value)
    assert with_fingerprint(uses_all).__qualname__ != first.__qualname__


def test_without_a_place_to_keep_code(tmp_path):
    script = textwrap.dedent(
        """
        import numpy as np
        import softsolve as ss
        import softsolve.numpy as ssn

        @ss.compiled
        def largest(theta, y):
            y[theta.argmax()] = 1

        theta = np.eye(3)
        for solver in (ss.solvers.OneHot(), ss.solvers.Chain(3), largest):
            print(ssn.Perturbed(solver, temperature=1e-3)(theta, rng=0).sum())
        """
    )
    environment = {
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
        "NUMBA_CACHE_DIR": os.devnull + "/none",
    }
    out, err = run(script, environment, tmp_path)
    assert [round(float(each)) for each in out] == [3, 3, 3]
    lines = err.splitlines()
    assert len(lines) == 2
    assert "softsolve's compiled code cannot be kept on disk" in lines[0]
    assert "Set NUMBA_CACHE_DIR" in lines[0]
    assert "compiled largest for float64" in lines[1]


def test_a_damaged_cache_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    assert compile_function(double, "float64(float64)").obstacle is None
    (index,) = tmp_path.rglob("*.nbi")
    index.write_bytes(index.read_bytes()[:20])
    compiled = compile_function(double, "float64(float64)")
    assert compiled.obstacle is not None
    assert compiled.dispatcher(3.0) == 6


def double(x):
    return 2 * x


def test_a_cache_of_another_program_is_done_without(monkeypatch):
    """Code on disk imports the module that it was compiled in, which may be gone."""

    def load_overload(cache, signature, target):
        raise ModuleNotFoundError("No module named 'elsewhere'")  # noqa: EM101

    monkeypatch.setattr(numba.core.caching.Cache, "load_overload", load_overload)
    compiled = compile_function(double, "float64(float64)")
    assert "elsewhere" in compiled.obstacle
    assert compiled.dispatcher(3.0) == 6


def test_modules_of_other_names_have_their_own_code(monkeypatch):
    """A script is __main__ when it is run, and something else when it is imported."""
    first = with_fingerprint(double).__qualname__
    monkeypatch.setattr(double, "__module__", "__main__")
    assert with_fingerprint(double).__qualname__ != first


def test_a_module_that_is_loaded_by_hand():
    function = with_fingerprint(double)
    function.__module__ = "by_hand"
    compiled = compile_function(function, "float64(float64)")
    assert compiled.obstacle == "its module, by_hand, is not in sys.modules"
    assert compiled.dispatcher(3.0) == 6


def test_functions_within_functions_are_told():
    @numba.njit
    def inner(x):
        return x + 1

    def outer(x):
        return inner(x)

    compiled = compile_function(outer, "float64(float64)")
    assert "calls inner, which is defined within another" in compiled.obstacle
    assert compiled.dispatcher(3.0) == 4


def test_what_takes_long_is_announced_once(caplog):
    said = compilation._Announcements()
    with caplog.at_level(logging.WARNING, logger="softsolve"):
        said.of("one", "float32", Compiled(None, 9.0, True, None))
        said.of("two", "float32", Compiled(None, 1.5, False, None))
        assert caplog.text == ""
        said.of("three", "float32", Compiled(None, 1.5, False, None))
        assert "softsolve has compiled for 3 s" in caplog.text
        caplog.clear()
        said.of("four", "float32", Compiled(None, 9.0, False, None))
        assert caplog.text == ""
