"""Halves, distances, noise floor and identification, against loops, scipy and studies whose truth is known."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from scipy.stats import t as student

from ntfa.analyses.halving import halve_people, halve_stimuli, halve_trials, runs_are_whole
from ntfa.analyses.reproducibility import (
    distance_agreement,
    error_over_zero,
    identify,
    noise_floor,
    participant_image_distances,
    point_distances,
    ratio_of_sums,
    stimulus_image_distances,
    summarise_halvings,
    summarise_identification,
)
from ntfa.errors import ModelError, StudyError

N_PEOPLE, N_STIMULI, N_VOXELS = 9, 7, 60


def trials_of(n_people: int = N_PEOPLE, n_stimuli: int = N_STIMULI, n_runs: int = 2) -> pd.DataFrame:
    rows = itertools.product(range(n_people), range(n_runs), range(n_stimuli))
    table = pd.DataFrame([(f"p{p}", f"s{s}", r) for p, r, s in rows], columns=["participant", "stimulus", "run"])
    return table.sample(frac=1, random_state=0).set_axis(range(10, 10 + len(table)))


def simulated(noise: float, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Images of people and stimuli that truly differ, two trials each, with noise of some size."""
    rng, trials = np.random.default_rng(seed), trials_of()
    people = {f"p{p}": (p + 1) * rng.normal(size=N_VOXELS) for p in range(N_PEOPLE)}
    stimuli = {f"s{s}": (s + 1) * rng.normal(size=N_VOXELS) for s in range(N_STIMULI)}
    images = np.stack([people[p] + stimuli[s] for p, s in trials[["participant", "stimulus"]].to_numpy()])
    return trials, images + noise * rng.normal(size=images.shape)


# --- halves


def test_halves_share_nothing_and_have_whole_labels() -> None:
    trials = trials_of()
    for halve, kind, other in ((halve_people, "participant", "stimulus"), (halve_stimuli, "stimulus", "participant")):
        seen = set()
        for seed in range(20):
            one, two = halve(trials, np.random.default_rng(seed))
            assert not (one & two).any()
            assert (one | two).all()
            first, second = (set(trials.loc[half, kind]) for half in (one, two))
            assert not first & second
            assert abs(len(first) - len(second)) <= 1
            assert set(trials.loc[one, other]) == set(trials[other])
            seen.add(frozenset(first))
        assert len(seen) > 10, "halvings are random"


def test_halves_of_trials_have_every_cell() -> None:
    trials = trials_of(n_runs=5)
    cells = trials.groupby(["participant", "stimulus"])
    for run in (None, "run"):
        one, two = halve_trials(trials, np.random.default_rng(0), run)
        assert not (one & two).any()
        assert (one | two).all()
        for half in (one, two):
            counts = pd.Series(half, index=trials.index).groupby([trials["participant"], trials["stimulus"]]).sum()
            assert set(counts) == {2, 3}
        split = pd.Series(one, index=trials.index).groupby([trials["participant"], trials["run"]]).nunique()
        assert (split == 1).all() == (run == "run"), "runs are whole if they can be"
    assert len(cells) == N_PEOPLE * N_STIMULI


def test_a_single_trial_is_in_neither_half() -> None:
    trials = trials_of().reset_index(drop=True)
    lonely = trials.index[(trials["participant"] == "p1") & (trials["stimulus"] == "s2")][0]
    cut = trials.drop(lonely)
    assert not runs_are_whole(cut, "run")
    one, two = halve_trials(cut, np.random.default_rng(0), "run")
    left = cut[~(one | two)]
    assert left[["participant", "stimulus"]].to_numpy().tolist() == [["p1", "s2"]]
    with pytest.raises(StudyError):
        halve_trials(trials_of(n_runs=1), np.random.default_rng(0))


@pytest.mark.parametrize(("halve", "few"), [(halve_people, {"n_people": 3}), (halve_stimuli, {"n_stimuli": 3})])
def test_too_few_to_halve(halve: object, few: dict[str, int]) -> None:
    assert callable(halve)
    with pytest.raises(StudyError, match="3"):
        halve(trials_of(**few), np.random.default_rng(0))


# --- distances


def test_distances_of_points_are_euclidean() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(5, 3)), index=list("abcde"), columns=["z1", "z2", "z3"])
    found = point_distances(table.assign(z1_sd=1.0, z2_sd=1.0, z3_sd=1.0))
    for one, two in itertools.product(table.index, repeat=2):
        assert found.loc[one, two] == pytest.approx(np.linalg.norm(table.loc[one] - table.loc[two]), abs=1e-12)


