"""The part on reproducibility: its numbers by hand, what no fit may see, going on, and studies that are too small."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ntfa import NTFA, Study
from ntfa.analyses.halving import halve_people, halve_trials
from ntfa.analyses.reproducibility import distance_agreement, identify, point_distances, stimulus_image_distances
from ntfa.baselines import PCA, AdditiveImage, IndividualLoadings, MeanImage
from ntfa.comparison import Settings, compare
from ntfa.comparison.fits import Fits
from ntfa.comparison.halves import HALVINGS, distances_of_half, scaled_half
from ntfa.comparison.identification import PEOPLE, STIMULI, identification
from ntfa.comparison.words import comparison_in_words
from ntfa.errors import ModelError
from ntfa.simulation import Simulation

pytestmark = pytest.mark.usefixtures("no_figures")

METHODS = ["NTFA", "PCA", "SRM", "MN-SRM", "individual loadings", "images"]
KINDS = {("stimuli", "people"), ("participants", "trials"), ("participants", "stimuli")}


def read(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(folder / "reproducibility" / f"{name}.tsv", sep="\t")


@pytest.fixture(scope="module")
def done_once(tiny: Simulation, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Do not write into it."""
    settings = dataclasses.replace(settings, n_halvings=2)
    return compare(tiny.study, tmp_path_factory.mktemp("done") / "out", settings, parts=["reproducibility"])


@pytest.fixture
def done(done_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done_once, tmp_path / "out"))


def topographies(noise: float, seed: int = 0, n_people: int = 8, n_stimuli: int = 8) -> Study:
    """People with maps of their own, stimuli that differ in two dimensions, two trials of one frame."""
    rng = np.random.default_rng(seed)
    scores = np.c_[np.ones(n_stimuli), rng.normal(size=(n_stimuli, 2))]
    truth = scores @ (rng.normal(size=(3, 120)) + rng.normal(size=(n_people, 3, 120)))
    frames = {
        f"p{p}": np.repeat(truth[p], 2, axis=0) + noise * rng.normal(size=(2 * n_stimuli, 120)) for p in range(n_people)
    }
    rows = [(f"p{p}", f"s{t // 2}", t, t + 1) for p in range(n_people) for t in range(2 * n_stimuli)]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    coordinates = np.stack([np.arange(120), np.zeros(120), np.zeros(120)], axis=1)
    return Study.from_arrays(frames, trials, coordinates)


# --- numbers


def test_agreement_is_that_of_fits_to_the_halves(done: Path, tiny: Simulation, settings: Settings) -> None:
    table = read(done, "halvings").set_index(["distances", "halves", "halving", "method"])["correlation"]
    assert list(dict.fromkeys(table.index.get_level_values("method"))) == METHODS
    assert {key[:2] for key in table.index} == KINDS
    for number in (1, 2):
        halves = halve_people(tiny.study.trials, np.random.default_rng([settings.seed, 0, number]))
        one, two = (scaled_half(tiny.study, half) for half in halves)
        images = [
            stimulus_image_distances(half.mean_images(), half.trials["participant"], half.trials["stimulus"])
            for half in (one, two)
        ]
        points = [point_distances(PCA(2).fit(half).stimuli_) for half in (one, two)]
        models = [
            NTFA(3, max_epochs=6, random_state=0, uncertainty="mean-field", device="cpu", verbose=0).fit(half)
            for half in (one, two)
        ]
        ours = [point_distances(model.stimuli_) for model in models]
        for method, distances in (("images", images), ("PCA", points), ("NTFA", ours)):
            expected = distance_agreement(*distances)
            assert table["stimuli", "people", number, method] == pytest.approx(expected, nan_ok=True), method
    summary = read(done, "distances").set_index(["distances", "halves", "method"])
    expected = table["participants", "trials", :, "images"].mean()
    assert summary.loc[("participants", "trials", "images"), "correlation"] == pytest.approx(expected)


def test_halves_are_scaled_by_their_own_trials(tiny: Simulation) -> None:
    chosen = (tiny.study.trials["run"] == 2).to_numpy()
    half, plain = scaled_half(tiny.study, chosen), tiny.study.select(trials=chosen)
    assert half.trials.drop(columns=["start", "stop"]).equals(plain.trials.drop(columns=["start", "stop"]))
    for who in plain.participants:
        own = plain.trials["participant"] == who
        rows = [tiny.study.frames[who][a:b] for a, b in plain.trials.loc[own, ["start", "stop"]].to_numpy()]
        size = np.sqrt((np.concatenate(rows).astype(float) ** 2).mean())
        ours = [half.frames[who][a:b] for a, b in half.trials.loc[own, ["start", "stop"]].to_numpy()]
        np.testing.assert_allclose(np.concatenate(ours), np.concatenate(rows) / size, rtol=1e-5)
    louder = {who: array * (2 + i) for i, (who, array) in enumerate(tiny.study.frames.items())}
    again = scaled_half(Study.from_arrays(louder, tiny.study.trials, tiny.study.coordinates), chosen)
    for who, array in half.frames.items():
        np.testing.assert_allclose(again.frames[who], array, rtol=1e-5)


