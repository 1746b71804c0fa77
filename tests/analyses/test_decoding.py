"""Decoding against scikit-learn and scipy, and against every way in which labels could leak."""

import logging
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from helpers import naming
from scipy import stats
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from ntfa import Study
from ntfa.analyses.connectivity import cluster_signals, connectivity
from ntfa.analyses.decoding import classifier, classify_means, condition_means, decode, summarise
from ntfa.baselines.components import ICA, DictionaryLearning
from ntfa.errors import ModelError, StudyError


def make_trials(n_participants: int = 4, n_runs: int = 3, categories: str = "abc", repeats: int = 2) -> pd.DataFrame:
    """Trials in which every run shows every category `repeats` times, with an index of names."""
    rows = [
        (f"sub-{p}", str(r), c)
        for p in range(n_participants)
        for r in range(n_runs)
        for c in sorted(categories * repeats)
    ]
    trials = pd.DataFrame(rows, columns=["participant", "run", "category"])
    trials.index = [f"t{i}" for i in range(len(trials))]
    return trials


def noise(trials: pd.DataFrame, n_features: int = 6, seed: int = 0) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(seed).normal(size=(len(trials), n_features)), index=trials.index)


def informative(trials: pd.DataFrame, strength: float, n_features: int = 6) -> pd.DataFrame:
    """Noise, plus a feature that is `strength` higher for category a."""
    features = noise(trials, n_features)
    features[0] += strength * (trials["category"] == "a")
    return features


def quickly(*args, **settings) -> pd.DataFrame:
    return decode(*args, n_jobs=1, **settings)


def test_rows_equal_scikit_learns():
    trials = make_trials(n_participants=2)
    features = informative(trials, 1.0)
    rows = quickly(features, trials, "category")
    assert len(rows) == 2 * 3 * 3
    for row in rows.itertuples():
        own = trials[trials["participant"] == row.participant]
        test = own["run"] == sorted(own["run"].unique())[row.fold - 1]
        model = make_pipeline(StandardScaler(), LinearSVC(dual=True, max_iter=100_000, tol=1e-7))
        model.fit(features.loc[own.index[~test]], own["category"][~test] == row.category)
        decision = model.decision_function(features.loc[own.index[test]])
        assert row.auc == pytest.approx(roc_auc_score(own["category"][test] == row.category, decision))
        assert (row.n_train, row.n_test, row.scheme) == (12, 6, "run")


@pytest.mark.parametrize(("n_trials", "n_features"), [(20, 300), (20, 20), (40, 30), (120, 10)])
def test_classifier_is_the_linear_svm_whatever_the_shape(n_trials, n_features):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n_trials, n_features)), np.arange(n_trials) % 3 == 0
    new = rng.normal(size=(15, n_features))
    found = classifier(n_trials, n_features).fit(x, y).decision_function(new)
    plain = make_pipeline(StandardScaler(), LinearSVC(dual=True, tol=1e-8, max_iter=1_000_000)).fit(x, y)
    np.testing.assert_allclose(found, plain.decision_function(new), atol=2e-3)


def test_best_features_are_those_of_the_training_trials():
    trials = make_trials(n_participants=1, repeats=4)
    features = informative(trials, 1.5, n_features=40)
    rows = quickly(features, trials, "category", n_best=3).query("category == 'a'")
    for row in rows.itertuples():
        test = trials["run"] == str(row.fold - 1)
        model = make_pipeline(StandardScaler(), SelectKBest(f_classif, k=3), LinearSVC(dual=False, tol=1e-8))
        model.fit(features[~test], trials["category"][~test] == "a")
        auc = roc_auc_score(trials["category"][test] == "a", model.decision_function(features[test]))
        assert row.auc == pytest.approx(auc)


def test_more_best_features_than_there_are_is_all():
    trials = make_trials()
    features = informative(trials, 1.0)
    pd.testing.assert_frame_equal(
        quickly(features, trials, "category", n_best=500), quickly(features, trials, "category")
    )


def test_planted_effect_is_found_where_it_is():
    trials = make_trials(n_participants=6, repeats=4)
    table = summarise(quickly(informative(trials, 3.0), trials, "category")).set_index("category")
    assert table.loc["a", "auc"] > 0.9
    assert table.loc["a", "ci_low"] > 0.5
    assert table.loc["a", "auc"] > table.loc[["b", "c"], "auc"].max() + 0.1
    across = summarise(quickly(informative(trials, 3.0), trials, "category", across="participants"))
    assert across.set_index("category").loc["a", "auc"] > 0.9


def test_order_of_features_and_trials_does_not_matter():
    trials = make_trials()
    features = informative(trials, 1.0)
    shuffled = features.sample(frac=1, random_state=0)
    pd.testing.assert_frame_equal(quickly(shuffled, trials, "category"), quickly(features, trials, "category"))


