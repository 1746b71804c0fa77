"""Factors that do nothing are put where much is left to explain; and only these, and only then."""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import MODULES, make_frames
from scipy.optimize import linear_sum_assignment

import ntfa.fitting.relocation
import ntfa.fitting.training
from ntfa import HTFA, NTFA, TFA, Study
from ntfa.errors import Interrupted
from ntfa.estimators.base import TopographicModel
from ntfa.fitting.checkpoint import Checkpoint
from ntfa.fitting.relocation import Exchange, relocate
from ntfa.fitting.schedules import OneCycle, Relocation
from ntfa.fitting.training import Trainer
from ntfa.inference.pursuit import Blob
from ntfa.inference.residuals import Regression, Usefulness, residual_mixtures
from ntfa.models.moving import Moves

CENTERS = np.array([[-40.0, 28, 0], [40, 28, 4], [0, -44, -12], [4, 4, 48]])
RADIUS, NOISE = 11.0, 0.25
KINDS: dict[str, dict[str, Any]] = {
    "TFA": {},
    "HTFA": {},
    "NTFA": {"response": "network", "uncertainty": "mean-field"},
}


def study(hidden: bool, lacked_by_first: bool = False, people: int = 3) -> Study:
    """A few people, four stimuli, four factors in places that differ a little.

    hidden : whether the last factor's weights vary from frame to frame alone, so that means of cells know nothing of it
    lacked_by_first : whether the first person lacks half of the first factor
    """
    axis = np.arange(-60, 61, 8.0)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    grid = grid[(grid**2).sum(1) < 62**2]
    rng = np.random.default_rng(0)
    means = np.array([[2.0, -1, 0.5, 1], [-1, 2, -2, -2], [0.5, 1, 2, 2], [-2, -1.5, 1, -1]])
    frames, trials = {}, []
    for p in range(people):
        places = CENTERS + rng.normal(scale=2.5, size=CENTERS.shape)
        factors = np.exp(-((grid - places[:, None]) ** 2).sum(-1) / RADIUS**2)
        weights = rng.normal(scale=0.8, size=(4, 20, 4))
        weights[:, :, :] -= weights.mean(1, keepdims=True)
        weights += means[:, None] * (1 + 0.2 * p)
        if hidden:
            weights[:, :, 3] -= weights[:, :, 3].mean(1, keepdims=True)
        images = weights.reshape(80, 4) @ factors + NOISE * rng.normal(size=(80, len(grid)))
        if lacked_by_first and p == 0:
            images[:, grid[:, 0] < CENTERS[0, 0]] = np.nan
        frames[f"sub-{p}"] = images.astype(np.float32)
        trials += [(f"sub-{p}", f"s{i}", 20 * i, 20 * i + 20) for i in range(4)]
    return Study.from_arrays(frames, pd.DataFrame(trials, columns=["participant", "stimulus", "start", "stop"]), grid)


def model_of(kind: str, **more: Any) -> TopographicModel:
    kinds: dict[str, type] = {"TFA": TFA, "HTFA": HTFA, "NTFA": NTFA}
    settings: dict[str, Any] = {"n_factors": 4, "random_state": 0, "device": "cpu", "max_epochs": 400}
    return kinds[kind](**settings | KINDS[kind] | more)


@contextmanager
def nothing_moved() -> Iterator[None]:
    with patch.object(ntfa.fitting.training, "relocate", lambda *_, **__: Relocation(0)):
        yield


def errors_of(model: TopographicModel) -> np.ndarray:
    """Distances of everybody's factors from the true places of the group, [P, K], mm."""
    table = model.factors_.sort_values(["participant", "factor"], kind="stable")
    errors = []
    for ours in table[["x", "y", "z"]].to_numpy().reshape(-1, 4, 3):
        distances = np.linalg.norm(ours[:, None] - CENTERS, axis=-1)
        errors.append(distances[linear_sum_assignment(distances)])
    return np.stack(errors)


def trainer_at(step: int, hidden: bool = True, study_of_it: Study | None = None, kind: str = "HTFA") -> Trainer:
    """Stop a fit before the first relocation from a step on."""
    caught: list[Trainer] = []

    class Caught(Exception):
        pass

    def stop(trainer: Trainer, **_: bool) -> int:
        if len(trainer.history.bounds) < step:
            return 0
        caught.append(trainer)
        raise Caught

    with patch.object(ntfa.fitting.training, "relocate", stop), pytest.raises(Caught):
        model_of(kind).fit(study_of_it or study(hidden))
    return caught[0]


