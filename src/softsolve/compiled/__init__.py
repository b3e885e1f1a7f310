"""The fused route: compiled passes, instance kernels and counter-based noise.

The package is also the decorator of that name: ``@softsolve.compiled`` is
:func:`softsolve.compiled.user.compiled`.
"""

import sys
import types
from typing import Any


class _Decorator(types.ModuleType):
    """A package that can be called."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from softsolve.compiled.user import compiled

        return compiled(*arguments, **settings)


sys.modules[__name__].__class__ = _Decorator