def test_two_processes_give_the_same():
    trials = make_trials(n_participants=2)
    features = informative(trials, 1.0)
    two = decode(features, trials, "category", n_jobs=2, progress="testing")
    pd.testing.assert_frame_equal(two, quickly(features, trials, "category"))


# Folds


def schemes(trials: pd.DataFrame, **settings) -> dict[str, tuple[str, int]]:
    rows = quickly(noise(trials), trials, "category", **settings)
    return {who: (own["scheme"].iloc[0], own["fold"].nunique()) for who, own in rows.groupby("participant")}


def test_runs_are_left_out_where_each_shows_every_category():
    trials = make_trials(n_runs=4)
    assert schemes(trials)["sub-0"] == ("run", 4)
    assert schemes(trials.rename(columns={"run": "session"}))["sub-0"] == ("stratified", 3)
    assert schemes(trials.rename(columns={"run": "session"}), run="session")["sub-0"] == ("run", 4)


def test_thirds_where_runs_do_not_allow_it():
    trials = make_trials(n_participants=3)
    trials.loc[(trials["participant"] == "sub-0") & (trials["run"] == "1"), "category"] = "a"
    trials.loc[trials["participant"] == "sub-1", "run"] = "only"
    found = schemes(trials)
    assert found == {"sub-0": ("stratified", 3), "sub-1": ("stratified", 3), "sub-2": ("run", 3)}


def test_missing_run_means_thirds():
    trials = make_trials(n_participants=1)
    trials.loc[trials.index[0], "run"] = None
    assert schemes(trials)["sub-0"] == ("stratified", 3)


def test_stratified_folds_hold_every_category_on_both_sides():
    trials = make_trials(n_participants=1, n_runs=1, repeats=4).drop(columns="run")
    rows = quickly(noise(trials), trials, "category")
    assert rows["n_test"].sum() == 3 * len(trials)
    assert (rows["n_train"] + rows["n_test"] == len(trials)).all()


def test_two_trials_of_a_category_make_halves():
    trials = make_trials(n_participants=1, n_runs=1, repeats=4).drop(columns="run")
    trials = trials.drop(trials.index[trials["category"] == "c"][:2])
    assert schemes(trials)["sub-0"] == ("stratified", 2)


def test_single_trial_of_a_category_is_left_out_and_named(caplog):
    trials = make_trials(n_participants=2, n_runs=1, repeats=4).drop(columns="run")
    trials = trials.drop(trials.index[(trials["category"] == "c") & (trials["participant"] == "sub-1")][:3])
    with caplog.at_level(logging.WARNING, "ntfa"):
        rows = quickly(noise(trials), trials, "category")
    assert set(rows.loc[rows["participant"] == "sub-1", "category"]) == {"a", "b"}
    assert set(rows.loc[rows["participant"] == "sub-0", "category"]) == {"a", "b", "c"}
    assert "sub-1" in caplog.text
    assert "category c" in caplog.text
    assert "sub-0" not in caplog.text


def test_participant_with_one_category_is_left_out_and_named(caplog):
    trials = make_trials(n_participants=2)
    trials.loc[trials["participant"] == "sub-1", "category"] = "a"
    with caplog.at_level(logging.WARNING, "ntfa"):
        rows = quickly(noise(trials), trials, "category")
    assert set(rows["participant"]) == {"sub-0"}
    assert "sub-1" in caplog.text


def test_trials_without_a_category_take_no_part():
    trials = make_trials(n_participants=3)
    trials.loc[trials.index[::7], "category"] = None
    features = informative(trials, 1.0)
    features.loc[trials["category"].isna()] = np.nan
    for across in ("trials", "participants"):
        rows = quickly(features, trials, "category", across=across)
        assert rows["auc"].notna().all()
        expected = quickly(features.dropna(), trials.dropna(), "category", across=across)
        pd.testing.assert_frame_equal(rows, expected)


def test_across_participants_holds_out_all_trials_of_each():
    trials = make_trials(n_participants=4)
    rows = quickly(noise(trials), trials, "category", across="participants")
    assert rows.groupby("participant")["category"].apply(list).tolist() == [["a", "b", "c"]] * 4
    assert set(zip(rows["n_train"], rows["n_test"], rows["scheme"], strict=True)) == {(54, 18, "participant")}


# Nothing leaks


def test_test_trials_are_hidden_from_what_makes_features():
    """What makes features is given each run's complement once, for all participants; without features, chance."""
    trials = make_trials(n_participants=2)
    seen = []

    def features(train: pd.Index) -> pd.DataFrame:
        seen.append(train)
        table = noise(trials, seed=len(seen))
        table.loc[~trials.index.isin(train)] = 0.0
        return table

    rows = quickly(features, trials, "category")
    np.testing.assert_array_equal(rows["auc"], 0.5)
    for number, train in enumerate(seen):
        assert set(trials.loc[~trials.index.isin(train), "run"]) == {str(number)}
    assert len(seen) == 3


