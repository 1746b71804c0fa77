"""Images of runs, and masks: opened, checked, and read at a mask's voxels."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntfa.errors import StudyError
from ntfa.files.headers import open_file, require_sound
from ntfa.files.reading import reading
from ntfa.study.cifti import as_volumes, is_cifti
from ntfa.study.cutting import Preparation
from ntfa.study.greyordinates import Greyordinates
from ntfa.study.plausible import values_far_off
from ntfa.study.series import GreyordinateSeries, is_surface, of_cifti, open_series

Voxels = NDArray[np.bool_]
VOLUMES_AT_ONCE, VOXELS_AT_ONCE = 16, 1024
# A voxel that is finite in this share of frames is seen; a frame that lacks more than this share of seen voxels is not.
SEEN, SPOILED = 0.5, 0.1
# Of volumes that are read at once, so that their size does not decide how much memory is needed.
VALUES_AT_ONCE = 2**26


@dataclass(frozen=True)
class Run:
    """One run of one participant, and what is known of it.

    t_r : seconds from frame to frame; None takes the image header's.
    start_time : seconds from the first volume's onset to the time it stands for (fMRIPrep's StartTime).
    sample_mask : frames to keep, None for all.
    motion : framewise displacement, mm, one value per frame; None if not known.
    """

    img: Any
    events: Any
    participant: str
    run: str = "1"
    session: str | None = None
    t_r: float | None = None
    start_time: float = 0.0
    confounds: Any = None
    sample_mask: Any = None
    motion: Any = None

    @property
    def name(self) -> str:
        """What to call the run in an error: its file, or whose it is."""
        files = images_of(self)
        if all(isinstance(file, str | os.PathLike) for file in files):
            return " and ".join(map(str, files))
        return f"run {self.run} of participant {self.participant}"

    @property
    def events_name(self) -> str:
        """What to call its events."""
        return str(self.events) if isinstance(self.events, str | os.PathLike) else f"events of {self.name}"


def images_of(run: Run) -> list[Any]:
    """Return the image of a run, or those of its hemispheres."""
    return list(run.img) if isinstance(run.img, tuple | list) else [run.img]


def open_image(run: Run, mask_img: Any = None) -> Any:
    """Open a run's image and check that it is a series of volumes, or of what the mask has; its values are not read.

    A pair of GIFTI files is read: they are not in an order in which a part of them could be.
    """
    if is_surface(run.img):
        return open_series(run.img, run.name)
    img = open_file(run.img, run.name, "image") if isinstance(run.img, str | os.PathLike) else run.img
    if is_cifti(img):
        img = of_cifti(img, run.name) if isinstance(mask_img, Greyordinates) else as_volumes(img, run.name)
    if isinstance(img, GreyordinateSeries):
        return img
    shape = getattr(img, "shape", None)
    if shape is None or len(shape) != 4 or shape[3] < 1:
        raise StudyError(f"{run.name}: a run must be a 4-D image, this one has shape {shape}")
    require_sound(img, run.name)
    return img


def repetition_time(run: Run, img: Any) -> float:
    """Seconds from frame to frame: what is said of the run, else what the header says."""
    of_header = repetition_time_of_header(img.header)
    if run.t_r is None:
        if not 0 < of_header < math.inf:
            raise StudyError(f"{run.name}: the header gives no repetition time; say t_r")
        return of_header
    if not 0 < run.t_r < math.inf:
        raise StudyError(f"{run.name}: a repetition time of {run.t_r} s was given; it must be above 0")
    if of_header > 0 and abs(of_header - run.t_r) > 1e-3:
        warnings.warn(
            f"{run.name}: the header says a TR of {of_header:g} s, but {run.t_r:g} s was given (in the sidecar, or as "
            f"t_r); using {run.t_r:g} s",
            stacklevel=2,
        )
    return float(run.t_r)


def repetition_time_of_header(header: Any) -> float:
    """Seconds, 0 where a header does not say: NIfTI's alone knows in which unit it gives them."""
    zooms = header.get_zooms()
    if len(zooms) < 4 or not hasattr(header, "get_xyzt_units"):
        return 0.0
    try:
        unit = {"msec": 1e-3, "usec": 1e-6}.get(header.get_xyzt_units()[1], 1.0)
    except KeyError:
        return 0.0
    # The decimal number that was meant: 0.7 as float32 is 0.69999999, which adds up over a run.
    return float(str(zooms[3])) * unit


