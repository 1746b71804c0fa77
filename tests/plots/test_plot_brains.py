"""Factors, images, noise and connections on brains: places, sizes, colour limits; with and without MNI space."""

import io

import matplotlib.pyplot as plt
import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from helpers import naming
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from ntfa import HTFA, NTFA, Study
from ntfa.analyses.connectivity import connectivity
from ntfa.analyses.residuals import residual_sd
from ntfa.errors import ModelError, StudyError
from ntfa.plots import plot_connectivity, plot_connectome, plot_factors, plot_noise, plot_prediction
from ntfa.plots.brains import Space, in_template
from ntfa.plots.connectivity import correlation_matrix
from ntfa.plots.factors import summarise_factors
from ntfa.plots.maps import draw_maps, strongest_behind
from ntfa.plots.style import DIVERGING
from ntfa.simulation.brain import mni_brain

pytestmark = pytest.mark.filterwarnings("error::UserWarning:ntfa", "error::RuntimeWarning")
VIEWS = ("yz", "xz", "xy")


def circles(ax: Axes) -> list[Ellipse]:
    return [patch for patch in ax.patches if isinstance(patch, Ellipse)]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def rendered(figure: Figure, form: str = "png") -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=form)
    return stream.getvalue()


# --- where a study is


def test_the_template_knows_its_own_brain() -> None:
    rng = np.random.default_rng(0)
    inside = rng.uniform((-30, -60, 0), (30, 30, 40), size=(200, 3))
    assert in_template(inside)
    assert not in_template(inside + np.array([0, 0, 90]))
    assert not in_template(inside + np.array([0, 0, 90]), voxel_size=8)
    assert not in_template(inside * 10)


@pytest.mark.parametrize("n_voxels", [300, 3000, 20_000])
def test_simulated_brains_of_any_grain_are_in_mni_space(n_voxels: int) -> None:
    mask, coordinates = mni_brain(n_voxels=n_voxels)
    assert Space(coordinates, mask).is_mni
    assert not Space(coordinates + 60.0, mask).is_mni


def test_a_space_without_a_mask_is_not_mni(study: Study) -> None:
    assert Space(study.coordinates, study.mask_img).is_mni
    assert not Space(study.coordinates).is_mni


# --- factors


@pytest.mark.parametrize("participants", [None, "sub-02", ["sub-01", "sub-03"]])
def test_factors_are_circles_on_the_glass_brain(brain_model: NTFA, participants: list[str] | None) -> None:
    views = plot_factors(brain_model, participants=participants)
    chosen = brain_model.factors_
    if participants is not None:
        chosen = chosen[chosen["participant"].isin(np.atleast_1d(participants))]
    mean = chosen.groupby("factor")[["x", "y", "z", "width"]].mean()
    for ax, (across, up) in zip(views, VIEWS, strict=True):
        assert not ax.axison
        np.testing.assert_allclose([circle.get_center() for circle in circles(ax)], mean[[across, up]])
        np.testing.assert_allclose([circle.width for circle in circles(ax)], 2 * mean["width"])


def test_the_contour_holds_95_percent_of_a_participants_centres(brain_model: NTFA) -> None:
    table = brain_model.factors_[brain_model.factors_["factor"] == 1]
    rng = np.random.default_rng(0)
    _, spread = summarise_factors(brain_model.factors_)
    assert spread is not None
    draws = np.concatenate([rng.normal(row[["x"]], row["x_sd"], size=(4000, 1)) for _, row in table.iterrows()])
    np.testing.assert_allclose(spread.loc[1, "x"], draws.std(), rtol=0.03)
    _, own = summarise_factors(brain_model.factors_, "sub-01")
    assert own is not None
    np.testing.assert_allclose(own.loc[1, "x"], table.iloc[0]["x_sd"], rtol=1e-6)