def test_changing_test_trials_leaves_the_classifier_alone():
    """Scaling, selection and training see training trials only, so monotone changes of test trials change no AUC."""
    trials = make_trials(n_participants=1, repeats=4)
    base = noise(trials, 30)

    def moved(train: pd.Index) -> pd.DataFrame:
        table = base.copy()
        table.loc[~trials.index.isin(train)] = 1e3 * table.loc[~trials.index.isin(train)] + 50.0
        return table

    moved_rows = quickly(moved, trials, "category", n_best=5)
    pd.testing.assert_frame_equal(moved_rows, quickly(base, trials, "category", n_best=5))


def test_participant_left_out_is_hidden_from_what_makes_features():
    trials = make_trials(n_participants=3)
    trials.loc[trials.index[0], "category"] = None
    hidden = []

    def features(train: pd.Index) -> pd.DataFrame:
        hidden.append(set(trials.index.difference(train)))
        return noise(trials)

    quickly(features, trials, "category", across="participants")
    assert hidden == [set(own.index) for _, own in trials.groupby("participant")]


def noisy_study(seed: int, n_frames: int = 1, n_voxels: int = 40) -> Study:
    """Frames of pure noise; random labels, a third of the trials each."""
    rng = np.random.default_rng(seed)
    trials = make_trials(n_participants=3, n_runs=1, repeats=5)
    trials["category"] = trials.groupby("participant")["category"].transform(
        lambda own: rng.permutation(own.to_numpy())
    )
    place = trials.groupby("participant").cumcount() * n_frames
    trials = trials.assign(stimulus=trials["category"], start=place, stop=place + n_frames)
    grid = np.stack(np.meshgrid(*[np.arange(8.0)] * 3), -1).reshape(-1, 3)[:n_voxels]
    frames = {who: rng.normal(size=(15 * n_frames, n_voxels)) for who in trials["participant"].unique()}
    return Study.from_arrays(frames, trials, grid)


def voxels(study: Study) -> pd.DataFrame:
    return pd.DataFrame(study.mean_images(), index=study.trials.index)


def refitted_pca(study: Study) -> Callable[[pd.Index], pd.DataFrame]:
    def features(train: pd.Index) -> pd.DataFrame:
        table = voxels(study)
        scores = PCA(5, random_state=0).fit(table.loc[train]).transform(table)
        return pd.DataFrame(scores, index=table.index)

    return features


KINDS = {
    "voxels": (voxels, {"n_best": 10}, {"n_voxels": 400}),
    "table": (voxels, {}, {}),
    "refitted": (refitted_pca, {}, {}),
    "connectivity": (lambda study: connectivity(cluster_signals(study, 5), study.trials), {}, {"n_frames": 5}),
    "ica": (lambda study: ICA(4, random_state=0).fit(study).transform(study), {}, {}),
    "dictionary": (lambda study: DictionaryLearning(4, random_state=0).fit(study).transform(study), {}, {}),
}