def test_errors_and_identification_are_those_of_the_predictions(done: Path, tiny: Simulation) -> None:
    train, test = tiny.study.split("diagonal")
    model, observed = NTFA.load(done / "models" / "train" / "ntfa"), test.mean_images()
    table = read(done, "errors").set_index("method")
    expected = ((observed - model.predict(test.trials)) ** 2).sum() / (observed**2).sum()
    assert table.loc["NTFA", "error"] == pytest.approx(expected, rel=1e-5)
    floor = table.loc["noise floor", "error"]
    assert table.loc["NTFA", "share_reached"] == pytest.approx((1 - expected) / (1 - floor), rel=1e-4)
    cells = read(done, "cells").set_index(["among", "method", "participant", "stimulus"])
    who, shown = test.trials[["participant", "stimulus"]].iloc[0]
    image = observed[((test.trials["participant"] == who) & (test.trials["stimulus"] == shown)).to_numpy()].mean(0)
    seen = train.select(participants=who)
    own = pd.DataFrame(seen.mean_images()).groupby(seen.trials["stimulus"].to_numpy()).mean().mean().to_numpy()
    candidates = model.predict([(who, stimulus) for stimulus in train.stimuli])
    nearer, first = identify(image, candidates, train.stimuli.index(shown), own)
    assert cells.loc[(STIMULI, "NTFA", who, shown), ["nearer", "first"]].tolist() == [nearer, first]
    people = cells.sort_index().loc[(PEOPLE, "stimulus image"), "nearer"]
    assert (people == 0.5).all(), "the same image for everybody identifies nobody"


def test_identification_is_perfect_without_noise_and_at_chance_with_noise_alone() -> None:
    for noise, low, high in ((0.05, 0.97, 1.0), (1e4, 0.4, 0.6)):
        found = []
        for seed in range(10):
            train, test = topographies(noise, seed).split("diagonal")
            found.append(identification({"own": IndividualLoadings().fit(train)}, train, test))
        means = pd.concat(found).groupby("among")["nearer"].mean()
        for among in (STIMULI, PEOPLE):
            assert low <= means[among] <= high, (noise, among)


@pytest.mark.parametrize(("among", "people", "stimuli"), [(STIMULI, 1.0, 0.0), (PEOPLE, 0.0, 1.0)])
def test_where_there_is_nothing_to_tell_apart_all_are_at_chance(among: str, people: float, stimuli: float) -> None:
    """People differ and stimuli do not, or the other way round: predictions of seen pairs must not give them away."""
    rng, found = np.random.default_rng(0), []
    for _ in range(12):
        study = topographies(1.0)
        means = people * rng.normal(size=(8, 1, 120)) + stimuli * rng.normal(size=(1, 8, 120))
        frames = {
            f"p{p}": np.repeat(means[p] + np.zeros((8, 120)), 2, 0) + rng.normal(size=(16, 120)) for p in range(8)
        }
        train, test = Study.from_arrays(frames, study.trials, study.coordinates).split("diagonal")
        simple = {"stimulus": MeanImage("stimulus"), "additive": AdditiveImage(), "own": IndividualLoadings()}
        found.append(identification({name: model.fit(train) for name, model in simple.items()}, train, test))
    table = pd.concat(found)
    means_of = table[table["among"] == among].groupby("method")["nearer"].mean()
    for method, nearer in means_of.items():
        assert abs(nearer - 0.5) < 0.1, method


# --- what no fit may see


def test_a_signal_in_held_out_trials_alone_identifies_nothing() -> None:
    """A fit that sees the planted images names them all; one to the training trials none."""
    rng = np.random.default_rng(1)
    leaking, honest = [], []
    for seed in range(4):
        study = topographies(1.0, seed)
        frames = {who: rng.normal(size=array.shape).astype(np.float32) for who, array in study.frames.items()}
        held_out = study.split("diagonal")[1].trials
        for (who, _), own in held_out.groupby(["participant", "stimulus"]):
            planted = 5 * rng.normal(size=study.n_voxels)
            for row in own.itertuples():
                frames[str(who)][row.start : row.stop] += planted
        study = Study.from_arrays(frames, study.trials, study.coordinates)
        train, test = study.split("diagonal")
        settings = IndividualLoadings(7, 0.1, 1.0)
        for found, seen in ((leaking, study), (honest, train)):
            found.append(identification({"own": settings.fit(seen)}, train, test)["nearer"].mean())
    assert np.mean(leaking) > 0.95
    assert abs(np.mean(honest) - 0.5) < 0.1


