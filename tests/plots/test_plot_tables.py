"""Weights over time, the bound, and bars that compare methods."""

import copy
import warnings
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers import naming
from matplotlib.axes import Axes

from ntfa import NTFA, Study
from ntfa.errors import ModelError
from ntfa.plots import plot_auc, plot_bound, plot_frames, plot_log_predictive, plot_weights


@pytest.fixture
def auc() -> pd.DataFrame:
    rows = [("NTFA", "face", 0.9), ("voxels", "face", 0.7), ("NTFA", "house", 0.8), ("voxels", "house", 0.45)]
    table = pd.DataFrame(rows, columns=["features", "category", "auc"])
    return table.assign(ci_low=table["auc"] - 0.1, ci_high=table["auc"] + 0.05)


@pytest.fixture
def scores() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": ["zero", "NTFA", "HTFA"],
            "estimator": "collapsed",
            "log_predictive": [-1000.0, -900.0, -950.0],
            "standard_error": [0.0, 2.0, 3.0],
        }
    )


def heights(ax: Axes) -> list[list[float]]:
    return [[bar.get_height() for bar in group] for group in ax.containers if hasattr(group, "patches")]


def whiskers(ax: Axes) -> np.ndarray:
    """Ends of every error bar, [n, 2]."""
    return np.concatenate([np.array(lines.get_segments())[:, :, 1] for lines in ax.collections])


# --- weights


def test_weights_are_lines_in_bands_of_95_percent(brain_model: NTFA, study: Study) -> None:
    trial = study.trials.index[7]
    ax = plot_weights(brain_model, study, trial)
    mean, sd = brain_model.transform(study, by="frame", return_sd=True)
    for i, factor in enumerate((1, 2, 3)):
        own_mean, own_sd = mean.loc[trial][factor].to_numpy(), sd.loc[trial][factor].to_numpy()
        (line,) = [line for line in ax.lines if line.get_label() == f"factor {factor}"]
        np.testing.assert_allclose(line.get_ydata(), own_mean, atol=1e-6)
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 6))
        band = ax.collections[i].get_paths()[0].get_extents()
        np.testing.assert_allclose(band.y1, (own_mean + 1.96 * own_sd).max(), rtol=1e-5)
        np.testing.assert_allclose(band.y0, (own_mean - 1.96 * own_sd).min(), rtol=1e-5)
    row = study.trials.loc[trial]
    assert ax.get_title() == f"{row['participant']}, {row['stimulus']}"


def test_weights_know_the_stimulus_only_if_they_may(brain_model: NTFA, study: Study) -> None:
    trial = study.trials.index[7]
    shown = study.trials["stimulus"].sample(frac=1, random_state=0).to_numpy()
    shuffled = Study(study.coordinates, study.trials.assign(stimulus=shown), study.frames, study.mask_img)

    def drawn(study: Study, **options: bool) -> np.ndarray:
        return np.array([line.get_ydata() for line in plot_weights(brain_model, study, trial, **options).lines[1:]])

    np.testing.assert_array_equal(drawn(study), drawn(shuffled))
    assert (drawn(study, condition_on_stimulus=True) != drawn(study)).any()
    expected = brain_model.transform(study, by="frame", condition_on_stimulus=True).loc[trial]
    np.testing.assert_allclose(drawn(study, condition_on_stimulus=True), expected.to_numpy().T, atol=1e-6)


def test_only_the_factors_asked_for_are_drawn(brain_model: NTFA, study: Study) -> None:
    ax = plot_weights(brain_model, study, study.trials.index[0], factors=[3, 1])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["factor 3", "factor 1"]
    assert ax.get_title().endswith("(2 of 3 factors)")


def test_of_many_factors_the_largest_are_drawn(study: Study) -> None:
    model = NTFA(n_factors=10, max_epochs=2, random_state=0).fit(study)
    trial = study.trials.index[0]
    weights = model.transform(study, by="frame").loc[trial]
    left_out = (weights**2).mean().nsmallest(2).index
    drawn = {text.get_text() for text in plot_weights(model, study, trial).get_legend().get_texts()}
    assert drawn == {f"factor {i}" for i in range(1, 11) if i not in left_out}


def test_a_trial_of_one_frame_is_drawn_factor_by_factor(brain_model: NTFA, study: Study) -> None:
    trials = study.trials.assign(stop=study.trials["start"] + 1)
    short = Study(study.coordinates, trials, study.frames, study.mask_img)
    ax = plot_weights(brain_model, short, trials.index[3])
    mean, sd = brain_model.transform(short, by="frame", return_sd=True)
    ends = mean.iloc[3].to_numpy()[:, None] + 1.96 * sd.iloc[3].to_numpy()[:, None] * [[-1, 1]]
    np.testing.assert_allclose(whiskers(ax), ends, rtol=1e-5)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3"]


