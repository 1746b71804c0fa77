"""What every model promises of its fits, whatever its kind and inference, beside what all estimators do."""

import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from comparing import FACTORS, Fitted, all_pairs, assert_same_fit, changed, relabelled
from helpers import naming, weights_of

from ntfa import HTFA, NTFA, TFA, TLSA, Study, simulate
from ntfa.errors import ModelError, NotFittedError, StudyError
from ntfa.estimators.base import TopographicModel
from ntfa.fitting.optimise import optimise

# --- reproducible


def test_same_seed_same_result(kind: Any, study: Study, fitted: Fitted) -> None:
    assert_same_fit(kind.make().fit(study), fitted(kind), study)


def test_another_seed_another_result(kind: Any, study: Study, fitted: Fitted) -> None:
    other = kind.make(random_state=1).fit(study)
    assert other.seed_ == 1
    assert not other.history_["bound"].equals(fitted(kind).history_["bound"])


def test_refit_equals_fit(kind: Any, study: Study, uneven_study: Study, fitted: Fitted) -> None:
    model = kind.make().fit(uneven_study.select(stimuli=study.stimuli[:3]))
    assert_same_fit(model.fit(study), fitted(kind), study)
    assert_same_fit(model.fit(study), fitted(kind), study)


def test_no_seed_draws_one_and_records_it(collapsed_kind: Any, study: Study) -> None:
    model = collapsed_kind.make(random_state=None, max_epochs=4).fit(study)
    again = collapsed_kind.make(random_state=None, max_epochs=4).fit(study)
    assert model.random_state is None
    assert model.seed_ != again.seed_
    assert_same_fit(collapsed_kind.make(random_state=model.seed_, max_epochs=4).fit(study), model, study)


def test_fit_touches_neither_the_study_nor_the_global_random_state(kind: Any, study: Study) -> None:
    frames = {participant: array.copy() for participant, array in study.frames.items()}
    trials, coordinates = study.trials.copy(), study.coordinates.copy()
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    model = kind.make(init="kmeans", max_epochs=3).fit(study)
    weights_of(model, study)
    model.score(study, n_samples=4)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    for participant, array in frames.items():
        np.testing.assert_array_equal(study.frames[participant], array)
    pd.testing.assert_frame_equal(study.trials, trials)
    np.testing.assert_array_equal(study.coordinates, coordinates)


def test_the_order_of_rows_and_of_participants_does_not_matter(kind: Any, study: Study, fitted: Fitted) -> None:
    frames = dict(reversed(study.frames.items()))
    shuffled = Study.from_arrays(frames, study.trials.sample(frac=1, random_state=1), study.coordinates)
    model = kind.make().fit(shuffled)
    expected = fitted(kind)
    np.testing.assert_array_equal(model.predict(all_pairs(study)), expected.predict(all_pairs(study)))
    pd.testing.assert_frame_equal(
        weights_of(model, shuffled).loc[study.trials.index], weights_of(expected, study), check_exact=True
    )


@pytest.mark.parametrize("estimator", [NTFA, HTFA, TFA, TLSA])
@pytest.mark.parametrize("inference", ["collapsed", "mean-field"])
def test_one_thread_or_two_agree(estimator: type[TopographicModel], inference: str) -> None:
    # Large enough for PyTorch to share its products out among threads.
    study = simulate("synthetic", n_participants=3, n_stimuli=4, n_frames=10, n_voxels=1500, random_state=0).study
    models = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        try:
            models.append(estimator(n_factors=20, inference=inference, max_epochs=8, random_state=0).fit(study))
        finally:
            torch.set_num_threads(1)
    one, two = models
    np.testing.assert_allclose(two.history_["bound"], one.history_["bound"], rtol=1e-4)
    np.testing.assert_allclose(two.factors_[FACTORS], one.factors_[FACTORS], rtol=1e-4, atol=1e-3)
    for table in ("participants_", "stimuli_"):
        if hasattr(one, table):
            np.testing.assert_allclose(getattr(two, table), getattr(one, table), rtol=1e-4, atol=1e-6)


