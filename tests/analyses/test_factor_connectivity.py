"""Covariances of weights by group of trials, against simulated truth and against an estimate of every weight."""

import numpy as np
import pandas as pd
import pytest
import torch

from ntfa import NTFA, Study
from ntfa.analyses.connectivity import _weights_covariance, factor_connectivity
from ntfa.errors import StudyError


def test_expectation_maximisation_finds_the_covariance() -> None:
    rng = np.random.default_rng(0)
    factors, noise = rng.normal(size=(3, 40)), 0.5
    truth = np.array([[1.0, 0.6, 0.0], [0.6, 0.8, -0.3], [0.0, -0.3, 0.5]])
    weights = rng.multivariate_normal(np.zeros(3), truth, 20_000)
    frames = weights @ factors + noise * rng.normal(size=(20_000, 40))
    # Half of the frames are somebody's who lacks the last ten voxels.
    some, others = frames[:10_000, :30], frames[10_000:]
    known = [(some @ factors[:, :30].T, factors[:, :30] @ factors[:, :30].T), (others @ factors.T, factors @ factors.T)]
    parts = [(torch.from_numpy(residual), torch.from_numpy(gram)) for residual, gram in known]
    found = _weights_covariance(parts, torch.eye(3, dtype=torch.float64), torch.tensor(noise**2)).numpy()
    np.testing.assert_allclose(found, truth, atol=0.04)


@pytest.fixture(scope="module")
def study() -> Study:
    """Factors 1 and 2 go together while cats are shown, and against each other while dogs are."""
    rng = np.random.default_rng(1)
    grid = np.stack(np.meshgrid(*[np.arange(-20.0, 21, 8)] * 3, indexing="ij"), -1).reshape(-1, 3)
    centers = np.array([[-12.0, 0, 0], [12, 0, 0], [0, 12, 12]])
    blobs = np.exp(-((grid - centers[:, None]) ** 2).sum(-1) / 10.0**2)
    frames, trials = {}, []
    for who in ("a", "b", "c", "d"):
        rows = []
        for i in range(24):
            animal = ("cat", "dog")[i % 2]
            covariance = np.eye(3)
            covariance[0, 1] = covariance[1, 0] = 0.8 if animal == "cat" else -0.8
            mean = np.array([1.0, 0.5, i % 4])
            weights = mean + rng.multivariate_normal(np.zeros(3), covariance, 10)
            rows.append(weights @ blobs + 0.3 * rng.normal(size=(10, len(grid))))
            trials.append((who, f"{animal}-{i % 4}", 10 * i, 10 * i + 10, animal))
        frames[who] = np.concatenate(rows)
    columns = ["participant", "stimulus", "start", "stop", "animal"]
    return Study.from_arrays(frames, pd.DataFrame(trials, columns=columns), grid)


@pytest.fixture(scope="module")
def model(study: Study) -> NTFA:
    return NTFA(3, random_state=0, response="loadings", uncertainty="mean-field", max_epochs=150).fit(study)


def correlation(table: pd.DataFrame, model: NTFA) -> float:
    """Of the factors that are nearest to the first two simulated ones."""
    places = model.factors_.drop_duplicates("factor").set_index("factor")[["x", "y", "z"]]
    one, two = (((places - place) ** 2).sum(axis=1).idxmin() for place in ([-12, 0, 0], [12, 0, 0]))
    return float(table.loc[one, two] / np.sqrt(table.loc[one, one] * table.loc[two, two]))


def test_groups_of_stimuli_have_their_own_connectivity(model: NTFA, study: Study) -> None:
    found = factor_connectivity(model, study, "animal")
    assert set(found) == {"cat", "dog"}
    assert correlation(found["cat"], model) == pytest.approx(0.8, abs=0.1)
    assert correlation(found["dog"], model) == pytest.approx(-0.8, abs=0.1)
    assert abs(correlation(factor_connectivity(model, study)["all"], model)) < 0.1


def test_few_frames_stay_near_the_models_own(model: NTFA, study: Study) -> None:
    few = study.select(trials=(study.trials["participant"] == "a") & (study.trials["start"] == 0))
    (found,) = factor_connectivity(model, few, "animal").values()
    whole = factor_connectivity(model, study, "animal")["cat"]
    assert abs(correlation(found, model)) < abs(correlation(whole, model))


def test_an_unknown_column_is_refused(model: NTFA, study: Study) -> None:
    with pytest.raises(StudyError, match="'species'"):
        factor_connectivity(model, study, "species")
