"""Principal components against scikit-learn's, and the PCA of trials."""

import numpy as np
import pandas as pd
import pytest
import sklearn.decomposition
from helpers import naming

from ntfa import Study
from ntfa.baselines import PCA, principal
from ntfa.baselines.principal import principal_components
from ntfa.errors import StudyError
from ntfa.simulation import Simulation


def reference(rows: np.ndarray, n_components: int) -> tuple[np.ndarray, sklearn.decomposition.PCA]:
    found = sklearn.decomposition.PCA(n_components, svd_solver="full")
    return found.fit_transform(rows), found


@pytest.mark.parametrize("chunk", [7, 2**22])
def test_components_are_those_of_scikit_learn_but_for_sign(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(principal, "CHUNK_VALUES", chunk)
    rows = np.random.default_rng(0).normal(size=(6, 10, 4)) + 100
    found = principal_components(list(rows), 3)
    scores, known = reference(rows.reshape(6, -1), 3)
    signs = np.sign((found.scores * scores).sum(0))
    np.testing.assert_allclose(found.scores, signs * scores, atol=1e-9)
    np.testing.assert_allclose(found.components, signs[:, None] * known.components_, atol=1e-9)
    np.testing.assert_allclose(found.explained, known.explained_variance_ratio_)


def test_the_largest_loading_is_positive() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        found = principal_components(list(rng.normal(size=(5, 30))), 3)
        largest = np.abs(found.components).argmax(1)
        assert (found.components[range(3), largest] > 0).all()


def test_components_that_cannot_be_are_zero() -> None:
    found = principal_components([np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 3.0])], 4)
    np.testing.assert_allclose(found.scores, [[-0.5, 0, 0, 0], [0.5, 0, 0, 0]])
    np.testing.assert_allclose(found.explained, [1, 0, 0, 0])
    alike = principal_components([np.ones(3)] * 3, 2)
    assert not alike.scores.any()
    assert not alike.explained.any()


def test_trials_participants_and_stimuli(study: Study) -> None:
    model = PCA().fit(study)
    scores, known = reference(study.mean_images().astype(float), 2)
    signs = np.sign((model.trials_.to_numpy() * scores).sum(0))
    expected = pd.DataFrame(signs * scores, index=study.trials.index, columns=["z1", "z2"])
    pd.testing.assert_frame_equal(model.trials_, expected, rtol=1e-4, atol=1e-4)
    for table, kind in ((model.participants_, "participant"), (model.stimuli_, "stimulus")):
        pd.testing.assert_frame_equal(table, expected.groupby(study.trials[kind]).mean(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.explained_["trial"], known.explained_variance_ratio_, rtol=1e-4)
    assert model.n_parameters_ == 3 * study.n_voxels
    assert model.left_out_ == []


def test_transform_of_the_trials_themselves_are_their_scores(study: Study) -> None:
    model = PCA(3).fit(study)
    pd.testing.assert_frame_equal(model.transform(study), model.trials_, atol=1e-4)


def test_a_new_participant_may_be_placed(study: Study) -> None:
    known, new = study.participants[:-1], study.participants[-1]
    scores = PCA().fit(study.select(participants=known)).transform(study.select(participants=new))
    assert len(scores) == len(study.stimuli)


def test_groups_of_a_clear_study_come_apart(clear_simulation: Simulation) -> None:
    model = PCA().fit(clear_simulation.study)
    groups = clear_simulation.truth.participant_groups
    centres = model.participants_.groupby(groups).mean()
    spread = (model.participants_ - centres.loc[groups].set_axis(groups.index)).abs().to_numpy().max()
    apart = min(np.linalg.norm(centres.iloc[i] - centres.iloc[j]) for i in range(3) for j in range(i))
    assert apart > 4 * spread


def test_unusable_values_are_named(out_of_step: Study) -> None:
    frames = {who: array.copy() for who, array in out_of_step.frames.items()}
    frames["b"][2, 7] = np.inf
    with pytest.raises(StudyError, match=naming("participant b", "frame 2", "voxel 7")):
        PCA().fit(Study(out_of_step.coordinates, out_of_step.trials, frames))