@pytest.mark.parametrize("across", ["trials", "participants"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_labels_give_chance(kind, across):
    make, settings, size = KINDS[kind]
    means = []
    for seed in range(6):
        study = noisy_study(seed, **size)
        rows = quickly(make(study), study.trials, "category", across=across, random_state=seed, **settings)
        means.append(rows["auc"].mean())
    error = np.std(means, ddof=1) / np.sqrt(len(means))
    assert abs(np.mean(means) - 0.5) < 3 * error
    assert error < 0.05


def test_choosing_features_before_the_folds_would_not_pass():
    """The same measure finds the leak that `n_best` avoids, so that passing above means something."""
    means = []
    for seed in range(4):
        study = noisy_study(seed, n_voxels=400)
        table = voxels(study)
        chosen = []
        for _, own in study.trials.groupby("participant"):
            scores = f_classif(table.loc[own.index], own["category"])[0]
            chosen.append(quickly(table.loc[own.index, np.argsort(scores)[-10:]], own, "category"))
        means.append(pd.concat(chosen)["auc"].mean())
    assert min(means) > 0.7


# Averages and intervals


def test_interval_over_participants_is_scipys():
    trials = make_trials(n_participants=5)
    rows = quickly(informative(trials, 1.0), trials, "category")
    table = summarise(rows, ["category"])
    for row in table.itertuples():
        values = rows[rows["category"] == row.category].groupby("participant")["auc"].mean()
        low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
        assert (row.auc, row.ci_low, row.ci_high) == pytest.approx((values.mean(), low, high))
        assert (row.n, row.unit) == (5, "participant")


def test_interval_of_one_participant_is_over_folds():
    trials = make_trials(n_participants=3, n_runs=4)
    rows = quickly(informative(trials, 1.0), trials, "category")
    table = summarise(rows, ["participant", "category"])
    assert len(table) == 9
    row = table[(table["participant"] == "sub-1") & (table["category"] == "a")].iloc[0]
    values = rows[(rows["participant"] == "sub-1") & (rows["category"] == "a")]["auc"]
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert (row["auc"], row["ci_low"], row["ci_high"]) == pytest.approx((values.mean(), low, high))
    assert (row["n"], row["unit"]) == (4, "fold")


def test_summary_of_everything_counts_each_participant_once():
    rows = pd.DataFrame(
        {"participant": ["p", "p", "p", "q"], "category": "a", "fold": [1, 2, 3, 1], "auc": [0.9, 0.9, 0.9, 0.5]}
    )
    table = summarise(rows, [])
    assert table.loc[0, "auc"] == pytest.approx(0.7)
    assert table.loc[0, "n"] == 2


def test_interval_of_one_value_is_missing():
    rows = pd.DataFrame({"participant": ["p"], "category": ["a"], "fold": [1], "auc": [0.8]})
    table = summarise(rows, "category")
    assert table.loc[0, "auc"] == 0.8
    assert table.loc[0, ["ci_low", "ci_high"]].isna().all()


# Condition means


def test_condition_means_are_groupwise_means():
    trials = make_trials()
    features = noise(trials)
    means = condition_means(features.sample(frac=1, random_state=1), trials, "category")
    assert means.index.names == ["participant", "category"]
    own = (trials["participant"] == "sub-2") & (trials["category"] == "b")
    np.testing.assert_allclose(means.loc[("sub-2", "b")], features[own].mean())


def test_classifying_means_finds_a_planted_effect_and_no_other():
    trials = make_trials(n_participants=12, repeats=4)
    means = condition_means(informative(trials, 4.0), trials, "category")
    rows = classify_means(means, ["a", "b"], n_jobs=1)
    assert rows["accuracy"].mean() > 0.95
    assert rows["participant"].tolist() == sorted(trials["participant"].unique())
    assert set(rows["n_test"]) == {2}
    assert summarise(rows, [], measure="accuracy").loc[0, "unit"] == "participant"
    assert 0.2 < classify_means(means, ["b", "c"], n_jobs=1)["accuracy"].mean() < 0.8


# Errors


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda f, t: (f, t.drop(columns="category")), naming("category")),
        (lambda f, t: (f.iloc[1:], t), naming("t0")),
        (lambda f, t: (f.assign(**{"x": "y"}), t), "features"),
        (lambda f, t: (f.drop("t3").reindex(f.index), t), naming("t3")),
        (lambda f, t: (pd.concat([f, f]), t), "features"),
        (lambda f, t: (f, t.set_axis(["same"] * len(t))), naming("same")),
        (lambda f, t: (f, t.assign(category="a")), "category"),
        (lambda f, t: (lambda train: f.to_numpy(), t), "ndarray"),
        (lambda f, t: (lambda train: f.loc[train], t), "trial"),
        (lambda f, t: (f, t.assign(category=t.index)), "category"),
    ],
)
def test_what_cannot_be_decoded_is_named(change, named):
    trials = make_trials(n_participants=2)
    features, trials = change(noise(trials), trials)
    with pytest.raises(StudyError, match=named):
        quickly(features, trials, "category")


@pytest.mark.parametrize(
    "settings", [{"across": "runs"}, {"n_best": 0}, {"n_best": 2.5}], ids=["across", "zero", "broken"]
)
def test_settings_that_mean_nothing_are_refused(settings):
    trials = make_trials(n_participants=2)
    with pytest.raises(ModelError, match=next(iter(settings))):
        quickly(noise(trials), trials, "category", **settings)
    with pytest.raises(ModelError, match="ndarray"):
        quickly(noise(trials).to_numpy(), trials, "category")


def test_summaries_and_means_of_what_is_not_there():
    trials = make_trials()
    rows = quickly(noise(trials), trials, "category")
    with pytest.raises(StudyError, match=naming("group")):
        summarise(rows, ["group"])
    means = condition_means(noise(trials), trials, "category")
    with pytest.raises(StudyError, match=naming("d")):
        classify_means(means, ["a", "d"])
    with pytest.raises(StudyError):
        classify_means(means.loc[["sub-0"]])


def test_features_constant_in_training_are_silent_chance(recwarn):
    trials = make_trials(n_participants=2)
    constant = noise(trials).assign(**{"zero": 0.0})
    quickly(constant, trials, "category", n_best=2)
    rows = quickly(constant * 0, trials, "category")
    np.testing.assert_array_equal(rows["auc"], 0.5)
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning | UserWarning)]