def test_distances_of_images_by_loops() -> None:
    trials, images = simulated(1.0)
    uneven = ~((trials["participant"] == "p0") & (trials["stimulus"].isin(["s1", "s2"]))).to_numpy()
    uneven &= ~((trials["participant"] == "p1") & (trials["run"] == 0)).to_numpy()
    trials, images = trials[uneven], images[uneven]
    people, stimuli = trials["participant"], trials["stimulus"]
    cells = {
        (p, s): images[((people == p) & (stimuli == s)).to_numpy()].mean(0)
        for p, s in set(zip(people, stimuli, strict=True))
    }
    of_people = participant_image_distances(images, people, stimuli)
    for one, two in itertools.product(sorted(set(people)), repeat=2):
        both = [s for s in sorted(set(stimuli)) if (one, s) in cells and (two, s) in cells]
        expected = np.sqrt(np.mean([(cells[one, s] - cells[two, s]) ** 2 for s in both]))
        assert of_people.loc[one, two] == pytest.approx(expected, abs=1e-9)
    means = {s: np.mean([image for (_, shown), image in cells.items() if shown == s], 0) for s in set(stimuli)}
    of_stimuli = stimulus_image_distances(images, people, stimuli)
    for one, two in itertools.product(means, repeat=2):
        expected = np.sqrt(((means[one] - means[two]) ** 2).mean())
        assert of_stimuli.loc[one, two] == pytest.approx(expected, abs=1e-9)
    with pytest.raises(ModelError, match=str(len(images))):
        stimulus_image_distances(images, people[1:], stimuli[1:])


def test_two_who_share_no_stimulus_have_no_distance() -> None:
    images, people, stimuli = np.eye(4), ["a", "b", "c", "c"], ["x", "y", "x", "y"]
    found = participant_image_distances(images, people, stimuli)
    assert np.isnan(found.loc["a", "b"])
    assert np.isfinite(found.loc["a", "c"])


def test_agreement_is_spearmans_over_pairs_that_both_have() -> None:
    rng = np.random.default_rng(0)
    labels = list("abcdefg")
    one = point_distances(pd.DataFrame({"z1": rng.normal(size=7), "z2": rng.normal(size=7)}, labels))
    two = pd.DataFrame(one.to_numpy()[:6, :6] ** 2 + rng.normal(size=(6, 6)), labels[:6], labels[:6])
    two = (two + two.T) / 2
    two.loc["a", "b"] = two.loc["b", "a"] = np.nan
    pairs = [(p, q) for p, q in itertools.combinations(labels[:6], 2) if (p, q) != ("a", "b")]
    expected = spearmanr([one.loc[pair] for pair in pairs], [two.loc[pair] for pair in pairs])[0]
    shuffled = two.loc[list("fbdace"), list("fbdace")]
    assert distance_agreement(one, two) == pytest.approx(expected)
    assert distance_agreement(shuffled, one) == pytest.approx(expected)


def test_agreement_that_cannot_be_known_is_missing() -> None:
    line = point_distances(pd.DataFrame({"z1": [0.0, 1.0, 3.0, 9.0]}, list("abcd")))
    assert np.isnan(distance_agreement(line.iloc[:2, :2], line))
    assert np.isnan(distance_agreement(line * 0, line))
    assert distance_agreement(line, 3 * line) == pytest.approx(1)


@pytest.mark.parametrize(("noise", "low", "high"), [(1e-3, 0.99, 1.0), (1e3, -0.35, 0.35)])
def test_distances_come_out_again_without_noise_and_do_not_with_noise_alone(
    noise: float, low: float, high: float
) -> None:
    found: dict[str, list[float]] = {"people": [], "trials": [], "stimuli": []}
    for seed in range(6):
        trials, images = simulated(noise, seed)
        random = np.random.default_rng(seed)
        for what, halves, measure in (
            ("people", halve_people(trials, random), stimulus_image_distances),
            ("trials", halve_trials(trials, random), participant_image_distances),
            ("stimuli", halve_stimuli(trials, random), participant_image_distances),
        ):
            one, two = (
                measure(images[half], *(trials.loc[half, kind] for kind in ("participant", "stimulus")))
                for half in halves
            )
            found[what].append(distance_agreement(one, two))
    for what, values in found.items():
        assert low <= np.mean(values) <= high, what


def test_halvings_are_summed_up_in_pairs() -> None:
    rows = pd.DataFrame(
        [("d", "NTFA", i, value) for i, value in enumerate([0.2, 0.5, 0.8])]
        + [("d", "PCA", i, value) for i, value in enumerate([0.1, 0.6, np.nan])],
        columns=["distances", "method", "halving", "correlation"],
    )
    table = summarise_halvings(rows, ["distances"]).set_index("method")
    assert table.loc["NTFA", "correlation"] == pytest.approx(0.5)
    assert table.loc["NTFA", ["low", "high"]].tolist() == pytest.approx(np.quantile([0.2, 0.5, 0.8], [0.025, 0.975]))
    assert table.loc["PCA", "n_halvings"] == 2
    assert table.loc["PCA", "difference"] == pytest.approx(((0.2 - 0.1) + (0.5 - 0.6)) / 2)
    assert table.loc["PCA", "n_above"] == 1
    assert np.isnan(table.loc["NTFA", "difference"])


