"""The whole comparison on a very small study: what it writes, and that the numbers are right."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ntfa import NTFA
from ntfa.analyses import images as predicted_images
from ntfa.analyses.decoding import decode
from ntfa.analyses.images import image_correlations
from ntfa.baselines import IndividualLoadings, MeanImage
from ntfa.comparison import PARTS, Settings, compare
from ntfa.comparison.words import comparison_in_words
from ntfa.estimators import MODELS
from ntfa.estimators.base import TopographicModel
from ntfa.simulation import Simulation

METHODS = ["NTFA", "NTFA (paper)", "HTFA", "TFA", "TLSA"]
NULLS = ["zero", "mean image", "stimulus image"]
SIMPLE = ["additive image", "individual loadings"]
AUC_FILES = {"folds.tsv", "by_category.tsv", "by_participant.tsv", "overall.tsv", "auc_trials.png", "auc_trials.svg"}
SUMMARY = ["auc", "ci_low", "ci_high", "n", "unit"]
FILES = {
    "generalisation": {
        "table.tsv",
        "participants.tsv",
        "differences.tsv",
        "log_predictive.png",
        "log_predictive.svg",
    },
    "embeddings": {
        "separation.tsv",
        *(f"{kind}.{suffix}" for kind in ("participants", "stimuli") for suffix in ("tsv", "png", "svg")),
    },
    "predictions": {"correlations.tsv", "summary.tsv", "additive.tsv", "interaction.tsv", "interaction_pairs.tsv"},
    "mvpa": AUC_FILES,
    "connectivity": AUC_FILES,
    "reproducibility": {
        *(f"{name}.tsv" for name in ("halvings", "distances", "errors", "cells", "identification", "left_out")),
        *(f"{name}.{suffix}" for name in ("distances", "identification") for suffix in ("png", "svg")),
    },
}
COLUMNS = {
    "generalisation/table": [
        "method",
        "estimator",
        "log_predictive",
        "standard_error",
        "per_datum",
        "n_parameters",
        "converged",
        "seconds",
        "mse",
        "mse_over_zero",
        "mse_over_oracle",
        "correlation",
    ],
    "generalisation/participants": ["method", "estimator", "participant", "log_predictive"],
    "generalisation/differences": ["estimator", "against", "difference", "ci_low", "ci_high", "n_better", "n"],
    "embeddings/participants": ["participant", "z1", "z2", "z1_sd", "z2_sd", "z1_z2_cov", "method"],
    "embeddings/stimuli": ["stimulus", "z1", "z2", "z1_sd", "z2_sd", "z1_z2_cov", "method"],
    "reproducibility/halvings": ["distances", "halves", "halving", "method", "correlation"],
    "reproducibility/distances": [
        "distances",
        "halves",
        "method",
        "correlation",
        "low",
        "high",
        "n_halvings",
        "difference",
        "n_above",
    ],
    "reproducibility/errors": ["method", "error", "ci_low", "ci_high", "n_participants", "share_reached"],
    "reproducibility/cells": ["among", "method", "participant", "stimulus", "nearer", "first", "n_candidates"],
    "reproducibility/identification": [
        "among",
        "method",
        "nearer",
        "ci_low",
        "ci_high",
        "chance",
        "first",
        "first_ci_low",
        "first_ci_high",
        "first_chance",
        "n_participants",
        "n_cells",
    ],
    "embeddings/separation": [
        "kind",
        "labels",
        "method",
        "n_points",
        "n_groups",
        "silhouette",
        "silhouette_p",
        "accuracy",
        "accuracy_p",
        "chance",
        "left_out",
    ],
    "predictions/correlations": ["participant", "stimulus", *METHODS, "stimulus image", *SIMPLE],
    "predictions/summary": ["method", "correlation", "standard_error", "n_participants", "n_trials"],
    "predictions/interaction": ["method", "component", "share", "ci_low", "ci_high"],
    "predictions/interaction_pairs": ["participant", "stimulus", "size", "sd", "ratio"],
    "predictions/additive": ["against", "error", "error_of_additive", "gain", "ci_low", "ci_high", "n_better", "n"],
    **{
        f"{part}/{name}": columns
        for part in ("mvpa", "connectivity")
        for name, columns in {
            "folds": ["participant", "category", "fold", "scheme", "auc", "n_train", "n_test", "features", "across"],
            "by_category": ["across", "features", "category", *SUMMARY],
            "by_participant": ["across", "features", "participant", "category", *SUMMARY],
            "overall": ["across", "features", *SUMMARY],
        }.items()
    },
}


@pytest.fixture(scope="module")
def finished(tiny: Simulation, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All parts, with pictures (of one held-out trial, for the time they take); do not write into it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predicted_images, "SHOWN", 1)
        return compare(tiny.study, tmp_path_factory.mktemp("compare") / "out", settings, truth=tiny.truth)


def read(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(folder / f"{name}.tsv", sep="\t")


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


# --- files


def test_every_part_writes_its_files(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {*PARTS, "models", "comparison.json"}
    for part, files in FILES.items():
        found = {path.name for path in (finished / part).iterdir()}
        pictures = {name for name in found if name.startswith("trial-")} if part == "predictions" else set()
        assert found - pictures == files | {"part.json"}
        assert len(pictures) == (2 if part == "predictions" else 0)
        for path in (finished / part).glob("*.png"):
            assert path.read_bytes().startswith(b"\x89PNG")
    kept = {(path.parent.name, path.name) for path in (finished / "models").glob("*/*") if path.is_dir()}
    fitted_once = {("all", "ntfa"), ("all", "htfa"), ("all", "tfa"), ("unlabelled", "ntfa")}
    # The paper's networks are fitted apart where the data chose individual loadings.
    assert kept - {("train", "ntfa-paper")} == {("train", name) for name in MODELS} | fitted_once
    assert {path.name for path in (finished / "models").iterdir()} == {"train", "all", "unlabelled", "halves"}, (
        "no checkpoints are left"
    )


@pytest.mark.parametrize("name", COLUMNS)
def test_tables_have_their_columns(finished: Path, name: str) -> None:
    assert list(read(finished, name)) == COLUMNS[name]
    assert len(read(finished, name)) > 0


def test_what_was_compared_is_written_down(finished: Path, settings: Settings) -> None:
    known = json.loads((finished / "comparison.json").read_text())
    assert known["settings"]["n_factors"] == settings.n_factors
    assert not {"device", "n_jobs", "quiet"} & set(known["settings"])
    assert {"ntfa", "torch"} <= set(known["versions"])


# --- numbers


def test_held_out_scores_are_the_models_own(finished: Path, tiny: Simulation, settings: Settings) -> None:
    train, test = tiny.study.split("diagonal")
    table = read(finished, "generalisation/table").set_index(["method", "estimator"])
    pairs = [(method, estimator) for method in METHODS for estimator in ("collapsed", "paper")]
    assert table.index.tolist() == pairs + [(name, "exact") for name in NULLS + SIMPLE]
    for key, kind in MODELS.items():
        model = kind.load(finished / "models" / "train" / key)
        assert model._fitted.n_trials == train.n_trials
        for estimator in ("collapsed", "paper"):
            expected = model.log_predictive(test, estimator, settings.n_samples)
            row = table.loc[key.upper(), estimator]
            assert row["log_predictive"] == pytest.approx(expected.value, rel=1e-10)
            assert row["standard_error"] == pytest.approx(expected.standard_error)
            assert row["per_datum"] == pytest.approx(expected.value / test.n_data)
            assert row["n_parameters"] == model.n_parameters_
    for name, simple in (("zero", MeanImage("nothing")), ("individual loadings", IndividualLoadings())):
        assert table.loc[name, "exact"]["log_predictive"] == pytest.approx(simple.fit(train).score(test))
        assert table.loc[name, "exact"]["n_parameters"] == simple.n_parameters_


def test_image_errors_are_mean_squared_errors(finished: Path, tiny: Simulation) -> None:
    test = tiny.study.split("diagonal")[1]
    observed = test.mean_images()
    table = read(finished, "generalisation/table").drop_duplicates("method").set_index("method")
    pairs = list(zip(test.trials["participant"], test.trials["stimulus"], strict=True))
    ours = NTFA.load(finished / "models" / "train" / "ntfa").predict(pairs)
    oracle = np.mean((observed - np.stack([tiny.truth.mean_image(*pair) for pair in pairs])) ** 2)
    assert table.loc["NTFA", "mse"] == pytest.approx(np.mean((observed - ours) ** 2), rel=1e-5)
    assert table.loc["zero", "mse"] == pytest.approx(np.mean(observed**2), rel=1e-5)
    np.testing.assert_allclose(table["mse_over_zero"], table["mse"] / table.loc["zero", "mse"], rtol=1e-6)
    np.testing.assert_allclose(table["mse_over_oracle"], table["mse"] / oracle, rtol=1e-5)


def test_participants_parts_sum_and_differences_are_paired(finished: Path, tiny: Simulation) -> None:
    test = tiny.study.split("diagonal")[1]
    table, parts = read(finished, "generalisation/table"), read(finished, "generalisation/participants")
    sums = parts.groupby(["method", "estimator"])["log_predictive"].sum()
    for row in table.itertuples():
        assert sums[row.method, row.estimator] == pytest.approx(row.log_predictive, rel=1e-10)
    differences = read(finished, "generalisation/differences").set_index(["estimator", "against"])
    assert len(differences) == 2 * (len(METHODS) - 1 + len(NULLS) + len(SIMPLE))
    n_data = test.trials.groupby("participant").size() * 6 * test.n_voxels
    by_method = parts.set_index(["method", "estimator", "participant"])["log_predictive"].sort_index()
    for estimator, against, other in (("collapsed", "HTFA", "collapsed"), ("paper", "zero", "exact")):
        paired = (by_method["NTFA", estimator] - by_method[against, other]) / n_data
        row = differences.loc[estimator, against]
        low, high = stats.t.interval(0.95, len(paired) - 1, paired.mean(), stats.sem(paired))
        expected = [paired.mean(), low, high, (paired > 0).sum(), len(paired)]
        np.testing.assert_allclose(row.to_numpy(dtype=float), expected, rtol=1e-8)


def test_correlations_are_those_of_the_images(finished: Path, tiny: Simulation) -> None:
    test = tiny.study.split("diagonal")[1]
    table = read(finished, "predictions/correlations")
    assert table["participant"].tolist() == test.trials["participant"].tolist()
    predicted = NTFA.load(finished / "models" / "train" / "ntfa").predict(test.trials)
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(test.mean_images(), predicted, strict=True)]
    np.testing.assert_allclose(table["NTFA"], expected, atol=1e-5)
    summary = read(finished, "predictions/summary").set_index("method")
    own = table.groupby("participant")["NTFA"].mean()
    assert summary.loc["NTFA", "correlation"] == pytest.approx(own.mean())
    assert summary.loc["NTFA", "standard_error"] == pytest.approx(stats.sem(own))
    scores = read(finished, "generalisation/table").drop_duplicates("method").set_index("method")
    for method in (*METHODS, "stimulus image", *SIMPLE):
        assert scores.loc[method, "correlation"] == pytest.approx(summary.loc[method, "correlation"])


def test_an_image_that_is_the_same_everywhere_correlates_with_nothing() -> None:
    images = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    assert image_correlations(images, np.ones((2, 5))).tolist() == [0, 0]


def test_every_method_has_a_point_for_everyone(finished: Path, tiny: Simulation) -> None:
    for kind, column, labels in (
        ("participants", "participant", tiny.study.participants),
        ("stimuli", "stimulus", tiny.study.stimuli),
    ):
        table = read(finished, f"embeddings/{kind}")
        assert table["method"].unique().tolist() == ["NTFA", "PCA", "SRM", "MN-SRM", "individual loadings"]
        for _, own in table.groupby("method"):
            assert own[column].tolist() == labels
        assert table.loc[table["method"] == "NTFA", "z1_sd"].notna().all()
    model = NTFA.load(finished / "models" / "all" / "ntfa")
    np.testing.assert_allclose(table.loc[table["method"] == "NTFA", ["z1", "z2"]], model.stimuli_[["z1", "z2"]])


def test_classification_is_that_of_decode(finished: Path, tiny: Simulation) -> None:
    rows = read(finished, "mvpa/folds")
    study = tiny.study
    images = pd.DataFrame(study.mean_images(), index=study.trials.index)
    expected = decode(images, study.trials, "category", n_best=500, n_jobs=1)
    pd.testing.assert_frame_equal(
        rows[rows["features"] == "voxel"].drop(columns=["features", "across"]).reset_index(drop=True), expected
    )
    weights = NTFA.load(finished / "models" / "unlabelled" / "ntfa").transform(study, condition_on_stimulus=False)
    expected = decode(weights, study.trials, "category", n_jobs=1)
    ours = rows[rows["features"] == "NTFA"].reset_index(drop=True)
    pd.testing.assert_series_equal(ours["auc"], expected["auc"], check_index_type=False)
    assert set(read(finished, "connectivity/overall")["features"]) == {
        "NTFA",
        "HTFA",
        "power regions",
        "voxel clusters",
    }


def test_findings_are_said_in_words(finished: Path) -> None:
    said = comparison_in_words(finished)
    table = read(finished, "generalisation/table").set_index(["method", "estimator"])
    assert f"{table.loc[('NTFA', 'collapsed'), 'n_parameters']:,.0f} parameters" in said[0]
    assert "against HTFA" in said[0]
    assert "against zero" in said[0]
    starts = ("Mean squared error", "Category of the left-out stimulus", "Correlation of", "MVPA", "Connectivity")
    for start in (*starts, "Distances between stimuli", "Error of predicted images", "The image predicted"):
        assert any(sentence.startswith(start) for sentence in said), start


# --- once is enough


def test_a_second_call_runs_nothing(
    finished: Path,
    tiny: Simulation,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        pytest.fail("run again")

    monkeypatch.setattr(TopographicModel, "fit", fail)
    for part in PARTS:
        monkeypatch.setitem(PARTS, part, fail)
    before = times(finished)
    with caplog.at_level(logging.INFO, "ntfa"):
        compare(tiny.study, finished, settings, truth=tiny.truth)
    assert times(finished) == before
    assert [record.getMessage() for record in caplog.records] == [f"{part}: done already" for part in PARTS]
