"""What NTFA alone has: embeddings, networks, predictions for pairs never seen."""

import numpy as np
import pandas as pd
import pytest

from ntfa import NTFA, Study, simulate
from ntfa.analyses.separation import separation
from ntfa.simulation import Simulation


@pytest.fixture(scope="module")
def long_study() -> Simulation:
    """Three groups, two tasks; enough frames for the groups to show."""
    return simulate("synthetic", n_participants=6, n_stimuli=4, n_frames=20, n_voxels=600, random_state=0)


@pytest.fixture(scope="module")
def model(long_study: Simulation) -> NTFA:
    return NTFA(n_factors=3, response="network", max_epochs=150, random_state=0).fit(long_study.study)


def test_embeddings_are_tables_with_a_row_a_label(model: NTFA, long_study: Simulation) -> None:
    study = long_study.study
    for table, labels, name in (
        (model.participants_, study.participants, "participant"),
        (model.stimuli_, study.stimuli, "stimulus"),
    ):
        assert table.columns.tolist() == ["z1", "z2", "z1_sd", "z2_sd", "z1_z2_cov"]
        assert table.index.tolist() == labels
        assert table.index.name == name
        assert (table[["z1_sd", "z2_sd"]] > 0).all(axis=None)
        assert (table[["z1_sd", "z2_sd"]] < 1.5).all(axis=None), "a posterior is no wider than its prior, nearly"


def test_embeddings_tell_groups_and_tasks_apart(model: NTFA, long_study: Simulation) -> None:
    assert separation(model.participants_, long_study.truth.participant_groups).agreement == 1
    assert separation(model.stimuli_, long_study.truth.stimulus_categories).agreement == 1


@pytest.mark.parametrize("inference", ["collapsed", "mean-field"])
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_embeddings_of_any_dimension(study: Study, dim: int, inference: str) -> None:
    """Also of more dimensions than there are participants to span them."""
    model = NTFA(n_factors=2, embedding_dim=dim, inference=inference, max_epochs=4, random_state=0).fit(study)
    names = [f"z{i + 1}" for i in range(dim)]
    for table in (model.participants_, model.stimuli_):
        assert table.columns.tolist()[: 2 * dim] == names + [f"{name}_sd" for name in names]
        assert len(table.columns) == 2 * dim + dim * (dim - 1) // 2
        assert np.isfinite(table.to_numpy()).all()
    assert model.predict(study.trials.head(2)).shape == (2, study.n_voxels)


def test_factors_have_a_row_for_each_participant_and_factor(model: NTFA, long_study: Simulation) -> None:
    table = model.factors_
    assert table.columns.tolist()[:6] == ["participant", "factor", "x", "y", "z", "width"]
    expected = [(p, k) for p in long_study.study.participants for k in (1, 2, 3)]
    assert list(table[["participant", "factor"]].itertuples(index=False, name=None)) == expected


def test_held_out_pairs_are_predicted_from_what_each_half_is_known_to_do(long_study: Simulation) -> None:
    study, truth = long_study
    train, test = study.split("diagonal")
    model = NTFA(n_factors=3, max_epochs=150, random_state=0).fit(train)
    pairs = list(zip(test.trials["participant"], test.trials["stimulus"], strict=True))
    seen = set(zip(train.trials["participant"], train.trials["stimulus"], strict=True))
    assert not seen.intersection(pairs)
    true = np.stack([truth.mean_image(*pair) for pair in pairs])
    error, signal = np.mean((model.predict(pairs) - true) ** 2, axis=1), np.mean(true**2, axis=1)
    assert error.sum() < 0.25 * signal.sum()
    assert (error < 0.8 * signal).all()


def test_an_image_does_not_depend_on_the_others_asked_for(model: NTFA, long_study: Simulation) -> None:
    trials = long_study.study.trials
    images = model.predict(trials)
    np.testing.assert_array_equal(model.predict(trials.iloc[[5]]), images[[5]])
    np.testing.assert_array_equal(model.predict(trials.iloc[[5, 5, 2]]), images[[5, 5, 2]])


