"""Images of runs and masks: read as nilearn reads them, in little memory, and refused by name."""

import gzip
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import assert_names, naming
from nibabel.affines import apply_affine
from nilearn.datasets import load_mni152_wm_mask
from nilearn.image import resample_to_img
from nilearn.maskers import NiftiMasker

from ntfa.errors import StudyError
from ntfa.study.checks import mask_coordinates
from ntfa.study.cutting import Preparation
from ntfa.study.images import (
    Run,
    keep_voxels,
    kept_frames,
    load_mask,
    on_grid_of,
    open_image,
    repetition_time,
    shared_mask,
    voxel_series,
    without_white_matter,
)
from ntfa.study.preparing import prepare_participant

SHAPE, T_R = (13, 12, 11), 2.0
AFFINE = np.array([[3.0, 0, 0, -18], [0, 3.5, 0, -20], [0, 0, 4, -22], [0, 0, 0, 1]])


def image(data: Any, t_r: float | None = T_R, affine: np.ndarray = AFFINE, unit: str = "sec") -> Any:
    img = nibabel.Nifti1Image(np.asarray(data), affine)
    img.header.set_xyzt_units("mm", unit)
    if t_r is not None:
        img.header.set_zooms((*img.header.get_zooms()[:3], t_r))
    return img