def copies(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.tensors().items()}


# --- What it is for


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_that_varies_between_frames_but_not_between_stimuli_is_found(kind: str) -> None:
    hidden = study(hidden=True)
    with nothing_moved():
        before = model_of(kind).fit(hidden)
    after = model_of(kind).fit(hidden)
    # Places of people differ by 2.5 mm from the group's along each axis.
    assert errors_of(before).max() > 20
    assert errors_of(after).max() < 10
    assert after.history_["bound"].iloc[-1] > before.history_["bound"].iloc[-1] + 1000


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_misses_nothing_takes_the_same_steps_to_the_bit(kind: str) -> None:
    plain = study(hidden=False)
    with nothing_moved():
        before = model_of(kind).fit(plain)
    after = model_of(kind).fit(plain)
    assert errors_of(before).max() < 10
    pd.testing.assert_frame_equal(after.factors_, before.factors_, check_exact=True)
    history = [model.history_.drop(columns="seconds") for model in (before, after)]
    pd.testing.assert_frame_equal(*history, check_exact=True)


def test_what_somebody_lacks_is_not_taken_for_something_left_to_explain() -> None:
    trainer = trainer_at(40, study_of_it=study(hidden=False, lacked_by_first=True))
    frames, factors = trainer.frames, (trainer.model.centers.mean.detach(), trainer.model.log_widths.mean.detach())
    first, second, _ = residual_mixtures(frames, Regression.of(frames, *factors).weights, *factors, 0)
    lacked = frames.unseen.lacked_by(0)
    assert len(lacked) > 100
    assert not first[:, lacked].any()
    assert second[:, lacked].any()


def test_a_fit_that_is_interrupted_before_or_after_a_move_goes_on_to_the_bit(tmp_path: Path) -> None:
    hidden = study(hidden=True)
    whole = model_of("HTFA").fit(hidden)
    original = Checkpoint.after_step
    for step in (40, 41, 60):

        def after_step(self: Checkpoint, trainer: Trainer, step: int = step) -> None:
            if len(trainer.history.bounds) == step:
                self.signals.append(signal.SIGTERM)
            original(self, trainer)

        with patch.object(Checkpoint, "after_step", after_step), pytest.raises(Interrupted):
            model_of("HTFA").fit(hidden, checkpoint=tmp_path / str(step))
        resumed = model_of("HTFA").fit(hidden, checkpoint=tmp_path / str(step))
        pd.testing.assert_frame_equal(resumed.factors_, whole.factors_, check_exact=True)
        history = [model.history_.drop(columns="seconds") for model in (whole, resumed)]
        pd.testing.assert_frame_equal(*history, check_exact=True)


# --- What is kept


def test_moves_are_kept_only_if_the_bound_rises() -> None:
    trainer = trainer_at(40, hidden=False)
    kept = copies(trainer)
    nowhere = Blob(torch.tensor([9.0, 9.0, 9.0]), -1.0, 0.0)
    bad = [Exchange(factor, nowhere, 100.0) for factor in (0, 2)]
    with patch.object(ntfa.fitting.relocation, "find_exchanges", lambda *_: bad):
        assert relocate(trainer).n_moved == 0
    for name, tensor in trainer.tensors().items():
        assert torch.equal(tensor, kept[name]), name


def test_of_several_moves_those_that_promise_most_are_kept_if_all_together_do_not_pay() -> None:
    trainer = trainer_at(40)
    model = trainer.model
    good = ntfa.fitting.relocation.find_exchanges(trainer, model)
    assert len(good) == 1
    other = next(factor for factor in range(4) if factor != good[0].factor)
    bad = Exchange(other, Blob(torch.tensor([9.0, 9.0, 9.0]), -1.0, 0.0), 0.0)
    elsewhere = model.centers.mean[:, other].clone()
    with patch.object(ntfa.fitting.relocation, "find_exchanges", lambda *_: [*good, bad]):
        assert relocate(trainer).n_moved == 1
    assert torch.equal(model.centers.mean[:, other], elsewhere)
    moved = model.centers.mean[:, good[0].factor]
    assert torch.equal(moved, good[0].blob.center.to(moved).expand_as(moved))