def test_integrating_the_weights_out_gives_the_higher_bound(model: NTFA, long_study: Simulation) -> None:
    sampled = NTFA(n_factors=3, inference="mean-field", max_epochs=150, random_state=0).fit(long_study.study)
    assert model.history_["bound"].tail(10).mean() > sampled.history_["bound"].tail(10).mean()


@pytest.mark.parametrize("inference", ["collapsed", "mean-field"])
def test_several_particles_give_a_bound_that_improves(study: Study, inference: str) -> None:
    model = NTFA(n_factors=3, inference=inference, n_particles=3, max_epochs=40, random_state=0).fit(study)
    bound = model.history_["bound"]
    assert bound.tail(10).mean() > bound.head(10).mean()
    assert np.isfinite(model.history_).all(axis=None)


def test_more_particles_give_a_tighter_bound_at_the_same_place(study: Study) -> None:
    """At the very first step only the number of particles differs."""
    settings = {"n_factors": 3, "inference": "mean-field", "max_epochs": 1}
    first = {
        n: np.mean(
            [NTFA(n_particles=n, random_state=seed, **settings).fit(study).history_["bound"][0] for seed in range(5)]
        )
        for n in (1, 20)
    }
    assert first[20] > first[1]


def test_the_start_in_the_data_is_better_than_kmeans_on_positions(study: Study) -> None:
    bounds = {
        init: NTFA(n_factors=3, init=init, max_epochs=1, random_state=0).fit(study).history_["bound"][0]
        for init in ("pursuit", "kmeans")
    }
    assert bounds["pursuit"] > bounds["kmeans"]


def test_embeddings_start_near_zero_without_factors_found_in_the_data(study: Study) -> None:
    model = NTFA(n_factors=3, init="kmeans", schedule="paper", max_epochs=1, random_state=0).fit(study)
    assert model.participants_[["z1", "z2"]].abs().to_numpy().max() < 0.5


def test_a_participant_little_is_known_of_has_a_wider_posterior(long_study: Simulation) -> None:
    study = long_study.study
    short = study.trials["participant"] == "sub-01"
    keep = ~short | (study.trials["stimulus"] == study.stimuli[0])
    trials = study.trials.loc[keep].copy()
    trials.loc[trials["participant"] == "sub-01", "stop"] = trials["start"] + 1
    model = NTFA(n_factors=3, max_epochs=200, random_state=0).fit(
        Study.from_arrays(study.frames, trials, study.coordinates)
    )
    sd = model.participants_[["z1_sd", "z2_sd"]].prod(axis=1)
    assert sd.idxmax() == "sub-01"


def test_frames_of_a_pair_share_what_is_unknown_of_its_embeddings(model: NTFA, long_study: Simulation) -> None:
    """So an average of 20 frames has a variance between 1 / 20 of a frame's and all of it."""
    _, sd = model.transform(long_study.study, return_sd=True)
    _, frame_sd = model.transform(long_study.study, by="frame", return_sd=True)
    first = frame_sd.groupby(level="trial").first().loc[sd.index]
    assert (sd >= first / np.sqrt(20) * (1 - 1e-9)).all(axis=None)
    assert (sd < 0.9 * first).all(axis=None)


def test_trials_of_a_pair_share_what_is_known_of_it(study: Study) -> None:
    """Two trials of the same pair or one of twice the length are the same data to NTFA, unless it halves them."""
    frames = study.frames
    whole = study.trials.assign(stop=study.trials["start"] + 4)
    first = whole.assign(stop=whole["start"] + 2)
    second = whole.assign(start=whole["start"] + 2)
    halves = pd.concat([first, second], ignore_index=True)
    make = NTFA(n_factors=3, max_epochs=10, random_state=0, uncertainty="laplace")
    one = make.fit(Study.from_arrays(frames, whole, study.coordinates)).participants_
    two = make.fit(Study.from_arrays(frames, halves, study.coordinates)).participants_
    np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-9)
