"""Fits whose frames stay on disk come to what fits in memory come to."""

from typing import Any

import numpy as np
import pytest

from ntfa import Study
from ntfa.errors import ModelError

PLACES = ["x", "y", "z", "width"]


@pytest.mark.parametrize("schedule", ["one-cycle", "paper"])
def test_factors_and_bounds_are_those_of_a_fit_in_memory(
    kind: Any, study: Study, study_folder: str, schedule: str
) -> None:
    settings = {"schedule": schedule, "coarse": "always", "init": "kmeans", "max_epochs": 40}
    if kind.name.startswith("tlsa"):
        with pytest.raises(ModelError, match="memory"):
            kind.make(memory="4GB", **settings).fit(Study.open(study_folder))
        return
    start = kind.make(**settings | {"max_epochs": 1}).fit(study).factors_[PLACES].to_numpy()
    expected = kind.make(**settings).fit(study)
    found = kind.make(memory="4GB", **settings).fit(Study.open(study_folder))
    np.testing.assert_allclose(found.history_["bound"], expected.history_["bound"], rtol=1e-6)
    moved = np.abs(expected.factors_[PLACES].to_numpy() - start).max()
    assert moved > 0.2
    np.testing.assert_allclose(found.factors_[PLACES], expected.factors_[PLACES], atol=0.01 * moved)