def test_where_people_share_no_factors_moves_are_kept_in_those_for_whom_they_are_good() -> None:
    trainer = trainer_at(40, kind="TFA")
    model = trainer.model
    good = ntfa.fitting.relocation.find_exchanges(trainer, model)
    assert sorted(one.block for one in good) == [0, 1, 2]
    spoiled = [
        Exchange(one.factor, Blob(torch.tensor([9.0, 9.0, 9.0]), -1.0, 0.0), 0.0, one.block) if one.block == 1 else one
        for one in good
    ]
    # What promises least of all is tried as long as it is the first of its owner's.
    second = next(factor for factor in range(4) if factor != spoiled[0].factor)
    spoiled.append(replace(spoiled[0], factor=second, blob=Blob(torch.tensor([9.0, 9.0, 9.0]), -1.0, 0.0)))
    before = model.centers.mean.detach().clone()
    with patch.object(ntfa.fitting.relocation, "find_exchanges", lambda *_: spoiled):
        assert relocate(trainer).n_moved == 2
    moved = (model.centers.mean.detach() != before).any(-1)
    expected = torch.zeros_like(moved)
    for one in good:
        expected[one.block, one.factor] = one.block != 1
    assert torch.equal(moved, expected)


def test_the_optimiser_begins_anew_with_what_was_moved() -> None:
    trainer = trainer_at(40)
    factor = ntfa.fitting.relocation.find_exchanges(trainer, trainer.model)[0].factor
    others = [k for k in range(4) if k != factor]
    before = {name: value.clone() for name, value in trainer.optimizer.state[trainer.model.weights_mean].items()}
    assert relocate(trainer).n_moved == 1
    after = trainer.optimizer.state[trainer.model.weights_mean]
    assert after["exp_avg"][factor] == 0
    assert after["exp_avg_sq"][factor] == before["exp_avg_sq"].median()
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(after[name][others], before[name][others])


# --- Its parts


def test_what_a_factor_is_good_for_is_what_a_regression_without_it_leaves_more() -> None:
    rng = np.random.default_rng(1)
    frames = rng.normal(size=(30, 50))
    factors = rng.normal(size=(5, 50))
    factors[3] = factors[1] + 0.3 * factors[3]
    gram, ridge = factors @ factors.T, 0.7

    def misfit(kept: list[int]) -> float:
        own = factors[kept]
        weights = np.linalg.solve(own @ own.T + ridge * np.eye(len(own)), own @ frames.T).T
        return float(((frames - weights @ own) ** 2).sum() + ridge * (weights**2).sum())

    inverse = np.linalg.inv(gram + ridge * np.eye(5))
    weights = frames @ factors.T @ inverse
    usefulness = Usefulness(*(torch.from_numpy(part)[None] for part in (inverse, weights.T @ weights)))
    left = [0, 1, 2, 3, 4]
    for given_up in (3, 0):
        expected = [misfit([j for j in left if j != k]) - misfit(left) for k in left]
        np.testing.assert_allclose(usefulness.losses()[0, left].numpy(), expected)
        usefulness.give_up(given_up)
        left.remove(given_up)
    assert usefulness.losses()[0, 3] == 0


def test_mixtures_have_the_energy_of_what_is_left_of_the_frames() -> None:
    frames = make_frames([[30, 40], [25]], 60, dtype=torch.float32)
    rng = np.random.default_rng(2)
    centers = torch.from_numpy(rng.normal(size=(2, 3, 3)))
    log_widths = torch.zeros(2, 3, dtype=torch.float64)
    regression = Regression.of(frames, centers, log_widths)
    mixtures = [*residual_mixtures(frames, regression.weights, centers, log_widths, 0)]
    image = torch.from_numpy(rng.normal(size=60))
    terms, start = frames.terms.double(), 0
    for block, mixed, center in zip(frames.blocks, mixtures, centers, strict=True):
        factors = torch.exp(-(terms[:3].T - center[:, None]).square().sum(-1))
        own = regression.weights[start : start + block.n_frames]
        left = block.array[block.rows].double() / frames.units.intensity - own @ factors
        start += block.n_frames
        # The relative error of so many mixtures has an sd of sqrt(2 / 128) = 0.125.
        for probe in (image, factors[0] + 0.1 * image):
            assert (mixed.double() @ probe).square().sum() == pytest.approx(
                float((left @ probe).square().sum()), rel=0.45
            )
    # A process that has the second block alone mixes it likewise.
    first = frames.blocks[0].n_frames
    torch.testing.assert_close(mixtures[1], _second_alone(frames, regression, centers, log_widths, first))