def test_contours_are_drawn_if_something_is_uncertain(brain_model: NTFA) -> None:
    ax = plot_factors(brain_model.factors_, brain_model.coordinates_)[2]
    (contours,) = [one for one in ax.collections if isinstance(one, PatchCollection)]
    _, spread = summarise_factors(brain_model.factors_)
    assert spread is not None
    box = contours.get_paths()[0].get_extents()
    np.testing.assert_allclose(box.width, 2 * 2.4477 * spread.loc[1, "x"], rtol=1e-3)
    np.testing.assert_allclose(box.height, 2 * 2.4477 * spread.loc[1, "y"], rtol=1e-3)
    alone = pd.DataFrame({"factor": [1, 2], "x": 0.0, "y": [0.0, 9.0], "z": 0.0, "width": 5.0})
    assert summarise_factors(alone)[1] is None


@pytest.mark.parametrize("on_glass", [True, False])
def test_values_colour_factors_around_zero(brain_model: NTFA, bare_model: NTFA, on_glass: bool) -> None:
    model = brain_model if on_glass else bare_model
    values = pd.Series([1.0, -2.0, 0.5], index=[1, 2, 3])
    ax = plot_factors(model, values=values, values_name="contrast")[0]
    drawn = {circle.get_center(): circle.get_facecolor()[:3] for circle in circles(ax)}
    mean = model.factors_.groupby("factor")[["y", "z"]].mean()
    for factor, value in values.items():
        expected = DIVERGING((value + 2) / 4)[:3]
        np.testing.assert_allclose(drawn[tuple(mean.loc[factor])], expected)
    assert "contrast" in [other.get_ylabel() for other in ax.figure.axes]


def test_many_wide_factors_are_shrunk_and_it_is_said() -> None:
    rng = np.random.default_rng(0)
    grid = np.argwhere(np.ones((10, 12, 10))) * 14.0
    table = pd.DataFrame(rng.uniform(20, 120, size=(60, 3)), columns=list("xyz")).assign(factor=range(60), width=30.0)
    ax = plot_factors(table, grid)[2]
    ratio = 60 / circles(ax)[0].width
    assert ratio > 1.5
    np.testing.assert_allclose(ratio, round(ratio))
    np.testing.assert_allclose([circle.width for circle in circles(ax)], 60 / ratio)
    ax.figure.canvas.draw()
    (placer,) = [child for child in ax.get_children() if type(child).__name__ == "LabelPlacer"]
    assert placer._note.get_text() == f"circles at 1/{round(ratio)} of the factors' radius"


def test_a_model_without_images_is_drawn_on_its_shadow(bare_model: NTFA) -> None:
    views = plot_factors(bare_model)
    assert [ax.get_title() for ax in views] == ["sagittal", "coronal", "axial"]
    assert len(circles(views[0])) == 3


def test_factors_that_cannot_be_drawn_are_explained(brain_model: NTFA) -> None:
    with pytest.raises(ModelError, match="nobody"):
        plot_factors(brain_model, participants="nobody")
    with pytest.raises(ModelError, match="coordinates"):
        plot_factors(brain_model.factors_)
    with pytest.raises(ModelError, match=naming("values", 3)):
        plot_factors(brain_model, values=[1.0, 2.0])
    with pytest.raises(ModelError, match="values"):
        plot_factors(brain_model, values=pd.Series([1.0, 2.0], index=[1, 2]))


# --- images


def colour_limits(figure: Figure) -> set[tuple[float, float]]:
    """Limits of everything drawn by colour, but for backgrounds."""
    drawn = [image for ax in figure.axes for image in ax.images if image.get_cmap().name != "gray"]
    return {tuple(np.round(image.get_clim(), 6)) for image in drawn}


@pytest.mark.parametrize("view", ["glass", "slices"])
@pytest.mark.parametrize("bare", [False, True])
def test_observed_and_predicted_share_a_symmetric_scale(
    brain_model: NTFA, bare_model: NTFA, study: Study, bare_study: Study, view: str, bare: bool
) -> None:
    model, own = (bare_model, bare_study) if bare else (brain_model, study)
    figure = plot_prediction(model, own, "sub-01", own.stimuli[0], view=view)
    limits = colour_limits(figure)
    assert len(limits) == 1
    ((low, high),) = limits
    observed = own.select(participants="sub-01", stimuli=own.stimuli[0]).mean_images()[0]
    predicted = model.predict([("sub-01", own.stimuli[0])])[0]
    assert low == -high
    np.testing.assert_allclose(high, np.percentile(np.abs([observed, predicted]), 99.5), rtol=1e-5)
    assert texts(figure)[0] == f"sub-01, {own.stimuli[0]}"
    assert texts(figure)[2] == "predicted"
    assert len(rendered(figure)) > 5000


