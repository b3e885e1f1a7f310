"""Settings of experiments: frozen dataclasses, changed by ``key=value``."""

import dataclasses
import math
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

from softsolve.experiments.errors import SettingError

Config = TypeVar("Config")

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def override(config: Config, assignments: Iterable[str]) -> Config:
    """Return ``config``, a dataclass, with settings replaced.

    Assignments are ``key=value``; a tuple's entries are separated by commas.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Example:
    ...     epochs: int = 5
    ...     rates: tuple[float, ...] = (0.1,)
    >>> override(Example(), ["epochs=7", "rates=0.1,0.01"])
    Example(epochs=7, rates=(0.1, 0.01))
    """
    kinds = typing.get_type_hints(type(config))
    values = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator:
            msg = f"--set must be key=value; got {assignment!r}."
            raise SettingError(msg)
        if key not in kinds:
            msg = f"--set {assignment}: no such setting. There are {', '.join(kinds)}."
            raise SettingError(msg)
        values[key] = _parse(kinds[key], text, assignment)
    return dataclasses.replace(config, **values)  # type: ignore[type-var]


def _parse(kind: Any, text: str, assignment: str) -> Any:
    if typing.get_origin(kind) is tuple:
        entry = typing.get_args(kind)[0]
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return tuple(_parse(entry, part, assignment) for part in parts)
    try:
        value = TRUTH[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        msg = f"--set {assignment}: must be of type {kind.__name__}; got {text!r}."
        raise SettingError(msg) from None
    if kind is float and not math.isfinite(value):
        msg = f"--set {assignment}: must be finite; got {text!r}."
        raise SettingError(msg)
    return value


def require(condition: bool, key: str, must: str, value: object) -> None:
    """Raise unless a setting's value is one that it may have."""
    if not condition:
        msg = f"the setting {key} must be {must}; got {value!r}."
        raise SettingError(msg)


def require_some(key: str, values: tuple[object, ...]) -> None:
    """Raise unless a setting has values, none of them twice."""
    require(bool(values), key, "one or more", values)
    require(len(set(values)) == len(values), key, "different from each other", values)


def shown(value: object) -> str:
    """Return a setting's value as a person writes it."""
    if isinstance(value, list | tuple):
        return ", ".join(str(entry) for entry in value) or "none"
    return str(value)