def test_trials_and_factors_that_are_not_there_are_named(brain_model: NTFA, study: Study) -> None:
    with pytest.raises(ModelError, match=naming("trial='x'")):
        plot_weights(brain_model, study, "x")
    with pytest.raises(ModelError, match=naming(7)):
        plot_weights(brain_model, study, study.trials.index[0], factors=[1, 7])
    same = Study(study.coordinates, study.trials.set_axis(["a"] * study.n_trials), study.frames)
    with pytest.raises(ModelError, match=naming("trial='a'", 24)):
        plot_weights(brain_model, same, "a")


# --- the bound


def test_a_models_bound_is_drawn_over_steps_or_time(brain_model: NTFA) -> None:
    for against, label in (("step", "step"), ("seconds", "time (s)")):
        ax = plot_bound(brain_model, against=against)
        np.testing.assert_allclose(ax.lines[0].get_xdata(), brain_model.history_[against])
        np.testing.assert_allclose(ax.lines[0].get_ydata(), brain_model.history_["bound"] / brain_model.n_data_)
        assert ax.get_xlabel() == label


def test_a_bound_that_cannot_be_drawn_is_explained(brain_model: NTFA) -> None:
    with pytest.raises(ModelError, match="n_data"):
        plot_bound(brain_model.history_)
    with pytest.raises(ModelError, match="against='hours'"):
        plot_bound(brain_model, against="hours")


# --- areas under the curve