# --- settings


WRONG = [
    *(("n_factors", value) for value in (0, -1, 2.5, "3", True, None)),
    *((name, 0) for name in ("max_epochs", "n_particles", "n_restarts")),
    ("inference", "exact"),
    ("inference", None),
    ("init", "random"),
    ("schedule", "cosine"),
    ("device", "tpu"),
    ("embedding_dim", 0),
    ("embedding_dim", 1.5),
    ("block", "stimulus"),
    *(("design", value) for value in ([], None, 3, ["stimulus", 1], ["stimulus", "stimulus"])),
]


def test_wrong_settings_are_named_at_fit(collapsed_kind: Any, study: Study) -> None:
    own = collapsed_kind.make().get_params()
    for name, value in [(name, value) for name, value in WRONG if name in own]:
        model = collapsed_kind.make(**{name: value})
        with pytest.raises(ModelError, match=re.escape(f"{name}={value!r}")):
            model.fit(study)
        with pytest.raises(NotFittedError):
            weights_of(model, study)


@pytest.mark.parametrize("name", ["n_factors", "max_epochs", "random_state"])
def test_numpy_integers_are_integers(study: Study, tmp_path: Path, name: str) -> None:
    settings = {"n_factors": 3, "max_epochs": 2, "random_state": 0, name: np.int64(2)}
    model = NTFA(**settings).fit(study, checkpoint=tmp_path / "checkpoint")
    model.save(tmp_path / "model")
    assert getattr(NTFA.load(tmp_path / "model"), name) == 2


def test_more_factors_than_voxels_are_refused(collapsed_kind: Any, study: Study) -> None:
    with pytest.raises(ModelError, match=naming("n_factors=301", 300)):
        collapsed_kind.make(n_factors=301).fit(study)


@pytest.mark.parametrize("init", ["pursuit", "kmeans"])
@pytest.mark.parametrize("n_voxels", [2, 7])
def test_as_many_factors_as_voxels_fit(study: Study, n_voxels: int, init: str) -> None:
    frames = {participant: array[:, :n_voxels] for participant, array in study.frames.items()}
    small = Study.from_arrays(frames, study.trials, study.coordinates[:n_voxels])
    model = NTFA(n_factors=n_voxels, init=init, max_epochs=5, random_state=0).fit(small)
    assert np.isfinite(model.factors_[FACTORS].to_numpy()).all()
    assert np.isfinite(model.history_["bound"]).all()


def test_a_single_voxel_fits(study: Study) -> None:
    frames = {participant: array[:, :1] for participant, array in study.frames.items()}
    model = NTFA(n_factors=1, max_epochs=3, random_state=0)
    assert len(model.fit(Study.from_arrays(frames, study.trials, study.coordinates[:1])).factors_) == 6


# --- before and after a fit


def test_a_failed_refit_leaves_the_fitted_model_as_it_was(study: Study) -> None:
    model = NTFA(n_factors=3, max_epochs=3, random_state=0).fit(study)
    before = model.predict(all_pairs(study))
    bad = relabelled(study, participant="x{}".format)
    bad.frames["xsub-01"] = np.full_like(bad.frames["xsub-01"], np.nan)
    with pytest.raises(StudyError, match="xsub-01"):
        model.fit(bad)
    np.testing.assert_array_equal(model.predict(all_pairs(study)), before)


def test_parameters_set_after_a_fit_do_not_change_its_results(study: Study, tmp_path: Path) -> None:
    model = NTFA(n_factors=3, max_epochs=3, random_state=0).fit(study)
    weights = model.transform(study)
    model.set_params(n_factors=2)
    pd.testing.assert_frame_equal(model.transform(study), weights)
    model.save(tmp_path / "model")
    pd.testing.assert_frame_equal(NTFA.load(tmp_path / "model").transform(study), weights)