def kept_frames(run: Run, n_frames: int) -> NDArray[np.int64]:
    """Which of a run's frames its sample mask keeps."""
    if run.sample_mask is None:
        return np.arange(n_frames)
    kept = np.asarray(run.sample_mask)
    if kept.dtype == bool:
        kept = np.flatnonzero(kept) if len(kept) == n_frames else np.array([])
    if len(kept) == 0 or kept.min() < 0 or kept.max() >= n_frames:
        raise StudyError(f"{run.name}: the sample mask must name some of the run's {n_frames} frames")
    return kept.astype(np.int64)


class Series(NamedTuple):
    """A run at the mask's voxels.

    values : [n, V], kept frames but the spoiled ones, denoised
    broken : [V], voxels that do not vary, or are not finite or far off in some frame; zero in `values`
    spoiled : frames left out because they are not finite or far off at many of the other voxels
    """

    values: NDArray[np.float32]
    broken: Voxels
    spoiled: NDArray[np.int64]


def voxel_series(run: Run, img: Any, mask_img: Any, how: Preparation, t_r: float) -> Series:
    """Kept frames at the mask's voxels, denoised, and which voxels and frames cannot be used."""
    series, finite, varies = _read(run, img, mask_img, how)
    kept = kept_frames(run, len(series))
    spoiled = _spoiled(finite)
    broken = ~varies
    if finite is not None:
        broken |= ~np.delete(finite, spoiled, axis=0).all(0)
        series[~finite] = 0
    series[:, broken] = 0
    # Zeros that stand for nothing are far off in raw units, so their frames are not looked at.
    rows, where = values_far_off(series, np.setdiff1d(kept, spoiled))
    at_many = where.sum(1) > SPOILED * (~broken).sum()
    broken |= where[~at_many].any(0)
    series[:, broken] = 0
    spoiled = np.intersect1d(np.union1d(spoiled, rows[at_many]), kept)
    run = without_frames(run, spoiled, len(series))
    if run.confounds is not None or how.high_pass is not None:
        series[spoiled] = 0
        return Series(_denoised(run, series, how, t_r), broken, spoiled)
    return Series(series if run.sample_mask is None else series[kept_frames(run, len(series))], broken, spoiled)


def without_frames(run: Run, frames: NDArray[np.int64], n_frames: int) -> Run:
    """Leave frames out of a run, as scrubbing does."""
    return replace(run, sample_mask=np.setdiff1d(kept_frames(run, n_frames), frames)) if len(frames) else run


def _spoiled(finite: Voxels | None) -> NDArray[np.int64]:
    """Find frames that lack many of the voxels that other frames have."""
    seen = None if finite is None else finite.mean(0) >= SEEN
    if finite is None or seen is None or not seen.any():
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero((~finite[:, seen]).mean(1) > SPOILED)


def _read(
    run: Run, img: Any, mask_img: Any, how: Preparation
) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None, Voxels]:
    """All frames at the mask's voxels, smoothed; before that, where they were finite (None: everywhere), and varied."""
    _refuse_other_kind(run, img, mask_img, how)
    on_surface = isinstance(mask_img, Greyordinates)
    n_voxels = len(mask_img) if on_surface else np.count_nonzero(np.asanyarray(mask_img.dataobj) > 0)
    series = np.empty((img.shape[3], n_voxels), dtype=np.float32)
    finite = None
    low, high = (np.full(series.shape[1], value, dtype=np.float32) for value in (np.inf, -np.inf))
    for rows, values, smooth in _few_rows(run, img, mask_img) if on_surface else _few_values(run, img, mask_img, how):
        series[rows] = values
        is_finite = np.isfinite(values)
        if not is_finite.all():
            finite = np.ones(series.shape, dtype=bool) if finite is None else finite
            finite[rows] = is_finite
            values = np.where(is_finite, values, np.nan)
        np.fmin(low, np.fmin.reduce(values, axis=0), out=low)
        np.fmax(high, np.fmax.reduce(values, axis=0), out=high)
        if smooth is not None:
            series[rows] = smooth
    return series, finite, low < high


Part = tuple[slice, NDArray[np.float32], NDArray[np.float32] | None]


def _few_values(run: Run, img: Any, mask_img: Any, how: Preparation) -> Iterator[Part]:
    """Read a run at the mask's voxels a few volumes at a time, as they are and, if that is asked for, smoothed."""
    from nilearn.image import smooth_img

    inside = np.asanyarray(mask_img.dataobj) > 0
    for rows, volumes in _few_volumes(run, img):
        volumes = on_grid_of(mask_img, volumes, how.other_grid, run.name)
        smoothed = None
        if how.smoothing_fwhm is not None:
            smoothed = smooth_img(volumes, how.smoothing_fwhm).dataobj[inside].T
        yield rows, volumes.dataobj[inside].T, smoothed


