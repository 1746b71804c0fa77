"""What is kept of the MNI152 template is what nilearn makes of it."""

import importlib.util
from pathlib import Path

import nibabel
import numpy as np
from nilearn.datasets import load_mni152_brain_mask, load_mni152_template
from nilearn.masking import unmask as nilearns_unmask

from ntfa.study import mni152
from ntfa.study.volumes import unmask


def test_the_file_is_what_is_made_of_nilearns() -> None:
    spec = importlib.util.spec_from_file_location("made", Path(__file__).with_name("mni152_from_nilearn.py"))
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    derived = made.derive()
    with np.load(mni152.FILE) as kept:
        assert set(kept.files) == set(derived)
        for name, value in derived.items():
            np.testing.assert_array_equal(kept[name], value, err_msg=name)


def test_brains_and_shades_are_nilearns() -> None:
    for spacing in (2, 4):
        mask = load_mni152_brain_mask(resolution=spacing)
        np.testing.assert_array_equal(mni152.brain(spacing), np.asarray(mask.dataobj) > 0)
        np.testing.assert_array_equal(mni152.affine(spacing), mask.affine)
    for spacing in (2, 3):
        template = np.asarray(load_mni152_template(resolution=spacing).dataobj)
        assert np.abs(mni152.shades(spacing) / 255 - template.clip(0) / template.max()).max() <= 0.501 / 255


def test_unmasking_is_nilearns() -> None:
    mask_img = nibabel.Nifti1Image(mni152.brain(4).astype(np.uint8), mni152.affine(4))
    values = np.random.default_rng(0).normal(size=(3, int(mni152.brain(4).sum()))).astype(np.float32)
    for own in (values, values[0]):
        theirs, ours = nilearns_unmask(own, mask_img), unmask(own, mask_img)
        assert ours.to_bytes() == theirs.to_bytes()
