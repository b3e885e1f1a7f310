import dataclasses

import pytest

from softsolve.experiments.errors import SettingError
from softsolve.experiments.settings import override


@dataclasses.dataclass(frozen=True)
class Example:
    epochs: int = 5
    scale: float = 1.0
    names: tuple[str, ...] = ("a",)
    loud: bool = False


def test_override_reads_each_type() -> None:
    changed = override(Example(), ["epochs=7", "scale=1e-3", "names=b, c", "loud=yes"])
    assert changed == Example(7, 1e-3, ("b", "c"), True)
    assert override(Example(), ["epochs=7", "epochs=8"]).epochs == 8


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epochs", "must be key=value"),
        ("epoch=3", "no such setting. There are epochs, scale, names, loud"),
        ("epochs=3.5", "must be of type int; got '3.5'"),
        ("loud=maybe", "must be of type bool"),
        ("scale=inf", "must be finite; got 'inf'"),
        ("scale=nan", "must be finite; got 'nan'"),
    ],
)
def test_override_refuses(assignment: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        override(Example(), [assignment])