def _few_rows(run: Run, img: GreyordinateSeries, space: Greyordinates) -> Iterator[Part]:
    """Read a run at vertices and voxels a few frames at a time; NaN where it has none for a column."""
    columns = img.columns_of(space)
    at_once = max(1, VALUES_AT_ONCE // len(img.axis))
    for first in range(0, img.n_rows, at_once):
        rows = slice(first, min(first + at_once, img.n_rows))
        with reading(f"{run.name}: the image breaks off or is damaged"), np.errstate(over="ignore", invalid="ignore"):
            values = img.read(rows)[:, columns]
        values[:, columns < 0] = np.nan
        yield rows, values, None


def _refuse_other_kind(run: Run, img: Any, mask_img: Any, how: Preparation) -> None:
    """Refuse a volume where the study has surfaces, and the other way round."""
    on_surface = isinstance(mask_img, Greyordinates)
    if isinstance(img, GreyordinateSeries) != on_surface:
        kinds = ("a volume", "on a surface") if on_surface else ("on a surface", "a volume")
        raise StudyError(f"{run.name}: is {kinds[0]}, but the study is {kinds[1]}; images must all be of one kind")
    if on_surface and how.smoothing_fwhm is not None:
        raise StudyError(
            f"{run.name}: images of surfaces are not smoothed here; smooth them along the cortex before (wb_command "
            "-cifti-smoothing, mri_surf2surf), and leave smoothing_fwhm (--smoothing-fwhm) out"
        )


def _few_volumes(run: Run, img: Any) -> Iterator[tuple[slice, Any]]:
    """Read a run a few volumes at a time, as images of float32: scaled integers would be float64, and all at once."""
    import nibabel

    proxy = nibabel.is_proxy(img.dataobj) and img.get_filename() is not None
    # A compressed file that is kept open is read on from where it was, not from its start.
    dataobj = nibabel.load(img.get_filename(), keep_file_open=True).dataobj if proxy else img.dataobj
    at_once = min(VOLUMES_AT_ONCE, max(1, VALUES_AT_ONCE // math.prod(img.shape[:3])))
    for first in range(0, img.shape[3], at_once):
        rows = slice(first, min(first + at_once, img.shape[3]))
        # Values beyond float32 become infinite, and their voxels are then not used.
        with reading(f"{run.name}: the image breaks off or is damaged"), np.errstate(over="ignore", invalid="ignore"):
            data = np.asarray(dataobj[..., rows], dtype=np.float32)
        yield rows, nibabel.Nifti1Image(data, img.affine)


def mean_volume(run: Run) -> Any:
    """Average a run's volumes."""
    import nibabel

    img = open_image(run)
    # Infinities of both signs have no sum; such a voxel is NaN here, and dropped later.
    with np.errstate(invalid="ignore"):
        total = sum(volumes.dataobj.sum(-1, dtype=np.float64) for _, volumes in _few_volumes(run, img))
    return nibabel.Nifti1Image(total / img.shape[3], img.affine)


def _denoised(run: Run, series: NDArray[np.float32], how: Preparation, t_r: float) -> NDArray[np.float32]:
    """Regress confounds out of the kept frames, and filter; in place, a few voxels at a time."""
    from nilearn.signal import clean

    kept = kept_frames(run, len(series))
    n_confounds = np.shape(run.confounds)[1] if np.ndim(run.confounds) == 2 else 1
    if n_confounds >= len(kept) - 1:
        raise StudyError(f"{run.name}: {n_confounds} confounds leave nothing of {len(kept)} frames; use fewer")
    for first in range(0, series.shape[1], VOXELS_AT_ONCE):
        voxels = slice(first, first + VOXELS_AT_ONCE)
        with reading(f"{run.name}: cannot be denoised"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning)
            series[: len(kept), voxels] = clean(
                series[:, voxels],
                detrend=False,
                standardize=None,
                confounds=run.confounds,
                high_pass=how.high_pass,
                t_r=t_r,
                sample_mask=None if run.sample_mask is None else kept,
            )
    return series[: len(kept)]


def inside_of(mask_img: Any) -> Voxels:
    """Which places of a mask's grid are in it; of vertices and voxels, all that there are."""
    return np.ones(len(mask_img), bool) if isinstance(mask_img, Greyordinates) else np.asanyarray(mask_img.dataobj) > 0


def mask_within(mask_img: Any, inside: Voxels) -> Any:
    """Return a mask on the same grid that has these places of it."""
    import nibabel

    if isinstance(mask_img, Greyordinates):
        return mask_img.keep(inside)
    return nibabel.Nifti1Image(inside.astype(np.uint8), mask_img.affine)


def same_grid(one: Any, other: Any) -> bool:
    """Whether two images have the same voxels."""
    if isinstance(one, Greyordinates) or isinstance(other, Greyordinates):
        return isinstance(one, Greyordinates) and isinstance(other, Greyordinates) and bool(one.axis == other.axis)
    return one.shape[:3] == other.shape[:3] and np.allclose(one.affine, other.affine, atol=1e-3)


def on_grid_of(mask_img: Any, img: Any, other_grid: str, name: str) -> Any:
    """Bring an image onto the mask's grid, or refuse."""
    from nilearn.image import resample_to_img

    if same_grid(mask_img, img):
        return img
    refuse_other_grid(mask_img, img, other_grid, name)
    with reading(f"{name}: it cannot be resampled to the mask's grid"):
        return resample_to_img(img, mask_img, interpolation="continuous")


def refuse_other_grid(mask_img: Any, img: Any, other_grid: str, name: str) -> None:
    """Refuse an image on another grid than the mask's, unless it may be resampled."""
    if other_grid == "refuse" and not same_grid(mask_img, img):
        raise StudyError(
            f"{name}: its grid {img.shape[:3]} is not the mask's {mask_img.shape[:3]}, or lies elsewhere; ask for "
            "resampling (--other-grid resample), or give images and mask of one space"
            + ("; time must be the fourth axis of the image" if _is_turned(mask_img.shape, img.shape) else "")
        )


def _is_turned(of_mask: Sequence[int], of_image: Sequence[int]) -> bool:
    """Whether an image has the axes of the mask, but another one before or between them."""
    return any(
        tuple(of_image[:axis]) + tuple(of_image[axis + 1 :]) == tuple(of_mask) for axis in range(len(of_image) - 1)
    )


def open_mask(path: str | os.PathLike[str]) -> Any:
    """Open a mask and check its header, without reading it."""
    img = open_file(path, str(path), "mask")
    require_sound(img, str(path))
    return img


def load_mask(source: Any, name: str = "mask") -> Any:
    """Read a mask and check that it has voxels; returns a boolean image in memory."""
    import nibabel

    where = str(source) if isinstance(source, str | os.PathLike) else name
    img = open_mask(source) if isinstance(source, str | os.PathLike) else source
    require_sound(img, where)
    with reading(f"{where}: cannot be read as a mask"), np.errstate(over="ignore", invalid="ignore"):
        data = np.asanyarray(img.dataobj)
    if data.ndim == 4 and data.shape[3] == 1:
        data = data[..., 0]
    if data.ndim != 3:
        raise StudyError(f"{where}: a mask must be a 3-D image, this one has shape {data.shape}")
    inside = np.nan_to_num(data) > 0
    if not inside.any():
        raise StudyError(f"{where}: the mask is empty")
    return nibabel.Nifti1Image(inside.astype(np.uint8), img.affine)


def shared_mask(masks: Sequence[Any], min_coverage: float, names: Sequence[str]) -> Any:
    """Voxels that lie in at least a share of the masks (1: in all of them); masks must be on one grid."""
    import nibabel

    first = masks[0]
    for mask, name in zip(masks, names, strict=True):
        if not same_grid(first, mask):
            raise StudyError(f"{name}: its grid {mask.shape} is not that of {names[0]}, {first.shape}, or elsewhere")
    share = sum((np.asanyarray(mask.dataobj) > 0).astype(np.float64) for mask in masks) / len(masks)
    inside = share >= min_coverage - 1e-9
    if not inside.any():
        raise StudyError(f"no voxel lies in {min_coverage:.0%} of the {len(masks)} brain masks")
    return nibabel.Nifti1Image(inside.astype(np.uint8), first.affine)


def without_white_matter(mask_img: Any) -> Any:
    """Take the white matter of the MNI152 template out of a mask in MNI space."""
    import nibabel
    from nilearn.datasets import load_mni152_wm_mask
    from nilearn.image import resample_to_img

    try:
        white = resample_to_img(load_mni152_wm_mask(resolution=2), mask_img, interpolation="nearest")
    except ValueError as error:
        raise StudyError(f"white matter cannot be removed; is the data in MNI space? ({error})") from error
    inside = (np.asanyarray(mask_img.dataobj) > 0) & ~(np.asanyarray(white.dataobj) > 0)
    if not inside.any():
        raise StudyError("no voxel is left after white matter is removed; is the data in MNI space? Keep white matter")
    return nibabel.Nifti1Image(inside.astype(np.uint8), mask_img.affine)


def keep_voxels(mask_img: Any, keep: Voxels) -> Any:
    """Keep some of a mask's voxels, or vertices."""
    import nibabel

    if isinstance(mask_img, Greyordinates):
        return mask_img.keep(keep)
    inside = np.asanyarray(mask_img.dataobj) > 0
    inside[inside] = keep
    return nibabel.Nifti1Image(inside.astype(np.uint8), mask_img.affine)
