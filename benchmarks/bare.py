"""Imported before ntfa, lets it be fitted without safetensors and scikit-learn, by benchmarks that save nothing.

What ntfa derives classes from must be a class; all else that is missing is a mock, which no fit calls.
"""

import inspect
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock


class BaseEstimator:
    """As much of scikit-learn's as a fit needs: the parameters are those of `__init__`."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> "BaseEstimator":
        """Set parameters."""
        unknown = params.keys() - self.get_params().keys()
        if unknown:
            raise ValueError(f"no parameter {sorted(unknown)}")
        vars(self).update(params)
        return self


class NotFittedError(ValueError, AttributeError):
    """Stands for scikit-learn's error of that name."""


def mock(*names: str) -> None:
    """Put mocks in the place of modules."""
    for name in names:
        sys.modules[name] = MagicMock()
        # PyTorch looks for where scikit-learn comes from, and a mock alone would not say that it comes from nowhere.
        sys.modules[name].__spec__ = ModuleSpec(name, None)


if find_spec("safetensors") is None:
    mock("safetensors", "safetensors.torch", "safetensors.numpy")
    # Named in an except clause, which takes classes only.
    sys.modules["safetensors"].SafetensorError = type("SafetensorError", (Exception,), {})

if find_spec("sklearn") is None:
    mock("sklearn", "sklearn.base", "sklearn.exceptions", "sklearn.utils", "sklearn.utils.metaestimators")
    sys.modules["sklearn.base"].BaseEstimator = BaseEstimator
    sys.modules["sklearn.exceptions"].NotFittedError = NotFittedError