def test_the_observed_image_is_the_mean_of_all_frames(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = study.trials[study.trials["participant"] == "sub-01"].iloc[:2].assign(stimulus="same")
    trials["stop"] = trials["start"] + [1, 4]
    own = Study(study.coordinates, trials, {"sub-01": study.frames["sub-01"]}, study.mask_img)
    model = NTFA(n_factors=1, max_epochs=1, random_state=0).fit(own)
    kept: dict[str, np.ndarray] = {}
    monkeypatch.setattr("ntfa.plots.images.draw_maps", lambda maps, *rest, **options: kept.update(maps))
    plot_prediction(model, own, "sub-01", "same")
    frames = np.concatenate([own.frames["sub-01"][a:b] for a, b in zip(trials["start"], trials["stop"], strict=True)])
    np.testing.assert_allclose(kept["observed (mean of 5 frames)"], frames.mean(0), rtol=1e-5, atol=1e-6)


def test_images_can_be_drawn_into_a_figure_without_pyplot(brain_model: NTFA, study: Study) -> None:
    figure = Figure(figsize=(8, 5))
    assert plot_prediction(brain_model, study, "sub-01", study.stimuli[0], figure=figure) is figure
    assert rendered(figure, "pdf").startswith(b"%PDF")
    assert not plt.get_fignums()


def test_wrong_images_are_explained(brain_model: NTFA, study: Study) -> None:
    with pytest.raises(ModelError, match=naming("view='flat'", "'glass'", "'slices'")):
        plot_prediction(brain_model, study, "sub-01", study.stimuli[0], view="flat")
    with pytest.raises(StudyError, match="nobody"):
        plot_prediction(brain_model, study, "nobody", study.stimuli[0])


def test_slices_outside_mni_are_drawn_over_the_mask(study: Study) -> None:
    moved = nib.Nifti1Image(np.asarray(study.mask_img.dataobj).astype(np.uint8), study.mask_img.affine.copy())
    moved.affine[:3, 3] += 500
    space = Space(study.coordinates + 500, moved)
    assert not space.is_mni
    values = np.random.default_rng(0).normal(size=study.n_voxels)
    for view in ("slices", "glass"):
        figure = draw_maps({"a": values}, space, view=view, scale=(-2, 2), cmap=DIVERGING, unit="u")
        assert colour_limits(figure) == {(-2.0, 2.0)}
        assert len(rendered(figure)) > 5000


def test_a_projection_shows_the_strongest_value_behind_each_place() -> None:
    places = np.array([[0.0, 0.0], [0.0, 0.0], [4.0, 8.0], [4.0, 0.0]])
    grid, extent = strongest_behind(places, np.array([1.0, -3.0, 2.0, 0.5]), 4.0)
    assert grid.shape == (2, 3)
    assert grid[0, 0] == -3
    assert grid[1, 2] == 2
    assert grid.mask.sum() == 3
    assert extent == (-2, 6, -2, 10)


# --- noise


@pytest.mark.parametrize("view", ["slices", "glass"])
def test_the_noise_map_spans_the_residual_sds(brain_model: NTFA, study: Study, view: str) -> None:
    figure = plot_noise(brain_model, study, view=view)
    sd = residual_sd(brain_model, study)
    ((low, high),) = colour_limits(figure)
    np.testing.assert_allclose((low, high), np.percentile(sd, [1, 99]), rtol=1e-4)
    assert f"{brain_model.noise_:.3g}" in texts(figure)[0]
    assert len(rendered(figure)) > 5000


def test_noise_without_images(bare_model: NTFA, bare_study: Study) -> None:
    assert len(rendered(plot_noise(bare_model, bare_study))) > 3000


# --- connections


@pytest.fixture
def matrix() -> np.ndarray:
    return np.array([[1.0, 0.5, -0.2], [0.5, 1.0, 0.1], [-0.2, 0.1, 1.0]])


def test_the_matrix_is_drawn_without_its_diagonal(matrix: np.ndarray) -> None:
    ax = plot_connectivity(matrix, title="$x$")
    (image,) = ax.images
    drawn = image.get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(drawn), np.eye(3, dtype=bool))
    np.testing.assert_allclose(drawn[0, 1:], [0.5, -0.2])
    assert image.get_clim() == (-0.5, 0.5)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2", "3"]