def test_bars_are_the_areas_with_their_intervals_and_chance(auc: pd.DataFrame) -> None:
    ax = plot_auc(auc, title="Decoding")
    assert heights(ax) == [[0.9, 0.8], [0.7, 0.45]]
    expected = auc.sort_values(["features", "category"])[["ci_low", "ci_high"]].to_numpy()
    np.testing.assert_allclose(whiskers(ax), expected)
    assert 0.5 in [line.get_ydata()[0] for line in ax.lines]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["face", "house"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["NTFA", "voxels"]
    assert ax.get_ylim()[0] < auc["ci_low"].min()


def test_intervals_may_be_called_low_and_high_and_be_missing(auc: pd.DataFrame) -> None:
    renamed = auc.rename(columns={"ci_low": "low", "ci_high": "high"})
    renamed.loc[0, ["low", "high"]] = np.nan
    assert len(whiskers(plot_auc(renamed))) == 3


def test_a_category_that_a_method_lacks_is_a_gap(auc: pd.DataFrame) -> None:
    ax = plot_auc(auc.iloc[:3])
    ax.figure.canvas.draw()
    assert np.isnan(heights(ax)[1][1])


def test_names_of_methods_and_categories_are_literal(auc: pd.DataFrame) -> None:
    odd = auc.replace({"NTFA": "_$x_1$", "face": "$\\frac$ 😀" + "y" * 100})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax = plot_auc(odd)
        ax.figure.canvas.draw()
    assert ax.get_legend().get_texts()[0].get_text() == "_$x_1$"
    assert ax.get_xticklabels()[0].get_text().startswith("$\\frac$")


# --- log predictive


def test_scores_are_differences_from_the_null_a_datum(scores: pd.DataFrame) -> None:
    ax = plot_log_predictive(scores, n_data=50)
    np.testing.assert_allclose(heights(ax), [[0, 2, 1]])
    reach = 1.96 * np.array([0, 2, 3]) / 50
    np.testing.assert_allclose(whiskers(ax), np.array([[0], [2], [1]]) + np.outer(reach, [-1, 1]), atol=1e-12)
    assert ax.get_ylabel() == "log predictive over zero\n(nats per observation)"
    assert ax.get_legend() is None
    np.testing.assert_allclose(heights(plot_log_predictive(scores.assign(n_data=[10, 100, 50]))), [[0, 91, 81]])


def test_without_a_null_the_best_is_the_reference(scores: pd.DataFrame) -> None:
    ax = plot_log_predictive(scores.iloc[1:])
    np.testing.assert_allclose(heights(ax), [[0, -50]])
    assert ax.get_ylabel() == "log predictive over NTFA\n(nats)"
    np.testing.assert_allclose(heights(plot_log_predictive(scores, reference="HTFA")), [[-50, 50, 0]])


def test_estimators_are_side_by_side(scores: pd.DataFrame) -> None:
    both = pd.concat([scores, scores.assign(estimator="paper", log_predictive=[-1200.0, -1100.0, -1190.0])])
    ax = plot_log_predictive(both)
    np.testing.assert_allclose(heights(ax), [[0, 100, 50], [0, 100, 10]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["collapsed", "paper"]


def test_a_null_with_an_estimator_of_its_own_is_the_reference_of_all(scores: pd.DataFrame) -> None:
    models = scores.iloc[1:]
    both = pd.concat([models, models.assign(estimator="paper", log_predictive=[-1100.0, -1190.0])])
    table = pd.concat([both, scores.iloc[:1].assign(estimator="exact")])
    table = table.assign(per_datum=table["log_predictive"] / 10)
    ax = plot_log_predictive(table.sort_values("method", kind="stable"))
    np.testing.assert_allclose(np.concatenate(heights(ax)), [5, 10, -19, -10, 0])
    assert ax.get_ylabel() == "log predictive over zero\n(nats per observation)"
    places = [
        [bar.get_x() + bar.get_width() / 2 for bar in group] for group in ax.containers if hasattr(group, "patches")
    ]
    np.testing.assert_allclose(np.concatenate(places), [-0.2, 0.8, 0.2, 1.2, 2])


def test_tables_that_cannot_be_drawn_are_explained(auc: pd.DataFrame, scores: pd.DataFrame) -> None:
    with pytest.raises(ModelError, match=naming("plot_auc", "auc")):
        plot_auc(auc.drop(columns="auc"))
    with pytest.raises(ModelError, match=naming("low", "high")):
        plot_auc(auc.drop(columns=["ci_low", "ci_high"]))
    with pytest.raises(ModelError):
        plot_auc(auc.iloc[:0])
    with pytest.raises(ModelError, match=naming("NTFA", "face")):
        plot_auc(pd.concat([auc, auc.iloc[:1]]))
    with pytest.raises(ModelError, match=naming("zero")):
        plot_log_predictive(pd.concat([scores, scores.iloc[:1]]))
    with pytest.raises(ModelError, match=naming("reference='best'")):
        plot_log_predictive(scores, reference="best")
    with pytest.raises(ModelError, match="standard_error"):
        plot_log_predictive(scores.drop(columns="standard_error"))


def test_everything_draws_where_it_is_told(
    brain_model: NTFA, study: Study, auc: pd.DataFrame, scores: pd.DataFrame
) -> None:
    axes = plt.subplots(1, 4)[1]
    assert plot_auc(auc, ax=axes[0]) is axes[0]
    assert plot_log_predictive(scores, ax=axes[1]) is axes[1]
    assert plot_weights(brain_model, study, study.trials.index[0], ax=axes[2]) is axes[2]
    assert plot_bound(brain_model, ax=axes[3]) is axes[3]
    assert len(plt.get_fignums()) == 1


# --- how much frames counted


@pytest.fixture(scope="module")
def short_fit(study: Study) -> NTFA:
    return NTFA(n_factors=2, max_epochs=1, random_state=0, response="loadings", uncertainty="laplace").fit(study)


def with_frames(model: NTFA, **columns: Any) -> Any:
    spoiled = copy.copy(model)
    spoiled.frames_ = model.frames_.assign(weight=1.0, **columns)
    return spoiled


def test_spoiled_frames_are_marked_and_counted(short_fit: NTFA) -> None:
    model = with_frames(short_fit, run=["run-1", "run-2"] * (len(short_fit.frames_) // 2))
    own = model.frames_["participant"] == "sub-02"
    rows = model.frames_.index[own][[1, 4]]
    model.frames_.loc[rows, "weight"] = [0.1, 0.02]
    (ax,) = plot_frames(model).axes
    assert ax.get_title(loc="left").startswith(f"sub-02: 2 of {own.sum()} frames")
    usual, spoiled = (line.get_xydata() for line in ax.lines[:2])
    np.testing.assert_allclose(spoiled, [[1, 0.1], [4, 0.02]])
    assert len(usual) == own.sum() - 2
    assert len(plot_frames(model, ["sub-01", "sub-02", "sub-03"]).axes) == 3


def test_displacement_is_drawn_where_it_is_known(short_fit: NTFA) -> None:
    displacement = np.linspace(0, 3, len(short_fit.frames_))
    model = with_frames(short_fit, framewise_displacement=displacement)
    _, motion = plot_frames(model, ["sub-01"]).axes
    own = displacement[(model.frames_["participant"] == "sub-01").to_numpy()]
    np.testing.assert_allclose(motion.lines[0].get_ydata(), own)
    assert motion.get_ylim()[1] >= own.max()
    model.frames_["framewise_displacement"] = np.nan
    assert len(plot_frames(model, ["sub-01"]).axes) == 1


def test_frames_that_cannot_be_drawn_are_named(short_fit: NTFA) -> None:
    with pytest.raises(ModelError, match=naming("nobody")):
        plot_frames(short_fit, ["nobody"])
    model = copy.copy(short_fit)
    del model.frames_
    with pytest.raises(ModelError, match=naming("robust")):
        plot_frames(model)
