"""Embeddings: geometry of the ellipses, directions, colours, any size."""

import warnings
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers import naming
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from scipy import stats

from ntfa import HTFA, NTFA, Study
from ntfa.errors import ModelError
from ntfa.plots import COLOURS, plot_embeddings
from ntfa.plots.colouring import MOST_GROUPS, colouring, is_continuous, label_column, natural
from ntfa.plots.flattening import ellipses, flatten
from ntfa.plots.style import MISSING, SEQUENTIAL

Table = Callable[..., pd.DataFrame]


def ellipses_of(ax: Axes) -> list[Ellipse]:
    return [patch for patch in ax.patches if isinstance(patch, Ellipse)]


def groups_of(table: pd.DataFrame, n_groups: int) -> pd.Series:
    return pd.Series([f"group {i % n_groups + 1}" for i in range(len(table))], index=table.index, name="kind")


# --- geometry


@pytest.mark.parametrize("covariance", [[[2.0, 0.9], [0.9, 0.5]], [[0.5, -0.3], [-0.3, 2.0]], [[1.0, 0.0], [0.0, 0.1]]])
def test_ellipses_hold_half_and_95_percent_of_the_posterior(covariance: list[list[float]]) -> None:
    mean, matrix = np.array([1.0, -2.0]), np.array(covariance)
    samples = np.random.default_rng(0).multivariate_normal(mean, matrix, size=40_000)
    for ellipse, share in zip(ellipses(mean, matrix), (0.5, 0.95), strict=True):
        # The patch's own transform takes its unit circle to the plane, angle and all.
        inside = ellipse.get_path().contains_points(ellipse.get_patch_transform().inverted().transform(samples))
        assert abs(inside.mean() - share) < 0.012
        distance = stats.chi2.ppf(share, 2)
        edge = ellipse.get_patch_transform().transform(ellipse.get_path().vertices[[0, 3, 6, 9]]) - mean
        np.testing.assert_allclose((edge @ np.linalg.inv(matrix) * edge).sum(1), distance, rtol=2e-3)


def test_without_covariances_ellipses_are_level(table: Table) -> None:
    one = table(5)
    drawn = ellipses_of(plot_embeddings(one))
    assert len(drawn) == 10
    assert {ellipse.angle for ellipse in drawn} == {0.0}
    largest = [e for e in drawn if e.get_center() == (one["z1"].iloc[2], one["z2"].iloc[2])]
    height = max(e.height for e in largest)
    np.testing.assert_allclose(height, 2 * one["z2_sd"].iloc[2] * np.sqrt(stats.chi2.ppf(0.95, 2)))


def test_covariance_columns_turn_the_ellipses(table: Table) -> None:
    one = table(4).assign(z1_sd=0.5, z2_sd=0.5, z1_z2_cov=0.2)
    drawn = ellipses_of(plot_embeddings(one))
    assert len(drawn) == 2 * 4
    for ellipse in drawn:
        long = ellipse.angle + (90 if ellipse.height > ellipse.width else 0)
        np.testing.assert_allclose(long % 180, 45)
        # The eigenvalues of [[.25, .2], [.2, .25]] are .45 and .05.
        np.testing.assert_allclose(max(ellipse.width, ellipse.height) / min(ellipse.width, ellipse.height), 3)


def test_of_many_dimensions_the_principal_ones_are_shown(table: Table) -> None:
    one = table(50, dim=5)
    one["z4"] *= 10
    one["z2"] *= 4
    flat = flatten(one, None)
    means = one[[f"z{i}" for i in range(1, 6)]]
    values, vectors = np.linalg.eigh(np.cov(means.T, ddof=0))
    shares = values[::-1] / values.sum()
    assert flat.names == tuple(f"direction {i + 1} ({shares[i]:.0%} of variance)" for i in (0, 1))
    np.testing.assert_allclose(np.abs(flat.means), np.abs(means.to_numpy() @ vectors[:, [-1, -2]]), rtol=1e-6)
    sds = one[[f"z{i}_sd" for i in range(1, 6)]].to_numpy()
    expected = [vectors[:, [-1, -2]].T @ np.diag(sd**2) @ vectors[:, [-1, -2]] for sd in sds]
    assert flat.covariances is not None
    np.testing.assert_allclose(np.abs(flat.covariances), np.abs(expected), rtol=1e-6, atol=1e-12)


def test_all_covariances_count_in_a_turned_view(table: Table) -> None:
    one = table(10, dim=3).assign(z1_sd=1.0, z2_sd=1.0, z3_sd=1.0, z1_z3_cov=0.5, z2_z3_cov=-0.25)
    flat = flatten(one, (3, 2))
    assert flat.covariances is not None
    np.testing.assert_allclose(flat.covariances[0], [[1, -0.25], [-0.25, 1]])
    np.testing.assert_allclose(flatten(one, (1, 3)).covariances[0], [[1, 0.5], [0.5, 1]])  # type: ignore[index]


