"""A fit that calibrates its uncertainty fits twice: stopped in either, or between, it goes on to the same bits."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file

import ntfa.fitting.checkpoint
from ntfa import NTFA, Study, simulate
from ntfa.errors import Interrupted, ModelError
from ntfa.fitting.checkpoint import Checkpoint
from ntfa.fitting.training import Trainer

STEPS = 10
CHOOSING_STEPS = 4
FIRST, SECOND = "restart-0.safetensors", "halves/restart-0.safetensors"


@pytest.fixture(scope="module", autouse=True)
def chosen_quickly() -> Iterator[None]:
    """Both response models are tried for a few steps only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ntfa.estimators.trials.TRIAL_EPOCHS", CHOOSING_STEPS)
        yield


@pytest.fixture(scope="module")
def study() -> Study:
    return simulate("synthetic", n_participants=4, n_stimuli=4, n_frames=3, n_voxels=80, random_state=0).study


def make(**settings: Any) -> NTFA:
    return NTFA(**{"n_factors": 2, "max_epochs": STEPS, "random_state": 0, "device": "cpu", **settings})


@pytest.fixture(scope="module")
def undisturbed(study: Study) -> NTFA:
    model = make().fit(study)
    assert model.uncertainty == "calibrated"
    assert (model.calibration_["n_halved"] > 0).all()
    return model


def state(model: NTFA) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in model._fitted.module.state_dict().items()}


def assert_same(one: NTFA, other: NTFA, study: Study) -> None:
    ours, theirs = state(one), state(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    for name in ("factors_", "participants_", "stimuli_", "calibration_"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True, obj=name)
    histories = [model.history_.drop(columns="seconds") for model in (one, other)]
    pd.testing.assert_frame_equal(*histories, check_exact=True)
    for ours, theirs in zip(*(m.predict(study.trials, return_sd=True) for m in (one, other)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def stop_at(patch: pytest.MonkeyPatch, folder: Path, which: str, step: int) -> None:
    """Let a checkpoint believe that a signal came during this step of its fit."""
    original = Checkpoint.after_step

    def after_step(self: Checkpoint, trainer: Trainer) -> None:
        if self.path == folder / which and len(trainer.history.bounds) == step:
            self.signals.append(signal.SIGTERM)
        original(self, trainer)

    patch.setattr(Checkpoint, "after_step", after_step)


def count_steps(patch: pytest.MonkeyPatch) -> list[int]:
    original, taken = Trainer.step, []

    def step(self: Trainer, factor: float) -> Any:
        taken.append(len(self.history.bounds))
        return original(self, factor)

    patch.setattr(Trainer, "step", step)
    return taken


@pytest.mark.parametrize("step", [1, 4, STEPS])
@pytest.mark.parametrize("which", [FIRST, SECOND])
def test_stopped_at_a_step_of_either_fit(
    study: Study, undisturbed: NTFA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, step: int
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, tmp_path, which, step)
        with pytest.raises(Interrupted) as caught:
            make().fit(study, checkpoint=tmp_path)
    assert str(tmp_path / which) in str(caught.value)
    assert len(load_file(tmp_path / which)["history"]) == step
    taken = count_steps(monkeypatch)
    assert_same(make().fit(study, checkpoint=tmp_path), undisturbed, study)
    steps_of_both = [*range(STEPS), *range(STEPS)]
    assert taken == steps_of_both[step + (STEPS if which == SECOND else 0) :]


def dying(original: Callable[..., Any], call: int) -> Callable[..., Any]:
    """Return a function that dies at its n-th call, and after it has done its work."""
    calls = []

    def die(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        calls.append(args)
        if len(calls) == call:
            raise MemoryError
        return result

    return die


MOMENTS = {
    "while response models are tried": ("ntfa.fitting.training.Trainer.objective", CHOOSING_STEPS + 2),
    "when a response model is chosen": ("ntfa.estimators.ntfa.choose_once", 1),
    "in a step of the first fit": ("ntfa.fitting.training.Trainer.objective", 2 * CHOOSING_STEPS + 5),
    "when the first fit is done": ("ntfa.fitting.checkpoint.Checkpoint.finish", 1),
    "when its uncertainty is known": ("ntfa.estimators.ntfa.condition_on_frames", 2),
    "when trials are halved": ("ntfa.estimators.ntfa.halve", 1),
    "in the first step of the second fit": ("ntfa.fitting.training.Trainer.objective", 2 * CHOOSING_STEPS + STEPS + 1),
    "in a later step of the second fit": ("ntfa.fitting.training.Trainer.objective", 2 * CHOOSING_STEPS + STEPS + 7),
    "when the second fit is done": ("ntfa.fitting.checkpoint.Checkpoint.finish", 2),
    "when all is calibrated": ("ntfa.estimators.ntfa.calibrate", 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_died_at_any_moment(
    study: Study, undisturbed: NTFA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    name, call = MOMENTS[moment]
    monkeypatch.setattr(ntfa.fitting.checkpoint, "SECONDS_BETWEEN", 0)
    with monkeypatch.context() as patch:
        patch.setattr(name, dying(resolve_name(name), call))
        with pytest.raises(MemoryError):
            make().fit(study, checkpoint=tmp_path)
    assert_same(make().fit(study, checkpoint=tmp_path), undisturbed, study)


def test_stopped_again_and_again(
    study: Study, undisturbed: NTFA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job whose wall time is a few steps: every run gets further, and the last one ends."""
    for which, step in [(FIRST, 3), (FIRST, 8), (SECOND, 1), (SECOND, 2), (SECOND, 9)]:
        with monkeypatch.context() as patch:
            stop_at(patch, tmp_path, which, step)
            with pytest.raises(Interrupted):
                make().fit(study, checkpoint=tmp_path)
    assert_same(make().fit(study, checkpoint=tmp_path), undisturbed, study)


def test_restarts_are_of_the_first_fit_alone(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(n_restarts=2).fit(study)
    with monkeypatch.context() as patch:
        stop_at(patch, tmp_path, SECOND, 5)
        with pytest.raises(Interrupted):
            make(n_restarts=2).fit(study, checkpoint=tmp_path)
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert kept - {"choice.json", "halves/choice.json"} == {FIRST, "restart-1.safetensors", SECOND}
    assert_same(make(n_restarts=2).fit(study, checkpoint=tmp_path), whole, study)


def test_a_checkpoint_of_other_halves_is_refused(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody puts the second fit of another study beside the first fit of this one."""
    other = study.select(participants=study.participants[:3])
    make().fit(other, checkpoint=tmp_path / "other")
    with monkeypatch.context() as patch:
        stop_at(patch, tmp_path / "mixed", SECOND, 1)
        with pytest.raises(Interrupted):
            make().fit(study, checkpoint=tmp_path / "mixed")
    (tmp_path / "mixed" / SECOND).write_bytes((tmp_path / "other" / SECOND).read_bytes())
    with pytest.raises(ModelError) as caught:
        make().fit(study, checkpoint=tmp_path / "mixed")
    assert SECOND in str(caught.value)
