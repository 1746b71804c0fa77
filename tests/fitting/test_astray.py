"""Factors that have gone astray in some people come back, in these alone."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from helpers import MODULES
from test_relocation import CENTERS, model_of, study, trainer_at

import ntfa.fitting.relocation
from ntfa.fitting.astray import (
    Place,
    by_right,
    find_strays,
    find_swaps,
    forget_changed,
    in_turns,
    make_changes,
)
from ntfa.fitting.relocation import (
    KEPT_MOMENT,
    _bound,
    _bounds_of_owners,
    _keep_those_better,
    find_own_places,
    relocate,
)
from ntfa.fitting.training import Trainer
from ntfa.inference.pursuit import Candidates, Lattice, Pursuit
from ntfa.models.module import TopographicModule

PEOPLE = 5
SHARING = ("HTFA", "NTFA")


def trainer_of(kind: str) -> Trainer:
    """Stop a fit in which everybody's factors are where they should be, at its first look."""
    return trainer_at(40, study_of_it=study(hidden=False, people=PEOPLE), kind=kind)


def places_of(trainer: Trainer) -> np.ndarray:
    """Centres of everybody's factors, [P, K, 3], mm."""
    return trainer.frames.units.millimetres(trainer.model.centers.mean.detach()).numpy()


@torch.no_grad()
def put_on_top(trainer: Trainer, owner: int, factor: int, other: int) -> None:
    """Give a factor of one person the place and width of another of theirs, and forget how well it was known."""
    for posterior in (trainer.model.centers, trainer.model.log_widths):
        posterior.mean[owner, factor] = posterior.mean[owner, other]
        posterior.raw_sd[owner, factor] = 0.0


# --- Lost


@pytest.mark.parametrize("kind", SHARING)
@pytest.mark.parametrize("owners", [(2,), (1, 2, 4)])
def test_a_factor_that_another_one_covers_in_some_people_is_put_where_it_is_missing(
    kind: str, owners: tuple[int, ...]
) -> None:
    trainer = trainer_of(kind)
    before = places_of(trainer)
    lost = int(np.linalg.norm(before[0] - CENTERS[3], axis=1).argmin())
    other = (lost + 1) % 4
    for owner in owners:
        put_on_top(trainer, owner, lost, other)
    assert relocate(trainer).n_moved == len(owners)
    after = places_of(trainer)
    # Of two that lie on each other, either may have moved.
    for owner in owners:
        apart = np.linalg.norm(after[owner] - before[owner, lost], axis=1)
        assert apart.min() < 5
        assert trainer.model.centers.normal.sd[owner, int(apart.argmin())].max() < 0.1
        assert np.linalg.norm(after[owner] - before[owner, other], axis=1).min() < 5
    others = [owner for owner in range(PEOPLE) if owner not in owners]
    np.testing.assert_array_equal(after[others], before[others])


@pytest.mark.parametrize("freed", ["one", "other"])
def test_what_is_missing_is_given_to_the_factor_that_others_have_there(freed: str) -> None:
    trainer = trainer_of("HTFA")
    before = places_of(trainer)
    lost = int(np.linalg.norm(before[0] - CENTERS[3], axis=1).argmin())
    other = (lost + 1) % 4
    # Both lie where the other one should, so that only the place of the first is missing.
    put_on_top(trainer, 2, lost, other)
    places = [Place(2, lost if freed == "one" else other, torch.from_numpy(before[2, lost]), torch.tensor(0.0), 1.0)]
    center = trainer.frames.units.standardise(places[0].center)
    with torch.no_grad():
        [place] = by_right(trainer, trainer.model, [replace(places[0], center=center)])
        assert (place.factor, place.heir) == (lost, None if freed == "one" else other)
        make_changes(trainer, trainer.model, [place], 1)
    after = places_of(trainer)
    assert np.linalg.norm(after - before, axis=-1).max() < 1e-6
    np.testing.assert_array_equal(np.delete(after, 2, 0), np.delete(before, 2, 0))


def test_where_nothing_is_astray_nothing_is_proposed() -> None:
    trainer = trainer_of("HTFA")
    with torch.no_grad():
        assert find_own_places(trainer, trainer.model) == []
        assert find_swaps(trainer, trainer.model) == []
        assert find_strays(trainer, trainer.model) == []


