"""A fit that runs away goes back and on in smaller steps, or is given up with an explanation; it never just crashes."""

import logging
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_names, naming, weights_of

from ntfa import HTFA, NTFA, TFA, TLSA, Study
from ntfa.errors import DivergedError, Interrupted
from ntfa.estimators.base import TopographicModel
from ntfa.fitting import divergence
from ntfa.fitting.checkpoint import Checkpoint
from ntfa.fitting.divergence import problem_with
from ntfa.fitting.training import Trainer
from ntfa.inference.bounds import Bound

Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture


def model(**settings: Any) -> TopographicModel:
    return NTFA(
        **{"n_factors": 3, "max_epochs": 45, "random_state": 0, "uncertainty": "laplace", "response": "network"}
        | settings
    )


def run_away(patch: Patch, at: int, times: int, how: str) -> list[float]:
    """Spoil the parameters after step `at` as a step far too long would, so many times; return factors of all steps."""
    step, spoilt, factors = Trainer.step, [0], []

    def spoiling(self: Trainer, factor: float) -> Bound:
        factors.append(factor)
        bound = step(self, factor)
        if len(self.history.bounds) + 1 == at and spoilt[0] < times:
            spoilt[0] += 1
            with torch.no_grad():
                self.model.raw_noise_sd.fill_(math.nan if how == "nan" else -12.0)
        return bound

    patch.setattr(Trainer, "step", spoiling)
    return factors


@pytest.mark.parametrize("how", ["nan", "explodes"])
def test_a_fit_that_runs_away_goes_back_and_on(study: Study, monkeypatch: Patch, caplog: Log, how: str) -> None:
    whole = model().fit(study)
    factors = run_away(monkeypatch, at=37, times=1, how=how)
    with caplog.at_level(logging.WARNING, "ntfa"):
        fitted = model().fit(study)
    assert ("became nan at step 38" if how == "nan" else "by step 38") in caplog.text
    assert re.search(r"step 30\b.* 0\.3\b", caplog.text)
    assert len(factors) == 45 + 8
    assert factors[38:46] == pytest.approx([0.3 * factor for factor in factors[30:38]])
    history = fitted.history_["bound"]
    assert len(history) == 45
    np.testing.assert_array_equal(history[:30], whole.history_["bound"][:30])
    assert history.iloc[-1] / whole.history_["bound"].iloc[-1] == pytest.approx(1, rel=0.01)
    assert np.isfinite(fitted.factors_[["x", "y", "z", "width"]]).all(axis=None)


def test_it_is_given_up_after_a_few_tries_with_an_explanation(study: Study, monkeypatch: Patch, caplog: Log) -> None:
    run_away(monkeypatch, at=15, times=100, how="nan")
    with pytest.raises(DivergedError, match=naming("nan", 16, 5)):
        model().fit(study)
    assert caplog.text.count("from step 10 ") == divergence.MOST


def test_nan_from_the_very_start_is_given_up_too(study: Study, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Trainer, "step", lambda self, factor: Bound(math.nan, math.nan))
    with pytest.raises(DivergedError, match=naming("nan", 1)):
        model().fit(study)


def test_going_back_to_the_very_start_forgets_the_moments(study: Study, monkeypatch: Patch) -> None:
    run_away(monkeypatch, at=1, times=1, how="nan")
    fitted = model().fit(study)
    assert np.isfinite(fitted.history_["bound"]).all()


@pytest.mark.parametrize("step", [33, 37])
def test_a_resumed_fit_goes_back_to_the_same_place(study: Study, tmp_path: Path, monkeypatch: Patch, step: int) -> None:
    """Interrupted after the state to go back to was kept, and before the bound runs away."""
    with monkeypatch.context() as patch:
        run_away(patch, at=37, times=1, how="nan")
        undisturbed = model().fit(study)
    after_step = Checkpoint.after_step

    def stop(self: Checkpoint, trainer: Trainer) -> None:
        if len(trainer.history.bounds) == step and not trainer.history.back_offs:
            self.signals.append(15)
        after_step(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "after_step", stop)
        run_away(patch, at=37, times=1, how="nan")
        with pytest.raises(Interrupted):
            model().fit(study, checkpoint=tmp_path)
    with monkeypatch.context() as patch:
        run_away(patch, at=37, times=int(step < 37), how="nan")
        resumed = model().fit(study, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.history_["bound"], undisturbed.history_["bound"])
    assert resumed.factors_.equals(undisturbed.factors_)