def test_one_dimension_is_shown_against_its_rank_with_intervals(table: Table) -> None:
    one = table(6, dim=1)
    ax = plot_embeddings(one)
    points = ax.lines[0].get_xydata()
    np.testing.assert_array_equal(points[:, 0], one["z1"])
    np.testing.assert_array_equal(points[:, 1], one["z1"].rank())
    for lines, share in zip(ax.collections, (0.5, 0.95), strict=True):
        ends = np.array(lines.get_segments())[:, :, 0]
        expected = one[["z1"]].to_numpy() + stats.norm.ppf(0.5 + share / 2) * one[["z1_sd"]].to_numpy() * [[-1, 1]]
        np.testing.assert_allclose(ends, expected, rtol=1e-5)
    assert ax.get_ylabel() == "rank"


def test_axes_are_equal_in_the_plane(table: Table) -> None:
    ax = plot_embeddings(table(5))
    assert ax.get_aspect() == 1.0


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_point_estimates_are_dots_without_ellipses(table: Table, dim: int) -> None:
    ax = plot_embeddings(table(5, dim=dim, sd=0))
    assert not ellipses_of(ax)
    assert not ax.collections
    assert ax.lines[0].get_marker() == "o"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("n", "dim"), [(1, 1), (1, 2), (1, 3), (1, 5), (2, 3), (200, 2), (200, 1), (500, 2), (60, 5)])
def test_any_size_comes_out(table: Table, n: int, dim: int) -> None:
    ax = plot_embeddings(table(n, dim), groups_of(table(n), 3), title="All")
    ax.figure.canvas.draw()
    assert sum(len(line.get_xydata()) for line in ax.lines) == n
    assert ax.get_title() == "All"


def test_embeddings_all_in_one_place_come_out(table: Table) -> None:
    ax = plot_embeddings(table(4, dim=3).assign(z1=0.0, z2=0.0, z3=0.0))
    ax.figure.canvas.draw()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("z1", "z2")


# --- colours


def test_groups_have_a_colour_and_a_legend_entry_each(table: Table) -> None:
    one = table(9)
    groups = groups_of(one, 3)
    ax = plot_embeddings(one, groups)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["group 1", "group 2", "group 3"]
    assert ax.get_legend().get_title().get_text() == "kind"
    for i, line in enumerate(ax.lines):
        assert to_hex(line.get_color()).upper() == COLOURS[i]
        own = one[groups == f"group {i + 1}"]
        np.testing.assert_array_equal(line.get_xydata(), own[["z1", "z2"]])


def test_many_groups_differ_in_colour_or_mark(table: Table) -> None:
    ax = plot_embeddings(table(48), groups_of(table(48), MOST_GROUPS))
    assert len({(to_hex(line.get_color()), line.get_marker()) for line in ax.lines}) == MOST_GROUPS == 24
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == [f"group {i}" for i in range(1, 25)]


def test_more_groups_than_can_be_told_apart_are_said_not_shown(table: Table) -> None:
    coloured = colouring(table(60).index, groups_of(table(60), 25))
    assert coloured.note == "25 groups, too many to tell apart by colour"
    assert len(set(coloured.rows)) == 1
    assert plot_embeddings(table(60), groups_of(table(60), 25)).get_legend() is None


def test_numbers_are_coloured_on_a_scale(table: Table) -> None:
    one = table(20)
    values = pd.Series(np.linspace(-1, 3, 20), index=one.index, name="rating")
    values.iloc[5] = np.nan
    ax = plot_embeddings(one, values)
    coloured = {tuple(line.get_xydata()[0]): to_hex(line.get_color()) for line in ax.lines}
    for label, value in values.items():
        place = tuple(one.loc[label, ["z1", "z2"]])
        expected = to_hex(MISSING) if np.isnan(value) else to_hex(SEQUENTIAL((value + 1) / 4))
        assert coloured[place] == expected
    bars = [other for other in ax.figure.axes if other is not ax]
    assert [bar.get_ylabel() for bar in bars] == ["rating"]
    assert ax.get_legend() is None


@pytest.mark.parametrize(
    ("values", "continuous"),
    [
        ([1, 2, 3], False),
        (list(range(9)), True),
        ([0.5, 1.0, 2.0], True),
        ([1.0, np.nan, 2.0], False),
        (["1", "2"], False),
        ([True, False], False),
        ([np.nan, np.nan], False),
    ],
)
def test_what_counts_as_a_scale(values: list, continuous: bool) -> None:
    assert is_continuous(pd.Series(values)) is continuous


def test_categories_keep_their_order_and_missing_is_grey(table: Table) -> None:
    one = table(4)
    order = pd.CategoricalDtype(["low", "middle", "high"], ordered=True)
    groups = pd.Series(["high", "low", None, "low"], index=one.index, dtype=order)
    ax = plot_embeddings(one, groups)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["low", "high", "missing"]
    assert to_hex(MISSING) in {to_hex(line.get_color()) for line in ax.lines}