def test_the_optimiser_begins_anew_with_what_was_moved_in_one_person_alone() -> None:
    trainer = trainer_of("HTFA")
    lost = int(np.linalg.norm(places_of(trainer)[0] - CENTERS[3], axis=1).argmin())
    put_on_top(trainer, 2, lost, (lost + 1) % 4)
    with torch.no_grad():
        # Which of two that lie on each other moves, rounding decides; the other one may take its place.
        [place] = by_right(trainer, trainer.model, find_own_places(trainer, trainer.model))
    states = trainer.optimizer.state
    kept = {kind: tensor.clone() for kind, tensor in states[trainer.model.centers.mean].items()}
    assert relocate(trainer).n_moved == 1
    of_centers, factor = states[trainer.model.centers.mean], place.factor
    assert not of_centers["exp_avg"][2, factor].any()
    squares = kept["exp_avg_sq"][2].clone()
    if place.heir is not None:
        squares[place.heir] = squares[factor]
        assert torch.equal(of_centers["exp_avg_sq"][2, place.heir], squares[factor])
    assert torch.equal(of_centers["exp_avg_sq"][2, factor], squares.median(0).values)
    assert not states[trainer.model.template_centers.mean]["exp_avg"][factor].any()
    stayed = [(2, k) for k in range(4) if k not in (factor, place.heir)]
    for owner, k in [*stayed, (0, factor)]:
        for kind in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(of_centers[kind][owner, k], kept[kind][owner, k])


@pytest.mark.parametrize("astray", [False, True])
def test_networks_take_larger_steps_after_a_move_and_only_then(astray: bool) -> None:
    trainer = trainer_of("NTFA")
    if astray:
        put_on_top(trainer, 2, 0, 1)
    first = next(iter(trainer.model.weight_network.parameters()))
    before = trainer.optimizer.state[first]["exp_avg_sq"].clone()
    assert relocate(trainer).n_moved == int(astray)
    expected = before * KEPT_MOMENT if astray else before
    assert torch.equal(trainer.optimizer.state[first]["exp_avg_sq"], expected)


def test_factors_are_looked_for_in_single_people_only_where_none_is_moved_for_all() -> None:
    trainer = trainer_at(40)
    with patch.object(ntfa.fitting.relocation, "find_own_places", lambda *_: pytest.fail("looked")):
        assert relocate(trainer).n_moved == 1


def test_a_fit_looks_at_single_people_from_its_second_look_on() -> None:
    looked, find = [], find_own_places

    def noted(trainer: Trainer, model: TopographicModule) -> list[Place]:
        looked.append(len(trainer.history.relocations))
        return find(trainer, model)

    with patch.object(ntfa.fitting.relocation, "find_own_places", noted):
        model_of("HTFA").fit(study(hidden=False, people=PEOPLE))
    assert looked
    assert 0 not in looked


# --- Exchanged, and strayed


@pytest.mark.parametrize("kind", SHARING)
def test_factors_that_have_exchanged_their_places_are_exchanged_back(kind: str) -> None:
    trainer = trainer_of(kind)
    model, state = trainer.model, trainer.optimizer.state[trainer.model.centers.mean]["exp_avg"]
    before, momentum = places_of(trainer), state.clone()
    with torch.no_grad():
        swap = Place(3, 0, model.centers.mean[3, 2].clone(), model.log_widths.mean[3, 2].clone(), 0.0, heir=2)
        make_changes(trainer, model, [swap], 1)
        forget_changed(trainer, model, [swap])
    assert not np.allclose(places_of(trainer)[3, 0], before[3, 0])
    with torch.no_grad():
        [found] = find_swaps(trainer, model)
    assert (found.owner, found.factor, found.heir) == (3, 0, 2)
    # Nothing lies elsewhere than before, so that the fit does not go on for it.
    assert relocate(trainer).n_moved == 0
    np.testing.assert_array_equal(places_of(trainer), before)
    assert not state[3, 0].any()
    assert torch.equal(np.delete(state, 3, 0), np.delete(momentum, 3, 0))


