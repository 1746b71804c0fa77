"""What everything that is fitted to a study promises, models and baselines alike: the contract of scikit-learn.

scikit-learn's own checks are run as far as they apply to studies. `NOT_FOR_STUDIES` lists those that do not, each with
the reason; where a check makes sense for a study, a test here or in `test_model_fits.py` takes its place.
"""

import copy
import functools
import inspect
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.base
import sklearn.exceptions
from helpers import weights_of
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import check_is_fitted

from ntfa import HTFA, NTFA, TFA, TLSA, Study, simulate
from ntfa.baselines import MNSRM, PCA, SRM
from ntfa.baselines.components import ICA, DictionaryLearning
from ntfa.baselines.mean_image import MeanImage
from ntfa.errors import ModelError, NotFittedError, NTFAError, StudyError

SMALL = {"n_factors": 2, "max_epochs": 4, "device": "cpu"}
MODELS = {
    "ntfa": lambda **settings: NTFA(**SMALL | settings),
    "htfa": lambda **settings: HTFA(**SMALL | settings),
    "htfa-trial": lambda **settings: HTFA(**SMALL | {"block": "trial"} | settings),
    "tfa": lambda **settings: TFA(**SMALL | settings),
    "tlsa": lambda **settings: TLSA(**SMALL | settings),
}
BASELINES = {
    "pca": PCA,
    "srm": functools.partial(SRM, 3, init="random"),
    "mn-srm": functools.partial(MNSRM, 3),
    "ica": functools.partial(ICA, 3),
    "dictionary": functools.partial(DictionaryLearning, 3, alpha=1.0),
    "mean-image": MeanImage,
}
EVERYTHING = MODELS | BASELINES
PREDICTING = [*MODELS, "mean-image"]
DRAWING = [*MODELS, "srm", "ica", "dictionary"]
"""Those whose results depend on a seed."""

TAKES_ARRAYS = "it fits arrays of samples and features, where a study has frames of participants"
NOT_FOR_STUDIES = {
    "check_fit_score_takes_y": f"{TAKES_ARRAYS}; that fit takes y is tested here, score takes a study alone",
    "check_estimators_overwrite_params": f"{TAKES_ARRAYS}; that fit leaves parameters alone is tested here",
    "check_dont_overwrite_parameters": f"{TAKES_ARRAYS}; that a fit only adds names_ is tested here",
    "check_estimators_fit_returns_self": f"{TAKES_ARRAYS}; that fit returns the estimator is tested here",
    "check_readonly_memmap_input": f"{TAKES_ARRAYS}; studies opened from disk are read-only maps everywhere",
    "check_n_features_in_after_fitting": f"{TAKES_ARRAYS}; voxels have coordinates, which are compared instead",
    "check_positive_only_tag_during_fit": TAKES_ARRAYS,
    "check_estimators_dtypes": f"{TAKES_ARRAYS}; a study holds float32 only",
    "check_complex_data": f"{TAKES_ARRAYS}; a study refuses them",
    "check_dtype_object": f"{TAKES_ARRAYS}; a study refuses them",
    "check_estimators_empty_data_messages": f"{TAKES_ARRAYS}; a study refuses to be empty",
    "check_pipeline_consistency": f"{TAKES_ARRAYS}; that the same seed gives the same result is tested here",
    "check_estimators_nan_inf": f"{TAKES_ARRAYS}; that frames must be finite is tested for models and baselines",
    "check_estimator_sparse_tag": f"{TAKES_ARRAYS}; there are no sparse studies",
    "check_estimator_sparse_array": f"{TAKES_ARRAYS}; there are no sparse studies",
    "check_estimator_sparse_matrix": f"{TAKES_ARRAYS}; there are no sparse studies",
    "check_estimators_pickle": f"{TAKES_ARRAYS}; copies are tested here, and models are saved without pickle",
    "check_array_api_input": TAKES_ARRAYS,
    "check_f_contiguous_array_estimator": TAKES_ARRAYS,
    "check_transformer_data_not_an_array": TAKES_ARRAYS,
    "check_transformer_general": f"{TAKES_ARRAYS}; transform is tested here and in test_model_results.py",
    "check_methods_sample_order_invariance": f"{TAKES_ARRAYS}; the order of trials is tested for models",
    "check_methods_subset_invariance": f"{TAKES_ARRAYS}; parts of a study are tested for models",
    "check_fit2d_1sample": f"{TAKES_ARRAYS}; studies of one participant or stimulus are tested for models",
    "check_fit2d_1feature": f"{TAKES_ARRAYS}; a single voxel is tested for NTFA",
    "check_fit2d_predict1d": TAKES_ARRAYS,
    "check_dict_unchanged": f"{TAKES_ARRAYS}; that transform changes nothing is tested here",
    "check_fit_idempotent": f"{TAKES_ARRAYS}; that a refit equals the fit is tested here",
    "check_fit_check_is_fitted": f"{TAKES_ARRAYS}; check_is_fitted is tested here",
    "check_n_features_in": f"{TAKES_ARRAYS}; voxels have coordinates, which are compared instead",
}


