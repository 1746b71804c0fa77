"""ICA and dictionary learning: planted maps are found, frames regressed on them, with and without images."""

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from helpers import naming
from nilearn.decomposition import CanICA
from nilearn.masking import unmask

from ntfa import Study
from ntfa.baselines.components import ICA, DictionaryLearning, leading_patterns
from ntfa.errors import ModelError, NotFittedError, StudyError
from ntfa.study.checks import mask_coordinates
from ntfa.study.signals import frame_index

SHAPE = (10, 10, 8)
N_MAPS = 3


def planted_maps() -> np.ndarray:
    """Three small boxes that do not touch, [3, V]."""
    maps = np.zeros((N_MAPS, *SHAPE))
    maps[0, :4, :3, :3], maps[1, 6:, :3, 3:7], maps[2, 3:7, 6:, 5:] = 1, 1, 1
    return maps.reshape(N_MAPS, -1)


def make_study(with_mask: bool, seed: int = 0) -> tuple[Study, dict[str, np.ndarray]]:
    """Heavy-tailed time courses of the planted maps, a little noise; trials of 2 to 4 frames, some frames in none."""
    rng = np.random.default_rng(seed)
    mask = nib.Nifti1Image(np.ones(SHAPE, dtype=np.uint8), np.diag([4.0, 4.0, 4.0, 1.0]))
    courses = {who: rng.laplace(size=(40, N_MAPS)) for who in ("p", "q", "r")}
    frames = {
        who: course @ planted_maps() + 0.1 * rng.normal(size=(40, planted_maps().shape[1]))
        for who, course in courses.items()
    }
    start = np.arange(0, 36, 4)
    own = pd.DataFrame({"stimulus": "s", "start": start, "stop": start + 2 + np.arange(9) % 3})
    trials = pd.concat([own.assign(participant=who) for who in frames], ignore_index=True)
    trials.index = [f"t{i}" for i in range(len(trials))]
    study = Study.from_arrays(frames, trials, mask_coordinates(mask), mask if with_mask else None)
    return study, courses


@pytest.fixture(params=[ICA, DictionaryLearning], ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["images", "arrays"])
def with_mask(request):
    return request.param


def test_planted_maps_are_found(kind, with_mask):
    study, _ = make_study(with_mask)
    model = kind(N_MAPS, random_state=0).fit(study)
    assert model.components_.shape == (N_MAPS, study.n_voxels)
    match = np.abs(np.corrcoef(planted_maps(), model.components_)[:N_MAPS, N_MAPS:])
    assert match.max(1).min() > 0.9
    assert sorted(match.argmax(1)) == [0, 1, 2]
    assert (model.components_.max(1) >= -model.components_.min(1)).all()


def test_frames_are_regressed_on_the_maps(kind, with_mask):
    study, courses = make_study(with_mask)
    model = kind(N_MAPS, random_state=0).fit(study)
    by_frame, by_trial = model.transform(study, by="frame"), model.transform(study)
    assert by_frame.index.equals(frame_index(study))
    assert by_trial.index.equals(study.trials.index)
    pd.testing.assert_frame_equal(by_trial, by_frame.groupby(level=0, sort=False).mean().rename_axis(None))
    row = study.trials.loc["t12"]
    frames = study.frames["q"][row["start"] : row["stop"]].astype(np.float64)
    expected = np.linalg.lstsq(model.components_.T, frames.T, rcond=None)[0].T
    np.testing.assert_allclose(by_frame.loc["t12"], expected, atol=1e-8 * np.abs(expected).max())
    truth = np.concatenate([courses[t.participant][t.start : t.stop] for t in study.trials.itertuples()])
    match = np.abs(np.corrcoef(truth.T, by_frame.to_numpy().T)[:N_MAPS, N_MAPS:])
    assert match.max(1).min() > 0.9


def test_same_seed_same_maps(kind, with_mask):
    study, _ = make_study(with_mask)
    first, second = (kind(N_MAPS, random_state=3).fit(study).components_ for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_reducing_beforehand_changes_nothing_for_nilearn():
    """The leading patterns of frames that are leading patterns are these themselves, up to sign."""
    study, _ = make_study(True)
    trials = study.trials[study.trials["participant"] == "p"]
    used = np.concatenate([np.arange(t.start, t.stop) for t in trials.itertuples()])
    images = [unmask(study.frames[who][used], study.mask_img) for who in study.participants]
    plain = CanICA(
        n_components=N_MAPS,
        mask=study.mask_img,
        smoothing_fwhm=None,
        standardize=False,
        standardize_confounds=False,
        detrend=False,
        random_state=0,
    ).fit(images)
    match = np.abs(np.corrcoef(plain.components_, ICA(N_MAPS, random_state=0).fit(study).components_)[:3, 3:])
    np.testing.assert_allclose(match.max(1), 1, atol=1e-3)


def test_leading_patterns_are_the_singular_vectors():
    frames = np.random.default_rng(0).normal(size=(12, 50)).astype(np.float32)
    _, values, right = np.linalg.svd(frames.astype(np.float64), full_matrices=False)
    found = leading_patterns(frames, 4)
    np.testing.assert_allclose(np.abs(found @ right[:4].T), np.diag(values[:4]), atol=1e-6)
    np.testing.assert_array_equal(leading_patterns(frames, 12), frames)


def test_frames_outside_trials_are_not_used(kind):
    study, _ = make_study(False)
    spoilt = {who: frames.copy() for who, frames in study.frames.items()}
    for frames in spoilt.values():
        frames[36:] = 1e4 * np.random.default_rng(0).normal(size=frames[36:].shape)
    other = Study(study.coordinates, study.trials, spoilt)
    np.testing.assert_array_equal(
        kind(N_MAPS, random_state=0).fit(study).components_, kind(N_MAPS, random_state=0).fit(other).components_
    )


def test_unseen_participants_can_be_described(kind):
    study, _ = make_study(False)
    seen = study.select(participants=["p", "q"])
    assert kind(N_MAPS, random_state=0).fit(seen).transform(study).shape == (study.n_trials, N_MAPS)


def test_sparser_with_alpha(with_mask):
    study, _ = make_study(with_mask)
    loose, sparse = (
        (DictionaryLearning(N_MAPS, alpha=alpha, random_state=0).fit(study).components_ == 0).mean()
        for alpha in (0.01, 5.0)
    )
    assert sparse > loose


def test_face(kind):
    study, _ = make_study(False)
    model = kind(5, random_state=1)
    assert model.get_params()["n_components"] == 5
    assert model.set_params(n_components=2) is model
    with pytest.raises(NotFittedError):
        model.transform(study)
    assert model.fit(study) is model
    assert model.components_.shape[0] == 2
    with pytest.raises(ModelError, match=naming("by='run'")):
        model.transform(study, by="run")
    other = Study(study.coordinates + 1, study.trials, study.frames)
    with pytest.raises(StudyError, match=naming(study.n_voxels)):
        model.transform(other)


def test_settings_that_mean_nothing_are_refused(kind):
    study, _ = make_study(False)
    with pytest.raises(ModelError, match="n_components=0"):
        kind(0).fit(study)
    with pytest.raises(ModelError, match=naming("n_components=500")):
        kind(500).fit(study)
    with pytest.raises(ModelError, match="alpha"):
        DictionaryLearning(2, alpha=0).fit(study)
