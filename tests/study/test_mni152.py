"""What is read from nilearn's files is what nilearn makes of them."""

import matplotlib.pyplot as plt
import nibabel
import numpy as np
import pytest
from matplotlib.patches import Patch
from nilearn.datasets import load_mni152_brain_mask, load_mni152_template
from nilearn.masking import unmask as nilearns_unmask
from nilearn.plotting import plot_glass_brain
from numpy.typing import NDArray

from ntfa.study import mni152
from ntfa.study.volumes import unmask


def test_brains_and_shades_are_nilearns() -> None:
    for spacing in (2, 4):
        mask = load_mni152_brain_mask(resolution=spacing)
        np.testing.assert_array_equal(mni152.brain(spacing), np.asarray(mask.dataobj) > 0)
        np.testing.assert_array_equal(mni152.affine(spacing), mask.affine)
    for spacing in (2, 3):
        template = np.asarray(load_mni152_template(resolution=spacing).dataobj)
        assert np.abs(mni152.shades(spacing) / 255 - template.clip(0) / template.max()).max() <= 0.501 / 255


@pytest.mark.parametrize("axis", "xyz")
def test_outlines_are_those_of_nilearns_glass_brain(axis: str) -> None:
    display = plot_glass_brain(None, display_mode=axis, colorbar=False)
    ax = display.axes[axis].ax
    theirs = {tuple(np.round(point, 2)) for patch in ax.patches for point in ends_of(patch)}
    outline = mni152.outline(axis)
    ours = {tuple(np.round(point, 2)) for own in outline.strokes for point in own.vertices[[0, -1]]}
    np.testing.assert_allclose(outline.bounds, (*ax.get_xlim(), *ax.get_ylim()), atol=1e-6)
    assert len(ours) >= 10
    assert ours <= theirs
    plt.close("all")


def ends_of(patch: Patch) -> NDArray[np.float64]:
    """Ends of a line or a curve, in mm."""
    return (patch.get_transform() - patch.axes.transData).transform(patch.get_path().vertices)[[0, -1]]


def test_unmasking_is_nilearns() -> None:
    mask_img = nibabel.Nifti1Image(mni152.brain(4).astype(np.uint8), mni152.affine(4))
    values = np.random.default_rng(0).normal(size=(3, int(mni152.brain(4).sum()))).astype(np.float32)
    for own in (values, values[0]):
        theirs, ours = nilearns_unmask(own, mask_img), unmask(own, mask_img)
        assert ours.to_bytes() == theirs.to_bytes()
