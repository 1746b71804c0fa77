"""Seeds from whatever scikit-learn's users give as `random_state`."""

from __future__ import annotations

import secrets
from numbers import Integral
from typing import Any

import numpy as np

from ntfa.errors import ModelError

LARGEST_SEED = 2**32 - 1
RandomState = int | np.random.RandomState | np.random.Generator | None
"""A seed; a source of random numbers, which a seed is drawn from at every fit; or None, for a seed from the system."""


def check_random_state(random_state: Any) -> None:
    """Refuse what no seed can be taken from."""
    if random_state is None or isinstance(random_state, np.random.RandomState | np.random.Generator):
        return
    if not is_whole(random_state) or not 0 <= random_state <= LARGEST_SEED:
        raise ModelError(
            f"random_state={random_state!r}: must be None, a whole number from 0 to {LARGEST_SEED}, or a RandomState "
            "or Generator of NumPy"
        )


def as_seed(random_state: RandomState) -> int:
    """Return the seed that was given, or draw one: from the source that was given, or from the system."""
    check_random_state(random_state)
    if random_state is None:
        return secrets.randbelow(2**31)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    return int(random_state)


def is_seed(random_state: RandomState) -> bool:
    """Whether the same seed would be taken again at another fit."""
    return is_whole(random_state)


def is_whole(value: Any) -> bool:
    """Whether this is a whole number, Python's or NumPy's; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)
