import math
from collections.abc import Callable

import numpy as np
import pytest

from ntfa.fitting.schedules import OneCycle, PaperSchedule, Relocation, Schedule


def follow(schedule: Schedule, bound_at: Callable[[int], float], limit: int = 3000) -> tuple[list[float], str | None]:
    """Step as a trainer would; return the factor of every step taken, and why it stopped."""
    bounds: list[float] = []
    factors: list[float] = []
    relocations: list[Relocation] = []
    while (pace := schedule.pace(bounds, relocations)).stop is None and len(bounds) < limit:
        if pace.relocate:
            relocations.append(Relocation(len(bounds), 0))
            continue
        factors.append(pace.factor)
        bounds.append(bound_at(len(bounds)))
    return factors, pace.stop


def rising(step: int) -> float:
    return 0.01 * step


def saturating(step: int) -> float:
    return -math.exp(-step / 10)


def test_one_cycle_warms_up_holds_and_cools_down_to_nothing():
    factors, stopped = follow(OneCycle(max_epochs=200), rising)
    assert stopped == "max_epochs"
    assert len(factors) == 200
    assert factors[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert factors[10:140] == [1.0] * 130
    assert np.all(np.diff(factors[139:]) < 0)
    assert 0 < factors[-1] < 0.01


def test_one_cycle_turns_on_a_plateau_and_says_converged():
    factors, stopped = follow(OneCycle(max_epochs=1000), saturating)
    assert stopped == "converged"
    turn = factors.index(next(factor for factor in factors[10:] if factor < 1))
    assert len(factors) == turn + OneCycle(1000).cool_down
    assert np.all(np.diff(factors[turn:]) < 0)
    assert 0 < factors[-1] < 0.01
    # The gain from one window of 20 steps to the next falls below 2e-6 once exp(-step / 10) is that small.
    mean = np.convolve([saturating(step) for step in range(400)], np.ones(20) / 20, "valid")
    expected = next(step for step in range(50, 400) if mean[step - 20] - mean[step - 40] < 2e-6)
    assert turn == expected


def test_one_cycle_is_not_fooled_by_an_early_flat_stretch_of_noise():
    rng = np.random.default_rng(0)
    noise = rng.normal(scale=1e-3, size=500)
    _, stopped = follow(OneCycle(max_epochs=300), lambda step: 1e-3 * step + noise[step])
    assert stopped == "max_epochs"


def test_one_cycle_does_not_mind_a_constant_of_any_size():
    plain, _ = follow(OneCycle(max_epochs=500), saturating)
    shifted, _ = follow(OneCycle(max_epochs=500), lambda step: saturating(step) - 4.0)
    assert plain == shifted


def test_one_cycle_never_resumes_the_cycle_when_the_bound_rises_while_cooling():
    turn = len(follow(OneCycle(max_epochs=1000), saturating)[0]) - 60
    factors, stopped = follow(OneCycle(max_epochs=1000), lambda step: saturating(min(step, turn)) + max(0, step - turn))
    assert stopped == "converged"
    assert len(factors) == turn + 60


@pytest.mark.parametrize("bound_at", [rising, saturating, lambda step: 0.0, lambda step: math.nan])
@pytest.mark.parametrize("max_epochs", [1, 2, 3, 9, 10, 51, 120, 131])
@pytest.mark.parametrize("kind", [OneCycle, PaperSchedule])
def test_no_schedule_takes_more_than_max_epochs_steps(kind, max_epochs, bound_at):
    factors, stopped = follow(kind(max_epochs), bound_at)
    assert 1 <= len(factors) <= max_epochs
    assert all(0 < factor <= 1 for factor in factors)
    assert stopped in ("converged", "max_epochs")
    if stopped == "max_epochs":
        assert len(factors) == max_epochs


def test_pace_depends_on_the_bounds_alone():
    schedule = OneCycle(max_epochs=400)
    bounds = [saturating(step) for step in range(170)]
    assert [schedule.pace(bounds[:n]) for n in range(170)] == [OneCycle(400).pace(bounds[:n]) for n in range(170)]


def test_papers_rates_are_the_papers():
    schedule = PaperSchedule(1000)
    assert (schedule.variational_rate, schedule.network_rate) == (0.01, 0.0001)


def test_paper_keeps_its_rate_while_the_bound_rises():
    factors, stopped = follow(PaperSchedule(max_epochs=350), rising)
    assert factors == [1.0] * 350
    assert stopped == "max_epochs"


def test_paper_halves_after_a_hundred_epochs_without_progress():
    schedule = PaperSchedule(max_epochs=10_000)
    progress = [rising(step) for step in range(30)]
    assert schedule.pace([*progress, *[0.0] * 99]).factor == 1
    assert schedule.pace([*progress, *[0.0] * 101]).factor == 0.5
    assert schedule.pace([*progress, *[0.0] * 101, *[0.0] * 99]).factor == 0.5
    assert schedule.pace([*progress, *[0.0] * 101, *[0.0] * 101]).factor == 0.25


def test_progress_starts_the_papers_count_anew():
    schedule = PaperSchedule(max_epochs=10_000)
    bounds = [1.0, *[0.0] * 80, 2.0, *[0.0] * 80]
    assert schedule.pace(bounds).factor == 1
    assert schedule.pace([*bounds, *[0.0] * 21]).factor == 0.5


def test_paper_stops_once_halving_leaves_nothing_to_gain():
    factors, stopped = follow(PaperSchedule(max_epochs=3000), lambda step: 0.0)
    assert stopped == "converged"
    assert sorted(set(factors)) == [2.0**-i for i in range(6, -1, -1)]