def test_a_model_is_correlated_within_trials(brain_model: NTFA, study: Study) -> None:
    weights = brain_model.transform(study, by="frame", condition_on_stimulus=False)
    found = correlation_matrix(brain_model, study)
    shown = study.trials["stimulus"].sample(frac=1, random_state=0).to_numpy()
    shuffled = Study(study.coordinates, study.trials.assign(stimulus=shown), study.frames, study.mask_img)
    pd.testing.assert_frame_equal(correlation_matrix(brain_model, shuffled), found)
    z = [np.arctanh(np.corrcoef(rows.to_numpy().T)[0, 2]) for _, rows in weights.groupby(level=0)]
    np.testing.assert_allclose(found.loc[1, 3], np.tanh(np.mean(z)), rtol=1e-4)
    np.testing.assert_allclose(found, found.T)
    pairs = connectivity(weights, study.trials)
    pd.testing.assert_frame_equal(correlation_matrix(pairs), found)


def test_the_strongest_connections_are_drawn(bare_model: NTFA, matrix: np.ndarray) -> None:
    figure = plot_connectome(matrix, bare_model, n_lines=2, title="Rest")
    assert texts(figure)[0] == "Rest: the strongest 2 of 3 connections"
    centres = bare_model.factors_.groupby("factor")[["x", "y"]].mean()
    lines = [line for line in figure.axes[2].lines if len(line.get_xdata()) == 2 and line.get_linestyle() == "-"]
    ends = {tuple(np.round(line.get_xydata().ravel(), 3)) for line in lines}
    expected = {tuple(np.round(centres.loc[[1, other]].to_numpy().ravel(), 3)) for other in (2, 3)}
    assert ends == expected
    widths = {line.get_linewidth() for line in lines}
    np.testing.assert_allclose(max(widths) / min(widths), 2.5)


@pytest.mark.parametrize("n_lines", [None, 0, 1])
def test_connections_on_the_glass_brain(brain_model: NTFA, matrix: np.ndarray, n_lines: int | None) -> None:
    figure = plot_connectome(matrix, brain_model, n_lines=n_lines)
    expected = "all 3 connections" if n_lines is None else f"the strongest {n_lines} of 3 connections"
    assert texts(figure)[0] == expected
    assert len(rendered(figure, "svg")) > 5000


def test_matrices_that_are_none_are_explained(brain_model: NTFA, matrix: np.ndarray) -> None:
    with pytest.raises(ModelError, match=naming("(2, 3)")):
        plot_connectivity(np.ones((2, 3)))
    with pytest.raises(ModelError, match=naming("(3, 3)")):
        plot_connectivity(np.triu(matrix))
    with pytest.raises(ModelError, match="study="):
        plot_connectivity(brain_model)
    with pytest.raises(ModelError, match=naming(2, 3)):
        plot_connectome(matrix[:2, :2], brain_model)


def test_a_hundred_factors_are_named_by_tens() -> None:
    ax = plot_connectivity(np.eye(100))
    assert [label.get_text() for label in ax.get_xticklabels()] == [str(i) for i in range(10, 101, 10)]
    plot_connectivity(np.eye(1)).figure.canvas.draw()


def test_blocks_of_trials_have_pictures_too(study: Study) -> None:
    model = HTFA(n_factors=2, max_epochs=2, random_state=0, block="trial").fit(study)
    mean = model.factors_.groupby("factor")[["x", "y"]].mean()
    np.testing.assert_allclose([circle.get_center() for circle in circles(plot_factors(model)[2])], mean)
