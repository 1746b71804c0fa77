"""Maps and factors of cortex on inflated surfaces."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from ntfa import NTFA, Study
from ntfa.plots import plot_factors, plot_noise, plot_prediction
from ntfa.plots.surfaces import VIEWS, draw_factors, draw_surfaces, shape_of
from ntfa.simulation.cortex import simulate_cortex
from ntfa.study.surfaces import Surface, Surfaces

SETTINGS = {"random_state": 0, "uncertainty": "mean-field", "embedding_dim": 1, "response": "loadings"}


@pytest.fixture(scope="module")
def study() -> Study:
    return simulate_cortex(3, 4, 1, n_vertices=642)[0]


@pytest.fixture(scope="module")
def model(study: Study) -> NTFA:
    return NTFA(2, max_epochs=5, **SETTINGS).fit(study)


def pixels(figure: Figure) -> np.ndarray:
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)  # type: ignore[attr-defined]


def is_red(picture: np.ndarray) -> np.ndarray:
    return (picture[..., 0] > 100) & (picture[..., 1] < 40) & (picture[..., 2] < 40)


@pytest.mark.parametrize(
    ("side", "towards", "seen"), [("left", -1, 0), ("left", 1, 1), ("right", -1, 2), ("right", 1, 3)]
)
def test_a_patch_is_seen_from_the_side_that_it_is_on(study: Study, side: str, towards: int, seen: int) -> None:
    space = study.mask_img
    surface = space.surfaces.by_side[side]
    x = surface.inflated[:, 0]
    vertex = int(np.argmax(towards * x))
    near = np.linalg.norm(surface.inflated - surface.inflated[vertex], axis=1) < 30
    values = np.zeros(len(space))
    values[space.columns[side][near]] = 1.0
    figure = plt.figure(figsize=(8, 2))
    only_red = ListedColormap([(1.0, 0.0, 0.0)])
    draw_surfaces(figure, (0, 0, 1, 1), values, space, (0, 1), only_red, faint=0.5)
    red = is_red(pixels(figure))
    counts = [part.sum() for part in np.split(red, 4, axis=1)]
    plt.close(figure)
    assert counts[seen] > 20
    assert sum(counts) - counts[seen] < 0.2 * counts[seen]


def test_sulci_are_darker_than_gyri() -> None:
    surface = Surfaces.fsaverage(2562).by_side["left"]
    shade = shape_of(surface).shade
    # Far from the middle of the brain there are gyri, near to it the walls and floors of sulci.
    away = np.linalg.norm(surface.midthickness - surface.midthickness.mean(0), axis=1)
    outer = np.linalg.norm(surface.inflated - surface.inflated.mean(0), axis=1)
    assert np.corrcoef(shade, away / outer)[0, 1] > 0.3
    assert 0.2 < (shade < shade.max()).mean() < 0.8


def test_a_surface_without_an_inflated_one_is_smoothed() -> None:
    whole = Surfaces.fsaverage(2562).by_side["right"]
    points = shape_of(Surface(whole.midthickness, whole.faces)).points
    assert np.isfinite(points).all()
    rough, smooth, template = (
        np.linalg.norm(p[whole.faces[:, 0]] - p[whole.faces[:, 1]], axis=1).std() / np.ptp(p, axis=0).mean()
        for p in (whole.midthickness, points, whole.inflated)
    )
    assert smooth < rough
    assert np.ptp(points, axis=0) == pytest.approx(np.ptp(whole.inflated, axis=0), rel=0.4)
    assert template > 0


def test_narrow_factors_are_painted_over_wide_ones(study: Study) -> None:
    space = study.mask_img
    wide = np.ones(len(space))
    vertex = int(np.argmin(space.surfaces.by_side["left"].inflated[:, 0]))
    points = space.surfaces.by_side["left"].inflated
    narrow = np.zeros(len(space))
    narrow[space.columns["left"]] = np.exp(-(((points - points[vertex]) / 15) ** 2).sum(1))
    figure = plt.figure(figsize=(8, 2))
    draw_factors(figure, (0, 0, 1, 1), np.stack([narrow, wide]), ["red", "blue"], space)
    picture = pixels(figure)
    plt.close(figure)
    red = (picture[..., 0] > 1.5 * picture[..., 2]).sum()
    assert 20 < red < 0.3 * (picture[..., 2] > 1.5 * picture[..., 0]).sum()


def test_pictures_of_a_model_have_its_hemispheres(model: NTFA, study: Study) -> None:
    assert len(plot_factors(model)) == len(VIEWS)
    assert len(plot_factors(model, participants="sub-02", values=[1.0, -1.0])) == len(VIEWS)
    for figure in (plot_prediction(model, study, "sub-01", "stimulus-01"), plot_noise(model, study)):
        assert sum(bool(ax.collections) for ax in figure.axes) >= len(VIEWS)
    plt.close("all")