@pytest.fixture(scope="module")
def study() -> Study:
    return simulate("synthetic", n_participants=4, n_stimuli=4, n_frames=4, n_voxels=60, random_state=0).study


@pytest.fixture(params=EVERYTHING)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return EVERYTHING[request.param]


def seeded(make: Callable[..., Any], random_state: Any = 0, **settings: Any) -> Any:
    """Make an estimator with a seed, where it takes one."""
    takes = "random_state" in make().get_params()
    return make(**({"random_state": random_state} if takes else {}), **settings)


def results(model: Any) -> dict[str, Any]:
    """All that a fit found, times apart."""
    found = {name: value for name, value in vars(model).items() if name.endswith("_") and name != "mask_img_"}
    if "history_" in found:
        found["history_"] = found["history_"].drop(columns="seconds", errors="ignore")
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_equal(_plain(value), _plain(other[name]), err_msg=name)


def _plain(value: Any) -> Any:
    return value.to_numpy() if isinstance(value, pd.DataFrame | pd.Series) else value


# --- scikit-learn's own checks


def checks_of(estimator: Any, patch: pytest.MonkeyPatch) -> dict[str, Callable[[Any], None]]:
    """All checks of scikit-learn for such an estimator; of one that takes no arrays it would make only one."""
    tags = get_tags(estimator)
    tags.input_tags.two_d_array, tags.no_validation = True, False
    patch.setattr(type(estimator), "__sklearn_tags__", lambda self: tags)
    checks = [check for _, check in estimator_checks_generator(estimator, legacy=True)]
    return {_name(check): check for check in checks}


def _name(check: Any) -> str:
    return _name(check.func) if isinstance(check, functools.partial) else check.__name__


def test_the_checks_of_scikit_learn_that_apply_to_studies(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        checks = checks_of(make(), patch)
    applicable = checks.keys() - NOT_FOR_STUDIES.keys()
    assert len(applicable) >= 12
    assert {"check_set_params", "check_estimator_repr", "check_estimators_unfitted"} <= applicable
    for name in sorted(applicable):
        checks[name](make())


# --- parameters


def test_parameters_are_stored_as_they_are_and_can_be_set(make: Callable[..., Any]) -> None:
    model = make()
    params = model.get_params()
    assert params.keys() == inspect.signature(type(model)).parameters.keys()
    assert type(model)(**params).get_params() == params
    assert model.set_params(**params) is model
    with pytest.raises(ModelError) as caught:
        model.set_params(n_facctors=3)
    assert "n_facctors" in str(caught.value)


def test_every_estimator_has_the_same_default_seed(make: Callable[..., Any]) -> None:
    params = inspect.signature(type(make())).parameters
    assert "random_state" not in params or params["random_state"].default is None


def test_a_clone_has_the_parameters_and_no_results(make: Callable[..., Any], study: Study) -> None:
    model = seeded(make).fit(study)
    clone = sklearn.base.clone(model)
    assert type(clone) is type(model)
    assert clone.get_params() == model.get_params()
    assert not results(clone)


def test_the_representation_names_what_was_set(make: Callable[..., Any], study: Study) -> None:
    model = seeded(make, 7)
    assert repr(model).startswith(f"{type(model).__name__}(")
    assert "random_state" not in model.get_params() or "random_state=7" in repr(model)
    page = model._repr_html_()
    assert type(model).__name__ in page
    assert "Not fitted" in page
    assert "Not fitted" not in model.fit(study)._repr_html_()


def test_tags_say_that_input_is_no_array(make: Callable[..., Any]) -> None:
    tags = get_tags(make())
    assert (tags.input_tags.two_d_array, tags.no_validation, tags.requires_fit) == (False, True, True)
    assert not tags.target_tags.required
    assert tags.transformer_tags is not None


# --- before and after a fit


def test_unfitted_use_raises_scikit_learns_error_and_ours(make: Callable[..., Any], study: Study) -> None:
    model = make()
    with pytest.raises(sklearn.exceptions.NotFittedError):
        check_is_fitted(model)
    uses = {"transform": study, "predict": study.trials, "score": study, "log_predictive": study, "save": "folder"}
    there = [name for name in uses if hasattr(model, name)]
    assert {"transform", "predict"} & set(there)
    for name in there:
        with pytest.raises(sklearn.exceptions.NotFittedError) as caught:
            getattr(model, name)(uses[name])
        assert isinstance(caught.value, NotFittedError)
        assert isinstance(caught.value, NTFAError)
        assert type(model).__name__ in str(caught.value)


def test_fit_returns_the_estimator_takes_a_y_and_adds_only_results(make: Callable[..., Any], study: Study) -> None:
    model = seeded(make)
    before, params = set(vars(model)), model.get_params()
    assert model.fit(study, None) is model
    check_is_fitted(model)
    assert model.get_params() == params
    assert all(name.endswith("_") or name.startswith("_") for name in set(vars(model)) - before)


@pytest.mark.parametrize("wrong", [None, "study", np.zeros((4, 3)), pd.DataFrame({"x": [1.0]})], ids=lambda w: type(w))
def test_what_is_no_study_is_refused(make: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(ModelError) as caught:
        make().fit(wrong)
    assert type(wrong).__name__ in str(caught.value)


def test_same_seed_same_result_and_refit_equals_fit(make: Callable[..., Any], study: Study) -> None:
    expected = results(seeded(make).fit(study))
    assert_same(results(seeded(make).fit(study)), expected)
    again = seeded(make).fit(study.select(participants=study.participants[:3]))
    assert_same(results(again.fit(study)), expected)


def test_parameters_set_after_a_fit_do_not_change_its_results(make: Callable[..., Any], study: Study) -> None:
    model = seeded(make).fit(study)
    use = (lambda: weights_of(model, study)) if hasattr(model, "transform") else (lambda: model.predict(study.trials))
    expected = use()
    counts = {name: 1 for name in ("n_factors", "n_components", "n_features") if name in model.get_params()}
    model.set_params(**counts)
    np.testing.assert_array_equal(use(), expected)


def test_a_fit_changes_no_study(make: Callable[..., Any], study: Study) -> None:
    frames, trials = {who: array.copy() for who, array in study.frames.items()}, study.trials.copy()
    model = seeded(make).fit(study)
    kept = dict(vars(model))
    model.predict(study.trials) if hasattr(model, "predict") else model.transform(study)
    assert {name for name in kept if name.endswith("_")} == {name for name in vars(model) if name.endswith("_")}
    pd.testing.assert_frame_equal(study.trials, trials)
    for who, array in frames.items():
        np.testing.assert_array_equal(study.frames[who], array)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])  # noqa: S301
