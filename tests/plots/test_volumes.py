"""Glass brains and slices are nilearn's, but for the joints of lines and the rounding of greys."""

from typing import Any

import matplotlib.pyplot as plt
import nibabel
import numpy as np
import pytest
from matplotlib.figure import Figure
from nilearn.image import new_img_like
from nilearn.masking import unmask
from nilearn.plotting import plot_glass_brain, plot_stat_map

from ntfa.plots.volumes import draw_glass, draw_slices
from ntfa.study import mni152

PLACE = (0.01, 0.02, 0.86, 0.9)
SIGNED, POSITIVE = ((-1.0, 1.0), 0.05), ((0.1, 0.8), 1e-9)


def mask(kind: str) -> Any:
    """The brain at 4 mm: whole, in part, and in images whose axes run otherwise."""
    inside, affine = mni152.brain(4).copy(), mni152.affine(4)
    if kind == "part":
        inside[:20] = False
    elif kind == "flipped":
        inside, affine = inside[::-1], affine @ [[-1, 0, 0, len(inside) - 1], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    elif kind == "swapped":
        inside, affine = inside.transpose(1, 0, 2), affine[:, [1, 0, 2, 3]]
    elif kind == "askew":
        affine = [[0.995, -0.0998, 0, 0], [0.0998, 0.995, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]] @ affine
    return nibabel.Nifti1Image(inside.astype(np.uint8), affine)


def values_at(mask_img: Any) -> tuple[np.ndarray, tuple[float, ...]]:
    """A smooth pattern with some noise, and a place inside."""
    places = np.argwhere(np.asarray(mask_img.dataobj)) @ mask_img.affine[:3, :3].T + mask_img.affine[:3, 3]
    waves = np.sin(places[:, 0] / 15) * np.cos(places[:, 1] / 20 + places[:, 2] / 30)
    noise = np.random.default_rng(0).normal(size=len(places))
    return (waves + 0.1 * noise).astype(np.float32), tuple(places[len(places) // 2].tolist())


def pixels(figure: Figure) -> np.ndarray:
    figure.canvas.draw()
    drawn = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)  # type: ignore[attr-defined]
    plt.close(figure)
    return drawn


def options(figure: Figure, scale: Any, threshold: float) -> dict[str, Any]:
    drawn = {"figure": figure, "axes": PLACE, "colorbar": False, "cmap": "RdBu_r"}
    return {**drawn, "vmin": scale[0], "vmax": scale[1], "threshold": threshold}


@pytest.mark.parametrize("kind", ["whole", "part", "flipped", "swapped", "askew"])
def test_a_glass_brain_is_nilearns(kind: str) -> None:
    mask_img, (scale, threshold) = mask(kind), SIGNED
    values, _ = values_at(mask_img)
    theirs, ours = plt.figure(figsize=(8.5, 2.65)), plt.figure(figsize=(8.5, 2.65))
    image = unmask(values, mask_img)
    plot_glass_brain(image, plot_abs=False, alpha=0.9, **options(theirs, scale, threshold))
    draw_glass(ours, PLACE, values, mask_img, scale=scale, cmap="RdBu_r", threshold=threshold, alpha=0.9)
    apart = np.abs(pixels(theirs) - pixels(ours)).max(-1)
    assert (apart > 64).mean() < 0.0003
    assert apart.mean() < 0.25


def test_an_empty_glass_brain_is_nilearns() -> None:
    theirs, ours = plt.figure(figsize=(9, 3.2)), plt.figure(figsize=(9, 3.2))
    plot_glass_brain(None, figure=theirs, axes=PLACE, display_mode="ortho", colorbar=False)
    draw_glass(ours, PLACE)
    apart = np.abs(pixels(theirs) - pixels(ours)).max(-1)
    assert (apart > 64).mean() < 0.0003
    assert apart.mean() < 0.25


@pytest.mark.parametrize("kind", ["whole", "part", "flipped", "swapped", "askew"])
@pytest.mark.parametrize(("scale", "threshold"), [SIGNED, POSITIVE])
@pytest.mark.parametrize("is_mni", [True, False])
def test_slices_are_nilearns(kind: str, scale: tuple[float, float], threshold: float, is_mni: bool) -> None:
    mask_img = mask(kind)
    values, cuts = values_at(mask_img)
    theirs, ours = plt.figure(figsize=(8.5, 2.65)), plt.figure(figsize=(8.5, 2.65))
    ground = {} if is_mni else {"bg_img": new_img_like(mask_img, np.asarray(mask_img.dataobj, dtype=np.float32))}
    drawn = {"cut_coords": cuts, "draw_cross": False, "black_bg": False, **ground}
    plot_stat_map(unmask(values, mask_img), **drawn, **options(theirs, scale, threshold))
    draw_slices(ours, PLACE, values, mask_img, cuts, is_mni=is_mni, scale=scale, cmap="RdBu_r", threshold=threshold)
    assert np.abs(pixels(theirs) - pixels(ours)).max() <= (3 if is_mni else 0)


def test_nothing_to_see_is_an_empty_glass_brain() -> None:
    mask_img = mask("whole")
    values, _ = values_at(mask_img)
    some, none = plt.figure(figsize=(9, 3.2)), plt.figure(figsize=(9, 3.2))
    draw_glass(some, PLACE, 0 * values, mask_img, scale=(-1, 1), threshold=0.05)
    draw_glass(none, PLACE)
    bounds = [[ax.axis() for ax in figure.axes] for figure in (some, none)]
    assert len(bounds[0]) == 3
    for one, other in zip(*bounds, strict=True):
        assert one[0] <= other[0]
        assert one[1] >= other[1]
    plt.close("all")
