"""On the paper's synthetic study the truth is found: two seeds of what benchmarks/recovery.py does for twenty."""

from dataclasses import dataclass

import numpy as np
import pytest

from ntfa import HTFA, NTFA, Study, simulate
from ntfa.analyses.groups import find_groups
from ntfa.analyses.separation import separation
from ntfa.simulation import Truth


@dataclass(frozen=True)
class Fits:
    """A seed's study, split, and what was fitted to it."""

    truth: Truth
    train: Study
    test: Study
    ntfa: NTFA
    htfa: HTFA


@pytest.fixture(scope="module", params=[0, 1], ids=lambda seed: f"seed {seed}")
def fits(request: pytest.FixtureRequest) -> Fits:
    study, truth = simulate("synthetic", random_state=request.param)
    train, test = study.split("diagonal")
    ntfa = NTFA(n_factors=3, random_state=request.param).fit(train)
    htfa = HTFA(n_factors=3, block="trial", random_state=request.param).fit(train)
    return Fits(truth, train, test, ntfa, htfa)


def test_groups_of_participants_and_tasks_are_found_from_the_embeddings_alone(fits: Fits) -> None:
    participants, stimuli = find_groups(fits.ntfa.participants_), find_groups(fits.ntfa.stimuli_)
    assert participants.n_groups == 3
    assert participants.agreement(fits.truth.participant_groups) == 1
    # Eight stimuli are too few to rule out one elongated cloud, or to say how many clusters there are; those found lie
    # within a task all the same.
    assert 2 <= stimuli.n_clusters <= 3
    assert fits.truth.stimulus_categories.groupby(stimuli.clusters).nunique().max() == 1
    assert separation(fits.ntfa.stimuli_, fits.truth.stimulus_categories).agreement == 1
    assert stimuli.p_value < 0.25


def test_centres_are_within_2_mm(fits: Fits) -> None:
    mean = fits.ntfa.factors_.groupby("factor")[["x", "y", "z"]].mean().to_numpy()
    distance = np.linalg.norm(mean[:, None] - fits.truth.centers, axis=-1)
    assert sorted(distance.argmin(1)) == [0, 1, 2]
    assert distance.min(1).max() < 2


def test_centres_are_within_2_mm_in_the_group_that_responds_there(fits: Fits) -> None:
    table = fits.ntfa.factors_
    group = table["participant"].map(fits.truth.participant_groups)
    mean = table.groupby([group, "factor"])[["x", "y", "z"]].mean()
    for place, name in zip(fits.truth.centers, ("Group 1", "Group 2", "Group 3"), strict=True):
        assert np.linalg.norm(mean.loc[name].to_numpy() - place, axis=1).min() < 2


def test_the_noise_is_found(fits: Fits) -> None:
    assert fits.ntfa.noise_ == pytest.approx(1, rel=0.005)


def test_held_out_images_are_predicted_nearly_as_well_as_by_the_truth(fits: Fits) -> None:
    trials, observed = fits.test.trials, fits.test.mean_images()
    pairs = list(zip(trials["participant"], trials["stimulus"], strict=True))
    oracle = np.mean((observed - np.stack([fits.truth.mean_image(*pair) for pair in pairs])) ** 2)
    error = np.mean((observed - fits.ntfa.predict(pairs)) ** 2)
    assert error < 1.03 * oracle
    assert error < np.mean(observed**2)
    assert error < np.mean((observed - fits.htfa.predict(pairs)) ** 2)


def test_ntfa_beats_htfa_with_fewer_parameters(fits: Fits) -> None:
    for estimator in ("collapsed", "paper"):
        ours = fits.ntfa.log_predictive(fits.test, estimator)
        theirs = fits.htfa.log_predictive(fits.test, estimator)
        assert ours.value - theirs.value > 2 * (ours.standard_error + theirs.standard_error)
    assert fits.ntfa.n_parameters_ < fits.htfa.n_parameters_


def test_fits_converge(fits: Fits) -> None:
    assert fits.ntfa.converged_
    assert fits.htfa.converged_


def test_the_papers_settings_run_and_improve_their_bound(fits: Fits) -> None:
    model = NTFA(
        n_factors=3, inference="mean-field", init="kmeans", schedule="paper", max_epochs=60, random_state=0
    ).fit(fits.train)
    bound = model.history_["bound"]
    assert len(bound) == 60
    assert np.isfinite(bound).all()
    assert bound.tail(10).mean() > bound.head(10).mean()
    assert bound.tail(10).mean() < fits.ntfa.history_["bound"].tail(10).mean()
    assert model.score(fits.test) < fits.ntfa.score(fits.test)