def test_a_fit_resumed_after_going_back_goes_on_in_smaller_steps(
    study: Study, tmp_path: Path, monkeypatch: Patch
) -> None:
    after_step = Checkpoint.after_step

    def stop(self: Checkpoint, trainer: Trainer) -> None:
        if len(trainer.history.bounds) == 34 and trainer.history.back_offs:
            self.signals.append(15)
        after_step(self, trainer)

    with monkeypatch.context() as patch:
        run_away(patch, at=37, times=1, how="nan")
        undisturbed = model().fit(study)
    with monkeypatch.context() as patch:
        run_away(patch, at=37, times=1, how="nan")
        patch.setattr(Checkpoint, "after_step", stop)
        with pytest.raises(Interrupted):
            model().fit(study, checkpoint=tmp_path)
    resumed = model().fit(study, checkpoint=tmp_path)
    assert resumed.factors_.equals(undisturbed.factors_)


# --- what counts as running away


RISING = [-2.0 + 0.6 * (1 - math.exp(-i / 10)) for i in range(60)]


@pytest.mark.parametrize("bound", [math.nan, math.inf, -math.inf, -1e6, -6.0])
def test_what_has_run_away(bound: float) -> None:
    assert problem_with(bound, RISING) is not None


@pytest.mark.parametrize("bound", [-1.4, -2.0, -3.0, 5.0])
def test_what_has_not(bound: float) -> None:
    assert problem_with(bound, RISING) is None


def test_a_start_may_be_bad_and_rough() -> None:
    rough = [-1e6, -1e3, -1e5, -50.0, -2e4, -3.0]
    assert all(problem_with(bound, rough[:i]) is None for i, bound in enumerate(rough))


def test_running_away_slowly_is_noticed_too() -> None:
    bounds = list(RISING)
    for i in range(20):
        bounds.append(-1.4 - 1.5**i)
        if problem_with(bounds[-1], bounds[:-1]):
            return
    pytest.fail("was not noticed")


def test_no_healthy_fit_is_taken_back(study: Study, kind: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(divergence.Guard, "_go_back", lambda *args: pytest.fail("went back"))
    kind.make(max_epochs=60).fit(study)


# --- singular systems


@pytest.mark.parametrize("kind", [NTFA, HTFA, TFA, TLSA])
@pytest.mark.parametrize("inference", ["collapsed", "mean-field"])
def test_coinciding_factors_without_spread_cannot_crash_a_fit(
    study: Study, monkeypatch: Patch, kind: type[TopographicModel], inference: str
) -> None:
    """All factors at one place and of one width, the weights' sd and the noise at nothing."""
    import ntfa.fitting.optimise

    find_start = ntfa.fitting.optimise.find_start

    def singular(*args: Any, **kwargs: Any) -> Any:
        start = find_start(*args, **kwargs)
        return replace(
            start,
            centers=start.centers[:1].expand_as(start.centers).clone(),
            log_widths=start.log_widths[:1].expand_as(start.log_widths).clone(),
            weights_sd=torch.zeros_like(start.weights_sd),
            noise_sd=1e-4,
        )

    monkeypatch.setattr(ntfa.fitting.optimise, "find_start", singular)
    fitted = kind(n_factors=3, max_epochs=40, random_state=0, inference=inference).fit(study)
    assert np.isfinite(fitted.history_["bound"]).all()
    assert np.isfinite(weights_of(fitted, study).to_numpy()).all()


def test_a_matrix_that_cannot_be_inverted_sends_a_fit_back(study: Study, monkeypatch: Patch, caplog: Log) -> None:
    step, raised = Trainer.step, []

    def singular(self: Trainer, factor: float) -> Bound:
        if len(self.history.bounds) == 14 and not raised:
            raised.append(True)
            torch.linalg.cholesky(torch.zeros(2, 2))
        return step(self, factor)

    monkeypatch.setattr(Trainer, "step", singular)
    model().fit(study)
    assert_names(caplog.text, "step 15", "step 10")


@pytest.mark.parametrize("init", ["pursuit", "kmeans"])
@pytest.mark.parametrize("spread", [1e-20, 1.0, 1e8])
def test_frames_of_one_pattern_cannot_crash_a_fit(study: Study, init: str, spread: float) -> None:
    """All voxels rise and fall together, without noise, by next to nothing or by very much."""
    courses = np.random.default_rng(0).standard_normal((len(next(iter(study.frames.values()))), 1))
    frames = {name: np.repeat(spread * courses, study.n_voxels, 1) for name in study.frames}
    same = Study.from_arrays(frames, study.trials, study.coordinates)
    fitted = NTFA(n_factors=3, max_epochs=30, random_state=0, init=init).fit(same)
    assert np.isfinite(fitted.history_["bound"]).all()
    assert np.isfinite(fitted.transform(same).to_numpy()).all()


def test_as_many_factors_as_voxels_cannot_crash_a_fit(study: Study) -> None:
    few = Study.from_arrays(
        {name: array[:, :12] for name, array in study.frames.items()}, study.trials, study.coordinates[:12]
    )
    fitted = NTFA(n_factors=12, max_epochs=30, random_state=0).fit(few)
    assert np.isfinite(fitted.history_["bound"]).all()
