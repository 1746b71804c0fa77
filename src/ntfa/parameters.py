"""What a model is, besides itself: scikit-learn's `BaseEstimator`, or in a command only what commands need of it.

scikit-learn and the parts of SciPy that it imports take two thirds as long as PyTorch, and a command would use nothing
of them but the reading and setting of parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

_process = {"serves a command": False}


def serve_command() -> None:
    """Let models be without scikit-learn: this process runs a command, and nobody else's code meets its models."""
    _process["serves a command"] = True


def estimator_base() -> type:
    """Return what estimators derive from."""
    if _process["serves a command"]:
        return Parameters
    from sklearn.base import BaseEstimator

    found: type = BaseEstimator
    return found


class Parameters:
    """The parameters of `__init__`, as scikit-learn's `BaseEstimator` reads and sets them."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Parameters:
        """Set parameters."""
        known = self.get_params()
        for name in params:
            if name not in known:
                raise ValueError(f"Invalid parameter {name!r} for {type(self).__name__}: it has {', '.join(known)}")
        vars(self).update(params)
        return self

    def __repr__(self) -> str:
        defaults = {name: known.default for name, known in inspect.signature(type(self)).parameters.items()}
        changed = {name: value for name, value in self.get_params().items() if value is not defaults[name]}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


def available_if(check: Callable[[Any], bool]) -> Callable[[Callable[..., Any]], Any]:
    """Make a method that an instance lacks where a check of it says so, as scikit-learn's decorator of that name."""
    return lambda method: _Available(method, check)


class _Available:
    def __init__(self, method: Callable[..., Any], check: Callable[[Any], bool]) -> None:
        self.method, self.check = method, check
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self.method
        if not self.check(instance):
            raise AttributeError(f"{owner.__name__} has no {self.method.__name__!r}")
        return MethodType(self.method, instance)