def test_a_copy_is_as_good(make: Callable[..., Any], study: Study, how: Callable[[Any], Any]) -> None:
    """As joblib and scikit-learn's searches need it; models on disk are `save`d."""
    model = seeded(make).fit(study)
    copied = how(model)
    assert_same(results(copied), results(model))


# --- random_state


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.parametrize("source", [np.random.RandomState, np.random.default_rng])
def test_a_source_of_random_numbers_gives_a_seed_at_every_fit(study: Study, name: str, source: Any) -> None:
    model = seeded(EVERYTHING[name], source(3))
    seeds = [model.fit(study).seed_ for _ in range(2)]
    same = seeded(EVERYTHING[name], source(3))
    assert [same.fit(study).seed_ for _ in range(2)] == seeds
    assert seeds[0] != seeds[1]
    assert_same(results(seeded(EVERYTHING[name], seeds[1]).fit(study)), results(same))


@pytest.mark.parametrize("name", DRAWING)
def test_none_takes_a_seed_from_the_system_and_records_it(study: Study, name: str) -> None:
    np.random.seed(0)  # noqa: NPY002
    model = EVERYTHING[name]().fit(study)
    np.random.seed(0)  # noqa: NPY002
    assert EVERYTHING[name]().fit(study).seed_ != model.seed_
    assert_same(results(seeded(EVERYTHING[name], model.seed_).fit(study)), results(model))


@pytest.mark.parametrize("value", ["a", 1.5, -1, 2**32, True])
@pytest.mark.parametrize("name", DRAWING)
def test_what_is_no_seed_is_refused_at_fit(study: Study, name: str, value: Any) -> None:
    model = seeded(EVERYTHING[name], value)
    with pytest.raises(ModelError) as caught:
        model.fit(study)
    assert f"random_state={value!r}" in str(caught.value)


def test_a_source_of_random_numbers_is_saved_as_the_seed_it_gave(study: Study, tmp_path: Path) -> None:
    model = HTFA(**SMALL, random_state=np.random.default_rng(0)).fit(study)
    model.save(tmp_path / "model")
    loaded = HTFA.load(tmp_path / "model")
    assert (loaded.random_state, loaded.seed_) == (None, model.seed_)
    with pytest.raises(ModelError):
        HTFA(**SMALL, random_state=np.random.default_rng(0)).fit(study, checkpoint=tmp_path / "checkpoint")