# --- noise floor


def test_the_floor_is_the_error_of_knowing_the_truth() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(200, 50))
    images = np.repeat(truth, 3, axis=0) + 2 * rng.normal(size=(600, 50))
    people = np.repeat([f"p{i % 20}" for i in range(200)], 3)
    stimuli = np.repeat([f"s{i // 20}" for i in range(200)], 3)
    floor = noise_floor(images, people, stimuli)
    assert floor is not None
    known = error_over_zero(images, np.repeat(truth, 3, axis=0), people)
    assert floor.value == pytest.approx(known.value, rel=0.01)
    assert floor.value == pytest.approx(4 / 5, rel=0.02)
    assert floor.ci_low < 4 / 5 < floor.ci_high
    assert floor.n == 20
    means = np.repeat(images.reshape(200, 3, 50).mean(1), 3, axis=0)
    assert error_over_zero(images, means, people).value < floor.value, "a cell's own mean is better than it should be"


def test_the_floor_leaves_out_what_was_not_repeated() -> None:
    images = np.array([[1.0, 0.0], [3.0, 0.0], [100.0, 100.0]])
    floor = noise_floor(images, ["a", "a", "a"], ["x", "x", "y"])
    assert floor is not None
    assert floor.value == pytest.approx(2 * 2 / 10)
    assert np.isnan(floor.ci_low)
    assert noise_floor(images[1:], ["a", "a"], ["x", "y"]) is None


def test_an_interval_by_leaving_out_is_that_of_the_mean_where_denominators_are_equal() -> None:
    values = np.random.default_rng(0).normal(5, 1, size=12)
    found = ratio_of_sums(values, np.ones(12))
    low, high = student.interval(0.95, 11, values.mean(), values.std(ddof=1) / np.sqrt(12))
    assert [found.value, found.ci_low, found.ci_high] == pytest.approx([values.mean(), low, high])


# --- identification


def test_identification_counts_those_less_near() -> None:
    rng = np.random.default_rng(0)
    observed, candidates = rng.normal(size=30), rng.normal(size=(6, 30))
    correlations = [np.corrcoef(observed, image)[0, 1] for image in candidates]
    for own in range(6):
        others = [value for i, value in enumerate(correlations) if i != own]
        nearer, first = identify(observed, candidates, own)
        assert nearer == pytest.approx(np.mean(np.array(others) < correlations[own]))
        assert first == (max(correlations) == correlations[own])
    assert identify(3 * observed + 2, np.stack([candidates[0], observed]), 1) == (1.0, 1.0)


def test_ties_are_shared() -> None:
    rng = np.random.default_rng(0)
    observed, image = rng.normal(size=30), rng.normal(size=30)
    assert identify(observed, np.stack([image] * 4), 2) == (0.5, 0.25)
    assert identify(observed, np.zeros((3, 30)), 0) == (0.5, pytest.approx(1 / 3))
    # Images that are the common one, but for single precision, say nothing about anybody.
    rounded = (image * rng.uniform(1, 2, size=(4, 1))).astype(np.float32)
    assert identify(observed, rounded, 1, common=image) == (0.5, 0.25)


def test_what_is_common_does_not_identify() -> None:
    """Predictions that hold more of the person's mean are nearer to all the person shows, unless that is taken out."""
    rng = np.random.default_rng(0)
    raw, without = [], []
    for _ in range(300):
        person = rng.normal(size=100)
        seen, observed = person + rng.normal(size=(4, 100)), person + rng.normal(size=100)
        others = rng.normal(size=(5, 100))
        candidates = others + np.concatenate([np.zeros((1, 100)), 0.8 * seen])
        raw.append(identify(observed, candidates, 0)[0])
        without.append(identify(observed, candidates, 0, common=seen.mean(0))[0])
    assert np.mean(raw) < 0.1
    assert abs(np.mean(without) - 0.5) < 4 * np.std(without) / np.sqrt(300)


def test_identification_is_averaged_over_participants() -> None:
    rows = pd.DataFrame(
        {
            "among": "stimuli",
            "method": "NTFA",
            "participant": ["a", "a", "b", "c"],
            "nearer": [1.0, 0.5, 0.25, 1.0],
            "first": [1.0, 0.0, 0.0, 1.0],
            "n_candidates": [4, 4, 2, 4],
        }
    )
    (found,) = summarise_identification(rows).to_dict("records")
    means = np.array([0.75, 0.25, 1.0])
    low, high = student.interval(0.95, 2, means.mean(), means.std(ddof=1) / np.sqrt(3))
    assert [found["nearer"], found["ci_low"], found["ci_high"]] == pytest.approx([means.mean(), low, high])
    assert found["first"] == pytest.approx(0.5)
    assert found["first_chance"] == pytest.approx(1 / 3)
    assert (found["n_participants"], found["n_cells"], found["chance"]) == (3, 4, 0.5)
