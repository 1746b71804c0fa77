"""Fits whose frames stay on disk come to what fits in memory come to."""

from typing import Any

import numpy as np
import pytest

from ntfa import HTFA, Study
from ntfa.errors import ModelError
from ntfa.fitting.arrange import Arranged, arrange

PLACES = ["x", "y", "z", "width"]


@pytest.mark.parametrize("schedule", ["one-cycle", "paper"])
def test_factors_and_bounds_are_those_of_a_fit_in_memory(
    kind: Any, study: Study, study_folder: str, schedule: str
) -> None:
    settings = {"schedule": schedule, "coarse": "always", "init": "kmeans", "max_epochs": 40}
    settings |= {"uncertainty": "laplace"} if kind.name.startswith("ntfa") else {}
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


@pytest.mark.parametrize(("at_fit", "since"), [(None, "4GB"), ("4GB", None)])
def test_results_read_frames_as_the_fit_did_whatever_was_set_since(
    study_folder: str, monkeypatch: pytest.MonkeyPatch, at_fit: str | None, since: str | None
) -> None:
    stored = Study.open(study_folder)
    model = HTFA(n_factors=2, max_epochs=2, random_state=0, memory=at_fit).fit(stored).set_params(memory=since)
    seen = []

    def watched(*args: Any, on_disk: bool, **rest: Any) -> Arranged:
        seen.append(on_disk)
        return arrange(*args, on_disk=on_disk, **rest)

    monkeypatch.setattr("ntfa.estimators.result.arrange", watched)
    model.transform(stored)
    model.score(stored, n_samples=2)
    assert seen == [at_fit is not None] * 2
