"""What every baseline that has points promises, beside what `estimators/test_contract.py` asks of all estimators."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import naming

from ntfa import Study
from ntfa.baselines import BASELINES, MNSRM, PCA, SRM, IndividualLoadings
from ntfa.errors import ModelError, StudyError

SMALL: dict[str, dict[str, Any]] = {
    "pca": {},
    "srm": {"n_features": 3, "random_state": 0},
    "mn-srm": {"n_features": 3},
    "individual loadings": {},
}
SHARED = ["srm", "mn-srm"]
Make = Callable[..., Any]


@pytest.fixture(params=list(SMALL))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make(name: str) -> Make:
    return lambda **settings: BASELINES[name](**{**SMALL[name], **settings})


def results(model: Any, study: Study) -> dict[str, Any]:
    tables = ("participants_", "stimuli_", "explained_", "history_", "trials_", "shared_response_")
    found = {table: getattr(model, table) for table in tables if hasattr(model, table)}
    return found | {"transform": model.transform(study), "left_out_": model.left_out_, "n": model.n_parameters_}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, pd.DataFrame):
            pd.testing.assert_frame_equal(value, other[key], check_exact=True, obj=key)
        else:
            assert value == other[key]


def test_the_names() -> None:
    assert {"pca": PCA, "srm": SRM, "mn-srm": MNSRM, "individual loadings": IndividualLoadings} == BASELINES


@pytest.mark.parametrize("value", [0, 1.5, "two", True])
def test_wrong_counts_are_named_at_fit(make: Make, study: Study, value: Any) -> None:
    for count in {"n_components", "n_features", "n_iter"} & make().get_params().keys():
        with pytest.raises(ModelError, match=naming(f"{count}={value!r}")):
            make(**{count: value}).fit(study)


def test_a_failed_refit_leaves_the_fit_as_it_was(make: Make, study: Study) -> None:
    model = make().fit(study)
    expected = results(model, study)
    broken = {who: np.where(array == array[0, 0], np.nan, array) for who, array in study.frames.items()}
    with pytest.raises(StudyError):
        model.fit(Study(study.coordinates, study.trials.assign(start=0), broken))
    assert_same(results(model, study), expected)


def test_tables_have_the_users_labels(make: Make, study: Study) -> None:
    model = make(n_components=3).fit(study)
    for table, labels, kind in (
        (model.participants_, study.participants, "participant"),
        (model.stimuli_, study.stimuli, "stimulus"),
    ):
        assert table.index.tolist() == labels
        assert table.index.name == kind
        assert table.columns.tolist() == ["z1", "z2", "z3"]
        assert np.isfinite(table.to_numpy()).all()
    assert model.explained_.index.tolist() == ["z1", "z2", "z3"]
    assert (model.explained_.sum() <= 1 + 1e-12).all()
    assert (model.explained_.apply(lambda share: share.is_monotonic_decreasing)).all()


def test_trials_out_of_step_fit(make: Make, out_of_step: Study, name: str) -> None:
    model = make().fit(out_of_step)
    assert model.participants_.index.tolist() == ["a", "b", "c"]
    assert model.left_out_ == (["not c", "only a"] if name in SHARED else [])
    assert model.stimuli_.index.tolist() == [s for s in out_of_step.stimuli if s not in model.left_out_]
    assert len(model.transform(out_of_step)) == out_of_step.n_trials


def test_frames_average_to_their_trial(make: Make, out_of_step: Study) -> None:
    model = make().fit(out_of_step)
    named = Study.from_arrays(
        out_of_step.frames, out_of_step.trials.set_axis(list("abcdefghijklmno")), out_of_step.coordinates
    )
    trials, frames = model.transform(named), model.transform(named, by="frame")
    assert trials.index.equals(named.trials.index)
    assert frames.index.names == ["trial", "frame"]
    assert len(frames) == named.n_trial_frames
    pd.testing.assert_frame_equal(frames.groupby(level="trial", sort=False).mean(), trials, check_names=False)
    first = named.trials.iloc[3]
    assert frames.loc[named.trials.index[3]].index.tolist() == list(range(first["start"], first["stop"]))


def test_transform_says_what_it_cannot_do(make: Make, study: Study) -> None:
    model = make().fit(study)
    with pytest.raises(ModelError, match=naming("by='run'", "'trial'", "'frame'")):
        model.transform(study, by="run")
    moved = Study.from_arrays(study.frames, study.trials, study.coordinates + 1)
    with pytest.raises(StudyError, match=naming(study.n_voxels)):
        model.transform(moved)


@pytest.mark.parametrize("kind", [*SHARED, "individual loadings"])
def test_unknown_participants_are_named(study: Study, kind: str) -> None:
    model = BASELINES[kind](**SMALL[kind]).fit(study.select(participants=study.participants[1:]))
    with pytest.raises(ModelError, match=naming(study.participants[0], 5)):
        model.transform(study)


@pytest.mark.parametrize("kind", SHARED)
def test_shared_models_refuse_what_cannot_be_shared(study: Study, kind: str) -> None:
    with pytest.raises(StudyError, match=naming(study.participants[0])):
        BASELINES[kind](**SMALL[kind]).fit(study.select(participants=study.participants[0]))
    with pytest.raises(ModelError, match=naming("n_features=50", 20)):
        BASELINES[kind](n_features=50).fit(study)


def test_data_in_other_units_give_the_same_picture(make: Make, study: Study) -> None:
    scaled = Study.from_arrays(
        {who: array * np.float32(1024) for who, array in study.frames.items()}, study.trials, study.coordinates
    )
    one, other = make().fit(study), make().fit(scaled)
    for table in ("participants_", "stimuli_"):
        a, b = getattr(one, table), getattr(other, table)
        a, b = a / a.abs().to_numpy().max(), b / b.abs().to_numpy().max()
        pd.testing.assert_frame_equal(a, b, atol=1e-5)


def test_means_of_voxels_do_not_matter(make: Make, study: Study) -> None:
    shift = np.random.default_rng(0).normal(size=study.n_voxels).astype(np.float32)
    moved = Study.from_arrays(
        {who: array + shift for who, array in study.frames.items()}, study.trials, study.coordinates
    )
    one, other = make().fit(study), make().fit(moved)
    pd.testing.assert_frame_equal(one.stimuli_, other.stimuli_, atol=1e-3)


def test_a_saved_study_fits_as_one_in_memory(make: Make, study: Study, study_folder: str) -> None:
    opened = Study.open(study_folder)
    assert_same(results(make().fit(opened), opened), results(make().fit(study), study))