# --- the course of a fit


def test_history_has_a_row_a_step_and_the_bound_improves(kind: Any, clearly_fitted: Fitted) -> None:
    history = clearly_fitted(kind).history_
    assert list(history.columns[:3]) == ["step", "seconds", "bound"]
    assert history["step"].tolist() == list(range(1, len(history) + 1))
    assert (history["seconds"] > 0).all()
    assert history["seconds"].is_monotonic_increasing
    bound = history["bound"].to_numpy()
    assert np.isfinite(bound).all()
    assert bound[-10:].mean() > bound[:10].mean()
    parts = history["log_likelihood"] - history[["kl_factors", "kl_embeddings", "kl_weights"]].sum(axis=1)
    np.testing.assert_allclose(parts, bound, rtol=1e-9)


@pytest.mark.parametrize("schedule", ["one-cycle", "paper"])
@pytest.mark.parametrize("max_epochs", [1, 2, 7])
def test_a_fit_cut_short_says_so(kind: Any, study: Study, schedule: str, max_epochs: int) -> None:
    model = kind.make(schedule=schedule, max_epochs=max_epochs).fit(study)
    assert (model.stopped_, model.converged_) == ("max_epochs", False)
    assert len(model.history_) == max_epochs


def test_a_fit_that_settles_says_so(collapsed_kind: Any, study: Study) -> None:
    model = collapsed_kind.make(max_epochs=2000).fit(study)
    assert (model.stopped_, model.converged_) == ("converged", True)
    assert len(model.history_) < 2000
    # Means of ten bounds, whose draws make them differ by some 1e-4 from step to step.
    bound = model.history_["bound"].to_numpy() / study.n_data
    assert abs(bound[-10:].mean() - bound[-30:-20].mean()) < 2e-4