def test_planted_trials_leave_the_fits_as_they_were(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    frames = {who: array.copy() for who, array in tiny.study.frames.items()}
    rng = np.random.default_rng(0)
    for row in tiny.study.split("diagonal")[1].trials.itertuples():
        frames[row.participant][row.start : row.stop] = rng.normal(3, 20, size=tiny.study.n_voxels)
    planted = Study.from_arrays(frames, tiny.study.trials, tiny.study.coordinates)
    one, other = (Fits(study, settings, tmp_path / name) for name, study in (("one", tiny.study), ("other", planted)))
    pairs = tiny.study.split("diagonal")[1].trials
    models = [{"NTFA": fits.on_train("ntfa"), **fits.image_baselines} for fits in (one, other)]
    for name, model in models[0].items():
        np.testing.assert_array_equal(model.predict(pairs), models[1][name].predict(pairs), err_msg=name)


def test_one_half_never_sees_the_other(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for way in HALVINGS:
        halves = way.halve(Fits(tiny.study, settings, tmp_path), np.random.default_rng(0))
        frames = {who: array.copy() for who, array in tiny.study.frames.items()}
        for row in tiny.study.trials[halves[1]].itertuples():
            frames[row.participant][row.start : row.stop] = rng.normal(3, 20, size=tiny.study.n_voxels)
        spoilt = Study.from_arrays(frames, tiny.study.trials, tiny.study.coordinates)
        one, other = (
            distances_of_half(
                Fits(study, settings, tmp_path / name / way.what), scaled_half(study, halves[0]), way.kind, "half"
            )
            for name, study in (("one", tiny.study), ("other", spoilt))
        )
        assert list(one) == list(other)
        for method, distances in one.items():
            pd.testing.assert_frame_equal(distances, other[method], check_exact=True, obj=method)


# --- going on


def test_halves_that_were_fitted_are_not_fitted_again(
    done: Path, tiny: Simulation, settings: Settings, fits_made: list[tuple[str, int]]
) -> None:
    before = (done / "reproducibility" / "distances.tsv").read_text()
    shutil.rmtree(done / "reproducibility")
    (done / "models" / "halves" / "trials-2-b.tsv").unlink()
    settings = dataclasses.replace(settings, n_halvings=2)
    fits_made.clear()
    compare(tiny.study, done, settings, parts=["reproducibility"])
    assert fits_made == [("NTFA", tiny.study.n_trials // 2)]
    assert (done / "reproducibility" / "distances.tsv").read_text() == before


def test_more_halvings_do_not_change_those_before(done: Path, tiny: Simulation, settings: Settings) -> None:
    out = compare(tiny.study, done.parent / "one", settings, parts=["reproducibility"])
    two = read(done, "halvings")
    pd.testing.assert_frame_equal(read(out, "halvings"), two[two["halving"] == 1].reset_index(drop=True))


# --- studies that not everything can be done with


def test_what_a_small_study_does_not_allow_is_left_out_and_said(
    tiny: Simulation, settings: Settings, tmp_path: Path
) -> None:
    once = tiny.study.select(trials=tiny.study.trials["run"] == 1, participants=tiny.study.participants[:3])
    out = compare(once, tmp_path / "out", settings, parts=["reproducibility"])
    assert {tuple(key) for key in read(out, "halvings")[["distances", "halves"]].to_numpy()} == {
        ("participants", "stimuli")
    }
    left_out = read(out, "left_out")
    assert len(left_out) == 3
    assert "noise floor" not in set(read(out, "errors")["method"])
    said = comparison_in_words(out)
    for what in left_out["what"]:
        assert any(what in sentence for sentence in said)


def test_halvings_must_be_one_at_least(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="n_halvings=0"):
        compare(tiny.study, tmp_path / "out", dataclasses.replace(settings, n_halvings=0))
    assert not (tmp_path / "out").exists()


def test_halves_of_trials_are_runs_where_these_are_whole(tiny: Simulation, settings: Settings, tmp_path: Path) -> None:
    fits: Any = Fits(tiny.study, settings, tmp_path)
    one, two = HALVINGS[1].halve(fits, np.random.default_rng(0))
    trials = tiny.study.trials
    for half in (one, two):
        assert (trials[half].groupby("participant")["run"].nunique() == 1).all()
    expected = halve_trials(trials, np.random.default_rng(0), "run")
    np.testing.assert_array_equal(one, expected[0])


def test_a_mean_image_predicts_for_identification_as_models_do() -> None:
    train, test = topographies(0.3).split("diagonal")
    table = identification({"image": MeanImage("stimulus").fit(train)}, train, test)
    assert table.groupby("among")["nearer"].mean()[STIMULI] > 0.7
    assert (table.loc[table["among"] == PEOPLE, "nearer"] == 0.5).all()