def test_labels_that_groups_do_not_know_are_missing(table: Table) -> None:
    one = table(4)
    coloured = colouring(one.index, groups_of(one, 2).iloc[:3])
    assert [key.name for key in coloured.rows] == ["group 1", "group 2", "group 1", "missing"]


def test_group_names_cannot_hide_or_become_mathematics(table: Table) -> None:
    one = table(4)
    groups = pd.Series(["_hidden", "$\\frac$", "x" * 200, "<b>"], index=one.index, name="$a_b$")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax = plot_embeddings(one, groups, title="$\\bad$")
        ax.figure.canvas.draw()
    names = {text.get_text() for text in ax.get_legend().get_texts()}
    assert names == {"_hidden", "$\\frac$", "x" * 23 + "…", "<b>"}


def test_natural_order() -> None:
    assert sorted(["run 10", "run 2", "10", "9", "a"], key=natural) == ["9", "10", "a", "run 2", "run 10"]


# --- models and columns


def test_a_model_is_drawn_by_kind(brain_model: NTFA) -> None:
    for kind, own in (("participant", brain_model.participants_), ("stimulus", brain_model.stimuli_)):
        ax = plot_embeddings(brain_model, kind=kind)
        drawn = ax.lines[0].get_xydata()
        expected = own[["z1", "z2"]] if "z2" in own else own[["z1"]].assign(rank=own["z1"].rank())
        np.testing.assert_allclose(drawn, expected)


def test_a_column_of_the_trials_colours(brain_model: NTFA, study: Study) -> None:
    ax = plot_embeddings(brain_model, "group", study=study)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["Group 1", "Group 2", "Group 3"]


def test_ratings_that_differ_between_trials_are_averaged(study: Study) -> None:
    trials = study.trials.assign(rating=np.arange(study.n_trials, dtype=float))
    rated = Study(study.coordinates, trials, study.frames)
    expected = trials.groupby("stimulus")["rating"].mean()
    pd.testing.assert_series_equal(label_column(rated, "stimulus", "rating"), expected)


def test_wrong_requests_are_explained(brain_model: NTFA, study: Study, table: Table) -> None:
    with pytest.raises(ModelError, match=naming("kind='people'")):
        plot_embeddings(brain_model, kind="people")
    with pytest.raises(ModelError, match="study="):
        plot_embeddings(brain_model, "group")
    with pytest.raises(ModelError, match=naming("'age'", "'group'")):
        plot_embeddings(brain_model, "age", study=study)
    with pytest.raises(ModelError, match=naming("'stimulus'", "participant")):
        label_column(study, "participant", "stimulus")
    with pytest.raises(ModelError, match="nobody"):
        plot_embeddings(table(3), pd.Series(["a"], index=["nobody"]))
    with pytest.raises(ModelError, match="groups"):
        plot_embeddings(table(3), pd.Series(["a", "b"], index=["sub-0", "sub-0"]))
    with pytest.raises(ModelError, match=naming(3, 2)):
        plot_embeddings(table(3), dimensions=(1, 3))
    with pytest.raises(ModelError, match="dimensions"):
        plot_embeddings(table(3), dimensions=(1,))
    with pytest.raises(ModelError, match="z1"):
        plot_embeddings(pd.DataFrame({"x": [1.0]}))
    with pytest.raises(ModelError, match=naming("HTFA", "participants_")):
        plot_embeddings(HTFA())


def test_it_draws_where_it_is_told_without_pyplot(table: Table) -> None:
    ax = Figure().subplots()
    assert plot_embeddings(table(5), ax=ax) is ax
    assert not plt.get_fignums()
    plot_embeddings(table(5), groups_of(table(5), 2), ax=Figure(layout="constrained").subplots()).figure.canvas.draw()
    assert not plt.get_fignums()
    bare = plot_embeddings(table(5), labels=False)
    assert not bare.texts


def test_newcomers_have_colours_and_all_others_are_grey(table: Table) -> None:
    one = table(5).assign(added=[False, False, False, True, True], outside=[False] * 4 + [True])
    one.attrs["session_of"] = {one.index[3]: one.index[0]}
    ax = plot_embeddings(one)
    colours = {tuple(xy): line.get_color() for line in ax.lines for xy in line.get_xydata() if line.get_ls() == "None"}
    of_rows = [colours[tuple(xy)] for xy in one[["z1", "z2"]].to_numpy()]
    assert of_rows[0] == of_rows[1] == of_rows[2] == MISSING
    assert len({*of_rows}) == 3
    joined = [line.get_xydata() for line in ax.lines if line.get_ls() == "-"]
    np.testing.assert_array_equal(joined, [one[["z1", "z2"]].iloc[[0, 3]].to_numpy()])