def test_restarts_keep_the_best_bound(collapsed_kind: Any, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    model = collapsed_kind.make(random_state=3, n_restarts=3)
    tried = []

    def noted(task: Any, recipe: Any, *others: Any) -> Any:
        found = optimise(task, recipe, *others)
        # Neither the small fits that choose a response model nor a calibration's start more than once.
        if recipe.n_restarts == 3:
            tried.append(found)
        return found

    monkeypatch.setattr("ntfa.fitting.optimise.optimise", noted)
    model.fit(study)
    final = [np.mean([bound.value for bound in one.history.bounds[-10:]]) for one in tried]
    starts = [one.module.centers.mean.detach().numpy() for one in tried]
    assert len(set(final)) == 3
    assert not np.allclose(starts[0], starts[1])
    assert model.history_["bound"].tail(10).mean() == pytest.approx(max(final), rel=1e-12)
    assert model._fitted.module is tried[int(np.argmax(final))].module


# --- difficult studies


def test_trials_may_differ_in_length_and_number(kind: Any, uneven_study: Study) -> None:
    assert (uneven_study.trials["stop"] - uneven_study.trials["start"]).nunique() > 2
    assert uneven_study.trials["participant"].value_counts().nunique() > 1
    model = kind.make(max_epochs=60).fit(uneven_study)
    weights = weights_of(model, uneven_study)
    pd.testing.assert_index_equal(weights.index, uneven_study.trials.index)
    assert np.isfinite(weights.to_numpy()).all()
    assert np.isfinite(model.score(uneven_study, n_samples=4))
    bound = model.history_["bound"]
    assert bound.tail(10).mean() > bound.head(10).mean()


def test_unusable_frames_are_found_at_fit(kind: Any, study: Study, tmp_path: Path) -> None:
    study.save(tmp_path / "study")
    path = tmp_path / "study" / "frames" / "sub-02.npy"
    frame = int(study.trials.loc[study.trials["participant"] == "sub-02", "start"].iloc[1]) + 1
    frames = np.load(path, mmap_mode="r+")
    frames[frame, 17] = np.nan
    frames.flush()
    opened = Study.open(tmp_path / "study")
    for use in (kind.make().fit, partial(weights_of, kind.make(max_epochs=2).fit(study))):
        with pytest.raises(StudyError, match=naming("sub-02", f"frame {frame}", "voxel 17", "nan")):
            use(opened)


def test_frames_outside_trials_may_be_unusable(kind: Any, study: Study, fitted: Fitted) -> None:
    in_trials = study.trials.loc[study.trials["participant"] == "sub-02"]
    rest = set(range(len(study.frames["sub-02"])))
    for start, stop in in_trials[["start", "stop"]].itertuples(index=False):
        rest -= set(range(start, stop))
    array = study.frames["sub-02"].copy()
    array[sorted(rest)] = np.inf
    scrubbed = Study(study.coordinates, study.trials, {**study.frames, "sub-02": array})
    assert_same_fit(kind.make().fit(scrubbed), fitted(kind), study)


@pytest.mark.parametrize("which", ["participants", "stimuli"])
def test_one_participant_or_one_stimulus_fits_with_a_warning(
    kind: Any, study: Study, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    label = getattr(study, which)[0]
    one = study.select(**{which: label})
    with caplog.at_level(logging.WARNING, logger="ntfa"):
        model = kind.make(max_epochs=4).fit(one)
    assert [record.getMessage() for record in caplog.records if f"one {which[:4]}" in record.getMessage()]
    assert label in caplog.text
    assert np.isfinite(model.factors_[FACTORS].to_numpy()).all()
    assert np.isfinite(weights_of(model, one).to_numpy()).all()
    assert np.isfinite(model.score(one, n_samples=4))


def test_several_participants_and_stimuli_fit_without_a_warning(
    collapsed_kind: Any, study: Study, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="ntfa"):
        collapsed_kind.make(max_epochs=2).fit(study)
    assert not caplog.records


def test_arrays_may_run_backwards(collapsed_kind: Any, study: Study) -> None:
    frames = {participant: array[:, ::-1] for participant, array in study.frames.items()}
    backwards = Study(study.coordinates[::-1], study.trials, frames)
    assert any(stride < 0 for stride in backwards.frames["sub-01"].strides)
    copies = {who: np.ascontiguousarray(array) for who, array in frames.items()}
    forwards = Study(study.coordinates[::-1].copy(), study.trials, copies)
    found, expected = (collapsed_kind.make(max_epochs=4).fit(one) for one in (backwards, forwards))
    np.testing.assert_allclose(found.history_["bound"], expected.history_["bound"], rtol=1e-9)
    np.testing.assert_allclose(found.predict(study.trials), expected.predict(study.trials), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_any_scale_of_the_data_fits(kind: Any, study: Study, scale: float) -> None:
    model = kind.make(max_epochs=4).fit(changed(study, scale=scale))
    assert np.isfinite(model.history_["bound"]).all()
    assert model.noise_ / scale == pytest.approx(1, rel=0.5)


@pytest.mark.filterwarnings("error")
def test_no_pairs_give_no_images_and_no_warning(study: Study) -> None:
    assert NTFA(n_factors=2, max_epochs=1, random_state=0).fit(study).predict([]).shape == (0, study.n_voxels)


def test_the_start_in_the_data_ends_no_lower_than_kmeans_where_layouts_vary() -> None:
    study, _ = simulate(
        "haxby", n_participants=4, n_stimuli=4, n_runs=3, n_frames=5, n_voxels=800, n_factors=4, noise=0.1
    )
    bounds = {
        init: HTFA(n_factors=4, block="participant", init=init, n_restarts=2, max_epochs=200, random_state=0)
        .fit(study)
        .history_["bound"]
        .tail(10)
        .mean()
        for init in ("pursuit", "kmeans")
    }
    assert bounds["pursuit"] > bounds["kmeans"]
