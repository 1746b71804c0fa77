"""Neural Topographic Factor Analysis: how participants and stimuli differ in an fMRI experiment.

`Study` holds what was recorded, `simulate` makes studies whose truth is known, and `NTFA`, `HTFA`, `TFA` and `TLSA`
are fitted to them. `difference` and `differences` say which participants, or stimuli, really differ, and `test`
whether they go with a diagnosis, a trait or a rating.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ntfa.version import __version__

if TYPE_CHECKING:
    from ntfa.analyses.traits import test
    from ntfa.estimators import HTFA, NTFA, TFA, TLSA
    from ntfa.simulation import simulate
    from ntfa.study import Study
    from ntfa.uncertainty.differences import difference, difference_matrix, differences, spread

__all__ = [
    "HTFA",
    "NTFA",
    "TFA",
    "TLSA",
    "Study",
    "__version__",
    "difference",
    "difference_matrix",
    "differences",
    "simulate",
    "spread",
    "test",
]

_HOMES = {
    "HTFA": "ntfa.estimators",
    "NTFA": "ntfa.estimators",
    "TFA": "ntfa.estimators",
    "TLSA": "ntfa.estimators",
    "Study": "ntfa.study",
    "simulate": "ntfa.simulation",
    "test": "ntfa.analyses.traits",
    **dict.fromkeys(("difference", "difference_matrix", "differences", "spread"), "ntfa.uncertainty.differences"),
}


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import; `ntfa --help` must not wait for it.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ntfa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
