"""Compiling functions, and keeping their code on disk.

Numba finds the code of a function in its cache by the file, line and bytecode of the
function. What else is compiled into it – global constants, functions of other files –
may change without its noticing; :func:`with_fingerprint` makes that part of the name.
"""

import enum
import hashlib
import logging
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np

logger = logging.getLogger("softsolve")

# Seconds of compiling after which a process says what it is at.
LONG = 2.0

# Declared as what type checkers cannot see through.
njit: Any = numba.njit

# What loading from a cache may raise that is damaged, or of another program.
_DAMAGES = (OSError, EOFError, ImportError, AttributeError, pickle.UnpicklingError)

_NUMBERS = (bool, int, float, complex, str, bytes, np.generic, type(None))


@dataclass(frozen=True)
class Compiled:
    """A function's machine code.

    Attributes
    ----------
    dispatcher
        Numba's function, which compiles nothing any more.
    seconds
        How long it took to compile or to load.
    loaded
        Whether the code was on disk.
    obstacle
        Why the code cannot be kept on disk, if that is so.
    """

    dispatcher: Any
    seconds: float
    loaded: bool
    obstacle: str | None


def compile_function(function: Callable[..., Any], signature: Any) -> Compiled:
    """Compile a function for a signature, or load its code from disk if it is there.

    Where no directory can be written to, or the cache is damaged, it is compiled
    without one.
    """
    options = {"nogil": True, "error_model": "numpy"}
    began = time.perf_counter()
    obstacle = _obstacle(function)
    try:
        dispatcher = njit(signature, cache=obstacle is None, **options)(function)
    except (*_DAMAGES, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "cannot cache" not in str(error):
            raise
        obstacle = str(error)
        dispatcher = njit(signature, **options)(function)
    dispatcher.disable_compile()
    seconds = time.perf_counter() - began
    return Compiled(dispatcher, seconds, bool(dispatcher.stats.cache_hits), obstacle)


def _obstacle(function: Callable[..., Any]) -> str | None:
    """Tell what would keep Numba from ever finding the function's code again."""
    if function.__module__ not in sys.modules:
        return f"its module, {function.__module__}, is not in sys.modules"
    for cell in function.__closure__ or ():
        if isinstance(
            inner := getattr(cell.cell_contents, "py_func", None), FunctionType
        ):
            return (
                f"it calls {inner.__name__}, which is defined within another function, "
                "and not at the top level of a module"
            )
    return None


class _Announcements:
    """What a process has said of the compilation of softsolve's own code."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._told_long = False
        self._told_obstacle = False

    def of(self, name: str, dtype: str, compiled: Compiled) -> None:
        """Tell what was compiled; once, that it takes long or cannot be kept."""
        if compiled.loaded:
            return
        with self._lock:
            self._seconds += compiled.seconds
            long = self._seconds > LONG and not self._told_long
            stuck = compiled.obstacle is not None and not self._told_obstacle
            self._told_long |= long
            self._told_obstacle |= stuck
        logger.info("compiled %s for %s in %.1f s.", name, dtype, compiled.seconds)
        if stuck:
            logger.warning(
                "softsolve's compiled code cannot be kept on disk, so every process "
                "compiles it again, for some seconds: %s. Set NUMBA_CACHE_DIR to a "
                "directory that can be written to.",
                compiled.obstacle,
            )
        elif long and compiled.obstacle is None:
            logger.warning(
                "softsolve has compiled for %.0f s, and may for some more. The code is "
                "kept on disk, where later processes find it.",
                self._seconds,
            )


announcements = _Announcements()


def with_fingerprint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function named after all that is compiled into it."""
    digest = hashlib.sha256()
    # The module's name too: what is loaded from disk imports the module by it.
    for part in (str(function.__module__), *_parts(function, set())):
        digest.update(f"{len(part)}:{part}".encode())
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__module__ = function.__module__
    copy.__qualname__ = f"{function.__qualname__}-{digest.hexdigest()[:16]}"
    return copy


def _parts(function: Any, seen: set[int]) -> Iterator[str]:
    """Yield the code of a function, and of the constants and functions that it uses."""
    if id(function) in seen:
        return
    seen.add(id(function))
    names: set[str] = set()
    for code in _codes(function.__code__):
        yield code.co_code.hex()
        yield repr([each for each in code.co_consts if not isinstance(each, CodeType)])
        names |= set(code.co_names)
    yield from _data((function.__defaults__ or ()), seen)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield name
        if isinstance(value, ModuleType):
            for attribute in sorted(names & vars(value).keys()):
                yield attribute
                yield from _data(vars(value)[attribute], seen)
        else:
            yield from _data(value, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of those within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _data(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield what tells one constant from another, the same in every process."""
    if isinstance(value, _NUMBERS):
        yield repr(value)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype.str}{value.shape}{value.tobytes().hex()}"
    elif isinstance(value, tuple):
        for part in value:
            yield from _data(part, seen)
    elif isinstance(value, enum.EnumMeta):
        yield repr(list(value))
    elif isinstance(function := getattr(value, "py_func", None), FunctionType):
        yield from _parts(function, seen)