def test_strays_are_tried_one_of_each_person_at_a_time_farthest_first() -> None:
    trainer = trainer_of("HTFA")
    before = places_of(trainer)
    with torch.no_grad():
        for owner, factor, away in ((1, 2, 1.5), (4, 2, 3.0), (4, 1, 2.0)):
            trainer.model.centers.mean[owner, factor] += away
        found = find_strays(trainer, trainer.model)
        turns = [[(one.owner, one.factor) for one in together] for together in in_turns(found)]
        assert turns == [[(4, 2), (1, 2)], [(4, 1)]]
        make_changes(trainer, trainer.model, next(in_turns(found)), 1)
        assert np.linalg.norm(places_of(trainer)[4, 2] - before[[0, 2, 3], 2], axis=-1).min() < 10
        assert np.linalg.norm(places_of(trainer)[1, 2] - before[1, 2]) > 20


@pytest.mark.parametrize("kind", SHARING)
def test_of_changes_tried_together_those_are_kept_that_are_good_for_their_owner(kind: str) -> None:
    trainer = trainer_of(kind)
    before, centers = places_of(trainer), trainer.model.centers.mean
    width = trainer.model.log_widths.mean[0, 2].detach().clone()
    with torch.no_grad():
        good = [Place(owner, 2, centers[owner, 2].clone(), width, 1.0) for owner in (1, 3)]
        for place in good:
            put_on_top(trainer, place.owner, 2, 0)
        bad = Place(4, 2, centers[4, 0].clone(), width, 5.0)
        assert _keep_those_better(trainer, trainer.model, [bad, *good]).n_moved == 2
    after = places_of(trainer)
    np.testing.assert_allclose(after[[1, 3], 2], before[[1, 3], 2])
    np.testing.assert_array_equal(after[4], before[4])


@pytest.mark.parametrize("kind", SHARING)
def test_what_owners_add_to_the_bound_is_what_it_is_lower_without_them(kind: str) -> None:
    """A change of one owner's factor changes what that owner adds, by as much as the bound, and nothing else."""
    trainer = trainer_of(kind)
    model = trainer.model
    with torch.no_grad():
        before, whole = _bounds_of_owners(trainer, model), _bound(trainer)
        model.centers.mean[2, 1] += 0.05
        model.log_widths.raw_sd[2, 0] += 0.1
        after, bound = _bounds_of_owners(trainer, model), _bound(trainer)
    changed = after - before
    assert abs(float(changed[2])) > 1
    np.testing.assert_allclose(float(changed[2]), bound - whole, rtol=1e-6)
    others = [owner for owner in range(PEOPLE) if owner != 2]
    np.testing.assert_allclose(changed[others], 0, atol=1e-6)


# --- Its parts


@pytest.mark.parametrize("kind", ["htfa", "ntfa"])
def test_what_people_share_of_a_factor_is_brought_in_line_with_where_it_is_in_them(kind: str) -> None:
    torch.manual_seed(0)
    module = MODULES[kind]().double()
    mean, sd = torch.tensor([0.3, -0.2, 0.1, 0.7]).double(), torch.tensor([0.2, 0.2, 0.2, 0.05]).double()
    shared = (
        (lambda: module.factors_given(module.z_participant.mean))
        if kind == "ntfa"
        else (lambda: module.factors_given(module.template_centers.mean, module.template_log_widths.mean, 3))
    )
    [other, *_] = (part.mean[:, 0].clone() for part in shared())
    module.expect_factor(1, mean, sd)
    centers, log_widths = shared()
    for found, expected in ((centers, (mean[:3], sd[:3])), (log_widths, (mean[3], sd[3]))):
        for part, value in zip(found, expected, strict=True):
            torch.testing.assert_close(part[:, 1], value.expand_as(part[:, 1]))
    assert torch.equal(centers.mean[:, 0], other)


def test_a_blob_between_nodes_is_found_there() -> None:
    axis = torch.arange(-6, 7, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis, axis)
    center, log_width = torch.tensor([0.4, -1.35, 2.25], dtype=torch.float64), 1.9
    blob = torch.exp(-(grid - center).square().sum(1) / np.exp(log_width)).float()
    lattice = Lattice.around(grid, 20_000)
    images = lattice.pool(torch.tensor([1.0, -0.5, 2.0])[:, None] * blob)
    at_node = Pursuit(Candidates.on(lattice), images.clone()).take()
    between = Pursuit(Candidates.on(lattice), images.clone()).take(between_nodes=True)
    assert between.energy == at_node.energy
    assert (at_node.center - center).norm() > 0.4
    assert (between.center - center).norm() < 0.15
    assert abs(between.log_width - log_width) < abs(at_node.log_width - log_width)