# --- one signature


@pytest.mark.parametrize("method", ["fit", "transform", "predict", "score", "log_predictive", "save"])
def test_models_have_one_signature(method: str) -> None:
    kinds = {inspect.signature(getattr(kind, method)) for kind in (NTFA, HTFA, TFA, TLSA)}
    assert len(kinds) == 1


def test_fit_is_called_alike_everywhere(make: Callable[..., Any]) -> None:
    parameters = list(inspect.signature(make().fit).parameters.values())
    assert [parameter.name for parameter in parameters[:2]] == ["study", "y"]
    assert parameters[1].default is None


@pytest.mark.parametrize("name", [name for name in BASELINES if name != "mean-image"])
def test_baselines_transform_as_models_do_without_sds(study: Study, name: str) -> None:
    model = seeded(BASELINES[name]).fit(study)
    signatures = [inspect.signature(kind.transform).parameters for kind in (type(model), NTFA)]
    assert signatures[0].keys() == signatures[1].keys()
    for wanted in ("return_sd", "condition_on_stimulus"):
        with pytest.raises(ModelError) as caught:
            model.transform(study, **{wanted: True})
        assert wanted in str(caught.value)


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_say_what_they_lack(name: str) -> None:
    model = BASELINES[name]()
    for lacking in ("transform",) if name in PREDICTING else ("predict", "score"):
        assert not hasattr(model, lacking)
        with pytest.raises(AttributeError) as caught:
            getattr(model, lacking)
        assert type(model).__name__ in str(caught.value)
        assert lacking in str(caught.value)


@pytest.mark.parametrize("name", [name for name in EVERYTHING if name != "mean-image"])
def test_transform_has_one_row_per_trial_or_frame(study: Study, name: str) -> None:
    model = seeded(EVERYTHING[name]).fit(study)
    by_trial, by_frame = weights_of(model, study), weights_of(model, study, by="frame")
    pd.testing.assert_index_equal(by_trial.index, study.trials.index)
    assert len(by_frame) == study.n_trial_frames
    means = by_frame.groupby(level="trial", sort=False).mean()
    np.testing.assert_allclose(means, by_trial, atol=1e-9)
    with pytest.raises(ModelError) as caught:
        weights_of(model, study, by="run")
    assert "by='run'" in str(caught.value)
    moved = Study.from_arrays(study.frames, study.trials, study.coordinates + 5)
    with pytest.raises(StudyError):
        weights_of(model, moved)


# --- predictions


@pytest.mark.parametrize("name", PREDICTING)
def test_predictions_have_sds_or_a_reason_why_not(study: Study, name: str) -> None:
    model = seeded(EVERYTHING[name]).fit(study)
    pairs = [("sub-01", study.stimuli[1]), ("sub-02", study.stimuli[0])]
    images = model.predict(pairs)
    assert images.shape == (2, study.n_voxels)
    np.testing.assert_array_equal(model.predict(pd.DataFrame(pairs, columns=["participant", "stimulus"])), images)
    if name == "ntfa":
        again, sds = model.predict(pairs, return_sd=True)
        np.testing.assert_array_equal(again, images)
        assert sds.shape == images.shape
        assert (sds > 0).all()
        assert (model.predict(pairs, return_sd=True, n_frames=4)[1] > sds).all()
    else:
        with pytest.raises(ModelError) as caught:
            model.predict(pairs, return_sd=True)
        assert type(model).__name__ in str(caught.value)


@pytest.mark.parametrize("name", ["htfa", "htfa-trial", "tfa", "ntfa", "tlsa"])
def test_a_model_that_ignores_the_stimulus_says_so_once(
    study: Study, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.WARNING, logger="ntfa")
    model = seeded(EVERYTHING[name]).fit(study)
    images = [model.predict([("sub-01", stimulus)])[0] for stimulus in study.stimuli]
    ignores = all(np.array_equal(image, images[0]) for image in images)
    assert ignores == (name not in ("ntfa", "tlsa"))
    said = [record for record in caplog.records if type(model).__name__ in record.getMessage()]
    assert len(said) == ignores
    caplog.clear()
    model.save(tmp_path / "model")
    type(model).load(tmp_path / "model").predict([("sub-01", study.stimuli[0])])
    assert bool(caplog.records) == ignores
    caplog.clear()
    model.fit(study.select(stimuli=study.stimuli[:1]))
    caplog.clear()
    model.predict([("sub-01", study.stimuli[0])])
    assert not caplog.records