def bold(n_frames: int = 50, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    """Volumes in the units of a scanner, with drifts; more of them than are read at once."""
    rng = np.random.default_rng(seed)
    drift = rng.standard_normal((*shape, 1)) * np.linspace(-20, 20, n_frames)
    noise = 10 * rng.standard_normal((*shape, n_frames))
    return (rng.uniform(500, 1500, (*shape, 1)) + drift + noise).astype(np.float32)


@pytest.fixture(scope="module")
def img() -> Any:
    return image(bold())


@pytest.fixture(scope="module")
def mask() -> Any:
    """All but a margin and some holes: more voxels than are denoised at once."""
    inside = np.zeros(SHAPE, dtype=np.uint8)
    inside[1:, :, :-1] = 1
    inside[np.random.default_rng(0).random(SHAPE) < 0.1] = 0
    assert inside.sum() > 1100
    return nibabel.Nifti1Image(inside, AFFINE)


def series_of(source: Any, mask: Any, t_r: float = T_R, **how: Any) -> np.ndarray:
    """What we read of a run, whose voxels must all be good."""
    fields = {name: how.pop(name) for name in ("confounds", "sample_mask") if name in how}
    run = Run(source, None, "sub-01", **fields)
    series, broken, _ = voxel_series(run, open_image(run), mask, Preparation(**how), t_r)
    assert not broken.any()
    assert series.dtype == np.float32
    return series


# --- the same as nilearn


CONFOUNDS = pd.DataFrame(np.random.default_rng(1).standard_normal((50, 4)).cumsum(0), columns=list("abcd"))
KEPT = np.setdiff1d(np.arange(50), [0, 7, 8, 30, 49])


@pytest.mark.parametrize(
    ("cleaning", "run"),
    [
        ({}, {}),
        ({"smoothing_fwhm": 8.0}, {}),
        ({"high_pass": 0.02}, {}),
        ({}, {"confounds": CONFOUNDS}),
        ({}, {"sample_mask": KEPT}),
        ({}, {"confounds": CONFOUNDS, "sample_mask": KEPT}),
        ({"high_pass": 0.02}, {"confounds": CONFOUNDS}),
        ({"high_pass": 0.02, "smoothing_fwhm": 5.0}, {"confounds": CONFOUNDS, "sample_mask": KEPT}),
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_frames_are_those_of_nilearns_masker(
    img: Any, mask: Any, cleaning: dict[str, Any], run: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "bold.nii.gz"
    img.to_filename(path)
    masker = NiftiMasker(mask, standardize=None, t_r=T_R, dtype=np.float64, **cleaning).fit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = masker.transform(str(path), **run)
    for source in (path, img, nibabel.load(path)):
        found = series_of(source, mask, **cleaning, **run)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_a_list_of_frames_and_a_list_of_booleans_say_the_same(img: Any, mask: Any) -> None:
    expected = series_of(img, mask)[KEPT]
    for kept in (KEPT, KEPT.tolist(), np.isin(np.arange(50), KEPT)):
        np.testing.assert_array_equal(series_of(img, mask, sample_mask=kept), expected)


@pytest.mark.parametrize("kept", [[], [3, 50], [-1, 3], np.zeros(50, dtype=bool), np.ones(49, dtype=bool)])
def test_a_sample_mask_must_fit_the_run(kept: Any) -> None:
    with pytest.raises(StudyError) as error:
        kept_frames(Run("x.nii", None, "sub-01", sample_mask=kept), 50)
    assert_names(error.value, "x.nii", "sample mask", 50)


def test_voxels_are_in_the_order_of_their_positions(mask: Any) -> None:
    grid = np.indices(SHAPE).astype(np.float32)
    x, y, z = (series_of(image(np.stack([axis, axis + 1], -1)), mask)[0] for axis in grid)
    expected = np.stack([x, y, z, np.ones_like(x)]).T @ AFFINE.T
    np.testing.assert_allclose(mask_coordinates(mask), expected[:, :3], atol=1e-5)


# --- how images are stored


@pytest.mark.parametrize("name", ["bold.nii", "bold.nii.gz"])
def test_scaled_integers_are_read_as_what_they_stand_for(mask: Any, tmp_path: Path, name: str) -> None:
    stored = np.random.default_rng(0).integers(-30000, 30000, (*SHAPE, 20))
    meant = stored * 0.015625 + 700.0
    img = image(stored.astype(np.int16))
    img.header.set_slope_inter(0.015625, 700.0)
    img.to_filename(tmp_path / name)
    raw = nibabel.load(tmp_path / name)
    assert raw.get_data_dtype() == np.int16
    assert (raw.dataobj.slope, raw.dataobj.inter) == (0.015625, 700.0)
    np.testing.assert_array_equal(raw.dataobj.get_unscaled(), stored)
    expected = meant[np.asarray(mask.dataobj) > 0].T.astype(np.float32)
    np.testing.assert_array_equal(series_of(tmp_path / name, mask), expected)
    np.testing.assert_array_equal(series_of(raw, mask), expected)


@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<u2", ">f4", "<f8", "u1"])
def test_every_type_of_number_is_read(mask: Any, tmp_path: Path, dtype: str) -> None:
    data = np.random.default_rng(0).integers(0, 255, (*SHAPE, 17)).astype(dtype)
    img = nibabel.Nifti1Image(data, AFFINE, nibabel.Nifti1Header(endianness=">" if dtype[0] == ">" else "<"))
    img.header.set_data_dtype(dtype)
    img.to_filename(tmp_path / "bold.nii.gz")
    expected = data[np.asarray(mask.dataobj) > 0].T.astype(np.float32)
    np.testing.assert_array_equal(series_of(tmp_path / "bold.nii.gz", mask), expected)


def test_images_in_memory_are_not_changed(mask: Any) -> None:
    img = image(bold())
    before = np.asarray(img.dataobj).copy()
    series_of(img, mask, confounds=CONFOUNDS, high_pass=0.02, smoothing_fwhm=6.0)
    np.testing.assert_array_equal(np.asarray(img.dataobj), before)


LARGE = (36, 42, 34)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 96 volumes, as scaled integers, compressed."""
    img = image(np.random.default_rng(0).standard_normal((*LARGE, 96), dtype=np.float32))
    img.header.set_data_dtype(np.int16)
    path = tmp_path_factory.mktemp("large") / "bold.nii.gz"
    img.to_filename(path)
    return path


@pytest.mark.parametrize(
    ("how", "share", "is_scrubbed"),
    [
        ({}, 1.0, False),
        ({"smoothing_fwhm": 6.0, "standardize": "run"}, 1.0, False),
        ({}, 1.0, True),
        ({"high_pass": 0.01}, 0.05, True),
    ],
    ids=["plain", "smoothed", "scrubbed", "filtered"],
)
def test_peak_memory_is_at_most_three_times_one_run(
    large: Path, how: dict[str, Any], share: float, is_scrubbed: bool
) -> None:
    """Of the mask's voxels, where it leaves out most, else of the whole image."""
    events = pd.DataFrame({"onset": [20.0, 100.0], "duration": 40.0, "trial_type": "a"})
    confounds = np.random.default_rng(0).standard_normal((96, 12)) if is_scrubbed else None
    kept = np.setdiff1d(np.arange(96), [5, 50]) if is_scrubbed else None
    run = Run(large, events, "sub-01", confounds=confounds, sample_mask=kept)
    inside = np.zeros(LARGE, dtype=np.uint8)
    inside.ravel()[: int(share * inside.size)] = 1
    tracemalloc.start()
    try:
        prepared = prepare_participant([run], nibabel.Nifti1Image(inside, AFFINE), Preparation(**how))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert prepared.usable.all()
    one_run = 4 * 96 * inside.size
    assert peak < 3 * one_run, peak / one_run


# --- voxels without signal


@pytest.mark.parametrize("how", [{}, {"smoothing_fwhm": 5.0}, {"high_pass": 0.02}])
def test_voxels_that_are_not_finite_or_do_not_vary_are_found(mask: Any, how: dict[str, Any]) -> None:
    inside = np.argwhere(np.asarray(mask.dataobj) > 0)
    data = bold()
    for voxel, value in {5: 900.0, 700: 0.0}.items():
        data[tuple(inside[voxel])] = value
    for voxel, value in {40: np.nan, 900: np.inf, 1000: -np.inf}.items():
        data[(*inside[voxel], 33)] = value
    outside = np.argwhere(np.asarray(mask.dataobj) == 0)[0]
    data[tuple(outside)] = np.nan
    run = Run(image(data), None, "sub-01")
    series, broken, _ = voxel_series(run, open_image(run), mask, Preparation(**how), T_R)
    assert np.flatnonzero(broken).tolist() == [5, 40, 700, 900, 1000]
    assert np.isfinite(series[:, ~broken]).all()


# --- repetition time


def test_the_repetition_time_is_that_of_the_header_in_its_units() -> None:
    for t_r, unit in ((0.7, "sec"), (700.0, "msec"), (700000.0, "usec"), (0.7, "unknown")):
        img = image(bold(3), t_r, unit=unit)
        assert repetition_time(Run(img, None, "sub-01"), img) == pytest.approx(0.7, rel=1e-15)


def test_a_given_repetition_time_wins_and_a_mismatch_is_said() -> None:
    img = image(bold(3), 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert repetition_time(Run(img, None, "sub-01", t_r=2.0), img) == 2.0
        unknown = image(bold(3), 0.0)
        assert repetition_time(Run(unknown, None, "sub-01", t_r=1.5), unknown) == 1.5
    with pytest.warns(UserWarning, match=naming("x.nii", 2, 1.5)):
        assert repetition_time(Run("x.nii", None, "sub-01", t_r=1.5), img) == 1.5


def test_without_a_repetition_time_the_run_is_refused() -> None:
    img = image(bold(3), 0.0)
    with pytest.raises(StudyError, match=naming("run 1", "sub-01", "t_r")):
        repetition_time(Run(img, None, "sub-01"), img)


# --- images that cannot be read


def open_and_read(path: Path, mask: Any) -> None:
    run = Run(path, None, "sub-01")
    voxel_series(run, open_image(run), mask, Preparation(), T_R)


def error_of(path: Path, mask: Any) -> str:
    with pytest.raises(StudyError) as error:
        open_and_read(path, mask)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
def test_a_truncated_image_is_named(img: Any, mask: Any, tmp_path: Path, share: float) -> None:
    for name in ("bold.nii.gz", "bold.nii"):
        path = tmp_path / name
        img.to_filename(path)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        assert error_of(path, mask)


@pytest.mark.parametrize("damage", [b"\xff" * 999, gzip.compress(b"")[:10] + b"\xff" * 999], ids=["member", "block"])
def test_a_damaged_image_is_named(img: Any, mask: Any, tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "bold.nii.gz"
    whole = img.to_bytes()
    path.write_bytes(gzip.compress(whole[: len(whole) // 2]) + damage)
    assert error_of(path, mask)


def test_files_that_are_no_images_are_named(mask: Any, tmp_path: Path) -> None:
    assert error_of(tmp_path / "nothing.nii.gz", mask)
    for name, content in (("empty.nii.gz", b""), ("text.nii.gz", b"no image"), ("text.nii", b"no image" * 100)):
        (tmp_path / name).write_bytes(content)
        assert error_of(tmp_path / name, mask)


def test_a_3d_image_is_no_run(mask: Any, tmp_path: Path) -> None:
    image(bold(1)[..., 0], None).to_filename(tmp_path / "t1.nii.gz")
    assert_names(error_of(tmp_path / "t1.nii.gz", mask), "4-D", SHAPE)


# --- grids


def test_an_image_on_another_grid_is_refused_or_resampled(img: Any, mask: Any) -> None:
    moved = AFFINE.copy()
    moved[:3, 3] += 1.5
    coarser = np.diag([5.0, 5.0, 5.0, 1.0])
    coarser[:3, 3] = [-15, -17, -20]
    others = [
        nibabel.Nifti1Image(np.asarray(mask.dataobj), moved),
        nibabel.Nifti1Image(np.ones((6, 7, 8), dtype=np.uint8), coarser),
    ]
    run = Run("bold.nii.gz", None, "sub-01")
    for other in others:
        with pytest.raises(StudyError, match=naming("bold.nii.gz", "(13, 12, 11)")):
            voxel_series(run, img, other, Preparation(), T_R)
        series, broken, _ = voxel_series(run, img, other, Preparation(other_grid="resample"), T_R)
        expected = resample_to_img(img, other, interpolation="continuous").get_fdata()
        np.testing.assert_allclose(series, expected[np.asarray(other.dataobj) > 0].T, rtol=1e-4, atol=0.01)
        # What lies outside of the image is zero, so it does not vary.
        np.testing.assert_array_equal(broken, np.ptp(series, axis=0) == 0)
        assert (~broken).sum() > 0
    far = AFFINE.copy()
    far[:3, 3] = 500
    with pytest.raises(StudyError, match=naming("bold.nii.gz")):
        voxel_series(
            run, img, nibabel.Nifti1Image(np.asarray(mask.dataobj), far), Preparation(other_grid="resample"), T_R
        )


def test_images_on_the_same_grid_are_not_touched(img: Any, mask: Any) -> None:
    assert on_grid_of(mask, img, "refuse", "x") is img
    nearly = nibabel.Nifti1Image(np.asarray(mask.dataobj), AFFINE + 1e-5)
    assert on_grid_of(nearly, img, "resample", "x") is img


# --- masks


def test_masks_are_read_from_files_and_images(mask: Any, tmp_path: Path) -> None:
    inside = np.asarray(mask.dataobj) > 0
    probability = np.where(inside, 0.3, 0.0).astype(np.float32)
    probability[0, 0, 0] = np.nan
    path = tmp_path / "mask.nii.gz"
    nibabel.Nifti1Image(probability, AFFINE).to_filename(path)
    for source in (mask, path, str(path), nibabel.Nifti1Image(probability[..., None], AFFINE)):
        found = load_mask(source)
        np.testing.assert_array_equal(np.asarray(found.dataobj) > 0, inside)
        np.testing.assert_array_equal(found.affine, AFFINE)


def test_masks_that_are_none_are_refused_by_name(mask: Any, tmp_path: Path) -> None:
    path = tmp_path / "mask.nii.gz"
    for data, problem in (
        (np.zeros(SHAPE, dtype=np.uint8), "empty"),
        (np.full(SHAPE, np.nan, dtype=np.float32), "empty"),
        (np.ones((*SHAPE, 2), dtype=np.uint8), (*SHAPE, 2)),
    ):
        nibabel.Nifti1Image(data, AFFINE).to_filename(path)
        with pytest.raises(StudyError) as error:
            load_mask(path)
        assert_names(error.value, path, problem)
        with pytest.raises(StudyError, match=naming("my mask")):
            load_mask(nibabel.Nifti1Image(data, AFFINE), "my mask")
    mask.to_filename(path)
    path.write_bytes(path.read_bytes()[:200])
    for broken in (path, tmp_path / "none.nii"):
        with pytest.raises(StudyError) as error:
            load_mask(broken)
        assert_names(error.value, broken)


def test_shared_voxels_are_those_in_enough_masks() -> None:
    line = np.eye(3)[:, :, None].astype(np.uint8)
    stacks = [np.concatenate([np.zeros((3, 3, 3 - k)), np.repeat(line, k, 2)], 2).astype(np.uint8) for k in (1, 2, 3)]
    masks = [nibabel.Nifti1Image(stack, AFFINE) for stack in stacks]
    for coverage, expected in ((1.0, 3), (0.67, 3), (2 / 3, 6), (0.34, 6), (1 / 3, 9), (0.01, 9)):
        shared = shared_mask(masks, coverage, ["a", "b", "c"])
        assert np.asarray(shared.dataobj).sum() == expected
        np.testing.assert_array_equal(shared.affine, AFFINE)
    apart = [nibabel.Nifti1Image(data, AFFINE) for data in (line, 1 - line)]
    with pytest.raises(StudyError, match=naming("100%", 2)):
        shared_mask(apart, 1.0, ["a", "b"])
    with pytest.raises(StudyError, match=naming("b", "(3, 3, 3)", "a", "(3, 3, 1)")):
        shared_mask([apart[0], masks[0]], 1.0, ["a", "b"])


def test_white_matter_is_taken_out_in_mni_space() -> None:
    affine = np.diag([8.0, 8.0, 8.0, 1.0])
    affine[:3, 3] = [-72, -106, -64]
    head = nibabel.Nifti1Image(np.ones((19, 23, 19), dtype=np.uint8), affine)
    left = without_white_matter(head)
    gone = (np.asarray(head.dataobj) - np.asarray(left.dataobj)) > 0
    template = load_mni152_wm_mask(resolution=2)
    place = np.round(apply_affine(np.linalg.inv(template.affine) @ affine, np.argwhere(gone | True))).astype(int)
    known = ((place >= 0) & (place < template.shape)).all(1)
    white = np.zeros(gone.size, dtype=bool)
    white[known] = np.asarray(template.dataobj)[tuple(place[known].T)] > 0
    # A voxel between two of the template's may be either.
    assert (white == gone.ravel()).mean() > 0.99
    assert 0.03 < gone.mean() < 0.3
    far = affine.copy()
    far[:3, 3] = 500
    for data, place in ((gone, affine), (gone | True, far)):
        with pytest.raises(StudyError, match=naming("white matter", "MNI")):
            without_white_matter(nibabel.Nifti1Image(data.astype(np.uint8), place))


def test_voxels_can_be_dropped_from_a_mask(mask: Any) -> None:
    keep = np.random.default_rng(0).random(len(mask_coordinates(mask))) < 0.5
    np.testing.assert_array_equal(mask_coordinates(keep_voxels(mask, keep)), mask_coordinates(mask)[keep])
