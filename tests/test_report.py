"""The report's pictures, and what they are made from."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers import naming
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Ellipse

from ntfa import NTFA, Study
from ntfa.analyses.labels import label_table
from ntfa.analyses.separation import separation
from ntfa.plots import plot_bound, plot_embeddings, plot_factors
from ntfa.report import embeddings_figure


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def labels_of(study: Study) -> dict[str, pd.DataFrame]:
    return {kind: label_table(study, kind) for kind in ("participant", "stimulus")}


@pytest.fixture(scope="module")
def model(study: Study) -> NTFA:
    return NTFA(n_factors=3, max_epochs=12, random_state=0).fit(study)


def test_participants_and_stimuli_are_coloured_by_their_groups(model: NTFA, study: Study) -> None:
    participants, stimuli = embeddings_figure(model, labels_of(study)).axes
    assert [text.get_text() for text in participants.get_legend().get_texts()] == ["Group 1", "Group 2", "Group 3"]
    assert [text.get_text() for text in stimuli.get_legend().get_texts()] == ["Task 1", "Task 2"]
    assert (participants.get_title(), stimuli.get_title()) == ("Participants", "Stimuli")


def test_a_study_without_labels_is_shown_without_colours(model: NTFA, study: Study) -> None:
    bare = Study.from_arrays(
        study.frames, study.trials[["participant", "stimulus", "start", "stop"]], study.coordinates
    )
    drawn = embeddings_figure(model, labels_of(bare)).axes
    assert len(drawn) == 2
    assert [axes.get_legend() for axes in drawn] == [None, None]


# --- pictures


def test_embeddings_are_crosses_with_two_ellipses_each(model: NTFA, simulation: tuple) -> None:
    groups = simulation[1].participant_groups
    axes = plot_embeddings(model.participants_, groups, title="People")
    assert isinstance(axes, Axes)
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("People", "z1", "z2")
    assert sorted(text.get_text() for text in axes.texts) == model.participants_.index.tolist()
    drawn = np.concatenate([line.get_xydata() for line in axes.lines])
    expected = model.participants_[["z1", "z2"]].to_numpy()
    assert sorted(map(tuple, drawn)) == sorted(map(tuple, expected))
    ellipses = [patch for patch in axes.patches if isinstance(patch, Ellipse)]
    assert len(ellipses) == 2 * 6
    first = model.participants_.loc["sub-01"]
    own = [e for e in ellipses if e.get_center() == (first["z1"], first["z2"])]
    drawn_axes = sorted(sorted((e.width, e.height)) for e in own)
    covariance = first["z1_z2_cov"] * np.array([[0, 1], [1, 0]]) + np.diag(first[["z1_sd", "z2_sd"]] ** 2)
    axes_lengths = 2 * np.sqrt(np.linalg.eigvalsh(covariance))
    # Half the mass of a two-dimensional normal lies within 1.1774 sd, 95% within 2.4477.
    np.testing.assert_allclose(drawn_axes, np.outer([1.1774, 2.4477], axes_lengths), rtol=1e-4)


def test_groups_have_colours_of_their_own(model: NTFA, simulation: tuple) -> None:
    axes = plot_embeddings(model.participants_, simulation[1].participant_groups)
    assert len({to_hex(line.get_color()) for line in axes.lines}) == 3


@pytest.mark.parametrize(("n", "dim"), [(1, 1), (1, 2), (2, 3), (60, 1), (60, 2)])
def test_few_and_many_embeddings(n: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    names = [f"z{i + 1}" for i in range(dim)]
    index = [f"participant with a rather long name {i}" for i in range(n)]
    table = pd.DataFrame(rng.normal(size=(n, dim)), index=index, columns=names)
    table[[f"{name}_sd" for name in names]] = 0.1
    groups = pd.Series([f"group {i % 20}" for i in range(n)], index=index)
    axes = plot_embeddings(table, groups)
    axes.figure.canvas.draw()
    assert len(axes.texts) == n
    assert len(plot_embeddings(table).texts) == n


def test_any_two_dimensions_can_be_shown() -> None:
    table = pd.DataFrame(
        [[1.0, 2.0, 3.0, 0.1, 0.2, 0.3]], index=["a"], columns=["z1", "z2", "z3", "z1_sd", "z2_sd", "z3_sd"]
    )
    axes = plot_embeddings(table, dimensions=(3, 1))
    assert axes.lines[0].get_xydata().tolist() == [[3.0, 1.0]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("z3", "z1")


def test_a_dimension_that_is_not_there_is_named(model: NTFA) -> None:
    with pytest.raises(ValueError, match=naming(3)):
        plot_embeddings(model.participants_, dimensions=(1, 3))


def test_pictures_are_drawn_where_they_are_told(model: NTFA) -> None:
    _, axes = plt.subplots(1, 5)
    before = plt.get_fignums()
    assert plot_embeddings(model.stimuli_, ax=axes[0]) is axes[0]
    assert plot_bound(model.history_, model.n_data_, ax=axes[1]) is axes[1]
    drawn = plot_factors(model.factors_, model.coordinates_, axes=axes[2:])
    assert [one is other for one, other in zip(drawn, axes[2:], strict=True)] == [True] * 3
    assert plt.get_fignums() == before


def test_the_bound_is_shown_a_datum(model: NTFA) -> None:
    axes = plot_bound(model.history_, model.n_data_)
    assert isinstance(axes, Axes)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), model.history_["bound"] / model.n_data_)
    one = model.history_.head(1)
    plot_bound(one, model.n_data_).figure.canvas.draw()


def test_factors_are_circles_of_their_radius_in_three_views(model: NTFA) -> None:
    views = plot_factors(model.factors_, model.coordinates_)
    assert [axes.get_title() for axes in views] == ["sagittal", "coronal", "axial"]
    mean = model.factors_.groupby("factor")[["x", "y", "z", "width"]].mean()
    for axes, (across, up) in zip(views, ("yz", "xz", "xy"), strict=True):
        circles = [patch for patch in axes.patches if isinstance(patch, Ellipse)]
        np.testing.assert_allclose([circle.get_center() for circle in circles], mean[[across, up]])
        np.testing.assert_allclose([circle.width for circle in circles], 2 * mean["width"])
        np.testing.assert_allclose([circle.height for circle in circles], 2 * mean["width"])


def test_many_factors_are_drawn_without_numbers(model: NTFA) -> None:
    rng = np.random.default_rng(0)
    many = pd.DataFrame(rng.normal(size=(60, 4)) * 20 + 30, columns=["x", "y", "z", "width"]).assign(factor=range(60))
    for axes in plot_factors(many, model.coordinates_):
        assert len(axes.patches) == 60
        assert not axes.texts


# --- what the report is made from


def test_labels_are_those_that_never_change_within_a_participant(study: Study) -> None:
    trials = study.trials.assign(block=range(study.n_trials), scanner="A")
    labelled = Study.from_arrays(study.frames, trials, study.coordinates)
    assert label_table(labelled, "participant").columns.tolist() == ["group"]
    assert label_table(labelled, "stimulus").columns.tolist() == ["category"]
    assert label_table(labelled, "participant").index.tolist() == study.participants


def test_separation_is_one_only_if_groups_are_apart() -> None:
    index = list("abcdef")
    groups = pd.Series(["x", "x", "y", "y", "z", "z"], index=index)
    apart = pd.DataFrame({"z1": [0, 0.1, 5, 5.1, 9, 9.1], "z2": 0.0, "z1_sd": 1.0, "z2_sd": 1.0}, index=index)
    assert separation(apart, groups).agreement == 1
    assert separation(apart, groups).n_groups == 3
    assert separation(apart.sample(frac=1, random_state=0), groups).agreement == 1
    mixed = apart.assign(z1=[0, 5, 0.1, 9, 5.1, 9.1])
    assert separation(mixed, groups).agreement < 0.5