def _second_alone(frames: Any, regression: Regression, *others: Any) -> torch.Tensor:
    centers, log_widths, first = others
    [(_, _), (_, alone)] = list(frames.by_block())
    [mixed] = residual_mixtures(alone, regression.weights[first:], centers[1:], log_widths[1:], first)
    return mixed


@pytest.mark.parametrize("kind", MODULES)
def test_a_move_changes_the_rows_of_its_factor_alone(kind: str) -> None:
    torch.manual_seed(0)
    module = MODULES[kind]().double()
    if not module.factors_can_move:
        pytest.skip("factors of this kind stay")
    owner = None if module.owners_share_factors else torch.tensor([1])
    values = torch.tensor([[0.3, 0.2, 0.1]]).double()
    one = torch.tensor([0.7]).double()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    module.move(Moves(torch.tensor([1]), owner, values, one, 2 * one, 3 * one, 4 * one))
    owners = slice(None) if owner is None else owner
    assert torch.equal(module.centers.mean[owners, 1], values.expand_as(module.centers.mean[owners, 1]))
    assert torch.equal(module.log_widths.mean[owners, 1], one.expand_as(module.log_widths.mean[owners, 1]))
    for name, parameter in module.named_parameters():
        rows, old = (module.by_factor(name, tensor.detach()) for tensor in (parameter, before[name]))
        if rows is None:
            assert torch.equal(parameter, before[name]), name
        else:
            assert torch.equal(rows[0], old[0]), name
            if owner is not None:
                assert torch.equal(rows[1, 0], old[1, 0]), name


# --- When it looks


def looks(
    schedule: OneCycle, bound_at: Any, moved_at: tuple[int, ...] = (), gain: float = 1.0
) -> tuple[list[int], int]:
    """Follow a schedule; return the steps at which it looked, and how many it took."""
    bounds: list[float] = []
    relocations: list[Relocation] = []
    while (pace := schedule.pace(bounds, relocations)).stop is None:
        if pace.relocate:
            relocations.append(Relocation(len(bounds), int(len(bounds) in moved_at), gain))
        else:
            bounds.append(bound_at(len(bounds)))
    return [one.step for one in relocations], len(bounds)


def saturating(step: int) -> float:
    return -math.exp(-step / 10)


def test_it_looks_early_and_when_the_bound_has_stopped_rising() -> None:
    schedule = OneCycle(1000)
    [early, at_plateau], n_steps = looks(schedule, saturating)
    assert early == schedule.first_look
    assert at_plateau == n_steps - schedule.cool_down


def test_after_a_move_it_looks_again_and_waits_for_another_plateau() -> None:
    schedule = OneCycle(1000)
    [_, turn], plain = looks(schedule, saturating)
    steps, n_steps = looks(schedule, saturating, moved_at=(schedule.first_look, turn))
    assert steps[:3] == [schedule.first_look, schedule.first_look + schedule.look_again, turn]
    assert steps[3] == turn + schedule.look_again
    assert n_steps >= plain + schedule.warm_up + 2 * schedule.window


def test_for_a_move_that_gains_next_to_nothing_it_does_not_go_on() -> None:
    schedule = OneCycle(1000)
    [_, turn], _ = plain = looks(schedule, saturating)
    small = schedule.tolerance / 2
    assert looks(schedule, saturating, moved_at=(schedule.first_look, turn), gain=small) == plain
    assert looks(schedule, saturating, moved_at=(turn,), gain=4 * small)[1] > plain[1]


def test_it_does_not_look_when_there_is_no_time_left_for_what_is_moved() -> None:
    assert looks(OneCycle(120), lambda step: float(step))[0] == []


def test_it_does_not_look_for_ever() -> None:
    schedule = OneCycle(5000)
    steps, n_steps = looks(schedule, saturating, moved_at=tuple(range(5000)))
    assert len(steps) == schedule.most_looks
    assert n_steps < 1000
