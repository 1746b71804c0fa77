"""From images and events to a study: frames against brute force, voxels without signal, errors by name."""

import warnings
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import assert_names, naming
from nilearn.masking import compute_multi_epi_mask

from ntfa import Study
from ntfa.errors import StudyError
from ntfa.study.cutting import Preparation
from ntfa.study.images import Run
from ntfa.study.preparing import mask_of, prepare_participant

# Images are looked at as they are in some of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:frames of participant .* vary little")

SHAPE, T_R, N_FRAMES = (5, 6, 4), 2.0, 40
AFFINE = np.array([[4.0, 0, 0, -8], [0, 4, 0, -10], [0, 0, 4, -6], [0, 0, 0, 1]])
# Two runs of two participants; the second one never sees houses.
WHO = ["sub-01", "sub-02", "sub-01", "sub-02"]
SHOWN = [("face", "house"), ("face", "face"), ("house", "face"), ("face", "face")]
DELAY = 3.0


def scan(seed: int, n_frames: int = N_FRAMES, t_r: float = T_R) -> Any:
    rng = np.random.default_rng(seed)
    level = rng.uniform(800, 1200, (*SHAPE, 1))
    img = nibabel.Nifti1Image((level + 10 * rng.standard_normal((*SHAPE, n_frames))).astype(np.float32), AFFINE)
    img.header.set_xyzt_units("mm", "sec")
    img.header.set_zooms((4, 4, 4, t_r))
    return img


def events_of(first: str, second: str) -> pd.DataFrame:
    rows = [(0, 18, "rest"), (18, 12, first), (30, 10, "rest"), (40, 14, second), (54, 20, "rest")]
    table = pd.DataFrame(rows, columns=["onset", "duration", "trial_type"])
    return table.assign(onset=table["onset"] - DELAY, block=["00", "01", "02", "03", "04"])


@pytest.fixture
def imgs() -> list[Any]:
    return [scan(seed) for seed in range(4)]


@pytest.fixture(scope="module")
def events() -> list[pd.DataFrame]:
    return [events_of(*pair) for pair in SHOWN]


@pytest.fixture(scope="module")
def mask() -> Any:
    inside = np.ones(SHAPE, dtype=np.uint8)
    inside[0, 0] = 0
    return nibabel.Nifti1Image(inside, AFFINE)


def inside_of(mask: Any) -> np.ndarray:
    return np.asarray(mask.dataobj) > 0


def expected_frames(imgs: list[Any], mask: Any, standardize: str = "rest") -> dict[str, np.ndarray]:
    """Frames 9-14 and 20-26 of every run, z-scored by frames 0-8, 15-19 and 27-36."""
    rest = [*range(9), *range(15, 20), *range(27, 37)]
    frames: dict[str, list[np.ndarray]] = {}
    for participant, img in zip(WHO, imgs, strict=True):
        series = img.get_fdata()[inside_of(mask)].T
        part = series[rest] if standardize == "rest" else series
        if standardize != "none":
            with np.errstate(invalid="ignore"):
                series = (series - part.mean(0)) / part.std(0, ddof=1)
        frames.setdefault(participant, []).append(series[[*range(9, 15), *range(20, 27)]])
    return {participant: np.concatenate(parts) for participant, parts in frames.items()}


def paths_of(folder: Path, imgs: list[Any], events: list[pd.DataFrame]) -> tuple[list[Path], list[Path]]:
    images, tables = [], []
    for i, (img, table) in enumerate(zip(imgs, events, strict=True)):
        images.append(folder / f"run-{i}_bold.nii.gz")
        tables.append(folder / f"run-{i}_events.tsv")
        img.to_filename(images[-1])
        table.to_csv(tables[-1], sep="\t", index=False)
    return images, tables


def from_images(imgs: list[Any], events: list[Any], mask: Any, participants: Any = WHO, **options: Any) -> Study:
    return Study.from_images(imgs, events, participants, mask, **{"rest": "rest", "delay": DELAY, **options})


def assert_equal(study: Study, other: Study) -> None:
    pd.testing.assert_frame_equal(study.trials, other.trials)
    np.testing.assert_array_equal(study.coordinates, other.coordinates)
    assert study.frames.keys() == other.frames.keys()
    for participant in study.participants:
        np.testing.assert_array_equal(study.frames[participant], other.frames[participant])


# --- frames and trials


@pytest.mark.parametrize("standardize", ["rest", "run", "none"])
def test_frames_are_cut_and_zscored_run_by_run(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any, standardize: str
) -> None:
    study = from_images(imgs, events, mask, standardize=standardize)
    for participant, frames in expected_frames(imgs, mask, standardize).items():
        assert study.frames[participant].dtype == np.float32
        np.testing.assert_allclose(study.frames[participant], frames, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        study.coordinates, np.argwhere(inside_of(mask)) @ AFFINE[:3, :3].T + AFFINE[:3, 3], atol=1e-6
    )


def test_trials_know_their_participant_run_frames_and_labels(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any
) -> None:
    trials = from_images(imgs, events, mask).trials
    expected = pd.DataFrame(
        {
            "stimulus": ["face", "house", "house", "face", "face", "face", "face", "face"],
            "onset": [15.0, 37.0] * 4,
            "duration": [12.0, 14.0] * 4,
            "block": ["01", "03"] * 4,
            "participant": ["sub-01"] * 4 + ["sub-02"] * 4,
            "run": ["run-1", "run-1", "run-2", "run-2"] * 2,
            "start": [0, 6, 13, 19] * 2,
            "stop": [6, 13, 19, 26] * 2,
        }
    )
    pd.testing.assert_frame_equal(trials, expected, check_dtype=False)


def test_a_participant_may_lack_a_stimulus(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> None:
    study = from_images(imgs, events, mask)
    assert study.stimuli == ["face", "house"]
    assert study.select(participants="sub-02").stimuli == ["face"]


def test_the_start_time_shifts_the_frames(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> None:
    plain = from_images(imgs, events, mask, standardize="none").frames["sub-01"]
    later = from_images(imgs, events, mask, standardize="none", start_time=2.0).frames["sub-01"]
    series = imgs[0].get_fdata()[inside_of(mask)].T
    np.testing.assert_allclose(plain[:6], series[9:15], rtol=1e-6)
    np.testing.assert_allclose(later[:6], series[8:14], rtol=1e-6)


def test_runs_can_be_named_and_one_participant_is_assumed(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any
) -> None:
    study = from_images(imgs, events, mask, participants=None, runs=["a", "b", "c", "d"])
    assert study.participants == ["1"]
    assert study.trials["run"].tolist() == [run for run in "abcd" for _ in range(2)]


# --- what images, events and masks can be


def test_paths_and_images_in_memory_give_the_same_study(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any, tmp_path: Path
) -> None:
    study = from_images(imgs, events, mask)
    images, tables = paths_of(tmp_path, imgs, events)
    mask_path = tmp_path / "mask.nii.gz"
    mask.to_filename(mask_path)
    assert_equal(from_images(images, tables, mask_path), study)
    assert_equal(from_images([str(path) for path in images], [str(path) for path in tables], str(mask_path)), study)
    assert_equal(from_images(tuple(nibabel.load(path) for path in images), tuple(tables), mask), study)


def test_the_mask_is_that_of_the_study(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> None:
    study = from_images(imgs, events, mask)
    np.testing.assert_array_equal(inside_of(study.mask_img), inside_of(mask))
    np.testing.assert_array_equal(study.mask_img.affine, AFFINE)


def head(seed: int, n_frames: int = 20) -> Any:
    """A ball of brain in air."""
    rng = np.random.default_rng(seed)
    radius = np.linalg.norm(np.indices((20, 20, 20)) - 9.5, axis=0)
    level = np.where(radius < 7 + 0.3 * seed, 1000.0, 20.0)
    data = level[..., None] + np.abs(5 * rng.standard_normal((20, 20, 20, n_frames)))
    img = nibabel.Nifti1Image(data.astype(np.float32), np.diag([4.0, 4, 4, 1]))
    img.header.set_zooms((4, 4, 4, 2.0))
    return img


def test_without_a_mask_nilearns_brain_mask_is_used(tmp_path: Path) -> None:
    heads = [head(0), head(1), head(2)]
    expected = inside_of(compute_multi_epi_mask(heads))
    assert 500 < expected.sum() < 3000
    paths = [tmp_path / f"{i}.nii.gz" for i in range(3)]
    for path, img in zip(paths, heads, strict=True):
        img.to_filename(path)
    for sources in (heads, paths):
        np.testing.assert_array_equal(inside_of(mask_of(sources, None)), expected)
    table = pd.DataFrame({"onset": [4.0, 20.0], "duration": 6.0, "trial_type": ["a", "b"]})
    study = Study.from_images(paths, [table] * 3, delay=0)
    np.testing.assert_array_equal(inside_of(study.mask_img), expected)


def test_without_a_mask_a_broken_image_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.nii.gz" for i in range(2)]
    for i, path in enumerate(paths):
        head(i).to_filename(path)
    paths[1].write_bytes(paths[1].read_bytes()[:9999])
    with pytest.raises(StudyError) as error:
        mask_of(paths, None)
    assert str(error.value).startswith(f"{paths[1]}: the image breaks off or is damaged")


def test_without_a_mask_images_of_different_grids_are_refused() -> None:
    moved = nibabel.Nifti1Image(head(1).get_fdata(), np.diag([5.0, 5, 5, 1]))
    with pytest.raises(StudyError, match="mask="):
        mask_of([head(0), moved], None)


# --- confounds and scrubbing


def test_scrubbed_frames_are_gone_from_trials_and_rest(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> None:
    lost = {0: [3, 10, 11], 3: [20]}
    sample_masks = [np.setdiff1d(np.arange(N_FRAMES), lost[i]) if i in lost else None for i in range(4)]
    study = from_images(imgs, events, mask, sample_masks=sample_masks)
    own = study.trials[study.trials["participant"] == "sub-01"]
    assert (own["stop"] - own["start"]).tolist() == [4, 7, 6, 7]
    series = imgs[0].get_fdata()[inside_of(mask)].T
    rest = series[[0, 1, 2, *range(4, 9), *range(15, 20), *range(27, 37)]]
    expected = ((series - rest.mean(0)) / rest.std(0, ddof=1))[[9, 12, 13, 14, *range(20, 27)]]
    np.testing.assert_allclose(study.frames["sub-01"][:11], expected, rtol=1e-5, atol=1e-5)
    assert study.trials["stop"].tolist()[-1] == 25


def test_confounds_are_regressed_out_of_their_own_run(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> None:
    rng = np.random.default_rng(0)
    confounds = [rng.standard_normal((N_FRAMES, 3)) for _ in range(4)]
    study = from_images(imgs, events, mask, confounds=confounds, standardize="none")
    for place, run in ((0, 0), (13, 2)):
        series = imgs[run].get_fdata()[inside_of(mask)].T
        centred = confounds[run] - confounds[run].mean(0)
        residual = series - centred @ np.linalg.lstsq(centred, series, rcond=None)[0]
        # nilearn takes the mean out with the confounds.
        found = study.frames["sub-01"][place : place + 6]
        np.testing.assert_allclose(found - found.mean(0), (residual[9:15] - residual[9:15].mean(0)), atol=1e-3)


@pytest.mark.parametrize("wrong", [np.full((N_FRAMES, 2), np.nan), np.ones((7, 2)), "nowhere.tsv"])
def test_confounds_that_do_not_fit_are_named_by_run(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any, wrong: Any
) -> None:
    with pytest.raises(StudyError, match=naming("run-2", "sub-01")):
        from_images(imgs, events, mask, confounds=[None, None, wrong, None])


# --- voxels without signal


@pytest.mark.parametrize("standardize", ["rest", "run", "none"])
@pytest.mark.parametrize("smoothing_fwhm", [None, 5.0])
def test_voxels_without_signal_are_dropped_for_everybody_and_counted(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any, standardize: str, smoothing_fwhm: float | None
) -> None:
    voxels = np.argwhere(inside_of(mask))
    bad = [2, 50, 90]
    for run, voxel, value in ((0, 2, 0.0), (1, 50, 900.0)):
        np.asarray(imgs[run].dataobj)[tuple(voxels[voxel])] = value
    np.asarray(imgs[3].dataobj)[(*voxels[90], 39)] = np.nan
    how = {"standardize": standardize, "smoothing_fwhm": smoothing_fwhm}
    with pytest.warns(UserWarning, match=naming("3 voxel")):
        study = from_images(imgs, events, mask, min_coverage=1.0, **how)
    good = np.delete(np.arange(len(voxels)), bad)
    np.testing.assert_allclose(study.coordinates, voxels[good] @ AFFINE[:3, :3].T + AFFINE[:3, 3], atol=1e-6)
    assert len(positions_of(study.mask_img)) == len(good)
    if smoothing_fwhm is None:
        for participant, frames in expected_frames(imgs, mask, standardize).items():
            np.testing.assert_allclose(study.frames[participant], frames[:, good], rtol=1e-5, atol=1e-5)
    for frames in study.frames.values():
        assert np.isfinite(frames).all()
        assert not (frames == 0).all(0).any()
    with pytest.warns(UserWarning, match=naming("2 of 2")):
        study = from_images(imgs, events, mask, standardize=standardize, smoothing_fwhm=smoothing_fwhm)
    assert study.n_voxels == len(voxels)
    unseen = {label: np.flatnonzero(~seen).tolist() for label, seen in study.coverage.items()}
    assert sorted(unseen.values()) == [[2], [50, 90]]
    for label, voxel in unseen.items():
        assert not study.frames[label][:, voxel].any()


def positions_of(mask: Any) -> np.ndarray:
    return np.argwhere(inside_of(mask))


def test_a_voxel_that_varies_in_trials_only_has_no_zscore_by_rest(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any
) -> None:
    voxel = tuple(positions_of(mask)[7])
    np.asarray(imgs[2].dataobj)[voxel][[*range(9), *range(15, 20), *range(27, 37)]] = 1000
    with pytest.warns(UserWarning, match=naming("1 voxel")):
        assert from_images(imgs, events, mask, min_coverage=1.0).n_voxels == inside_of(mask).sum() - 1
    assert from_images(imgs, events, mask, standardize="run").n_voxels == inside_of(mask).sum()


def test_without_a_usable_voxel_the_study_is_refused(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> None:
    np.asarray(imgs[1].dataobj)[...] = 5
    with pytest.raises(StudyError, match="voxel"):
        from_images(imgs, events, mask)


# --- what is said


def test_what_does_not_fit_is_said_once_with_counts(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> None:
    odd = [
        events[0],
        pd.concat([events[1], pd.DataFrame({"onset": [200.0], "duration": 4.0, "trial_type": "face"})]),
        pd.concat([events[2], pd.DataFrame({"onset": [17.0, 70.0], "duration": 4.0, "trial_type": "face"})]),
        events[3],
    ]
    other = [*imgs[:3], scan(9, 80, 1.0)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        from_images(other, odd, mask)
    (message,) = [str(one.message) for one in said if one.category is UserWarning]
    assert_names(message, "1 trial", "1 event", "2 frame", "TR", {2.0: 3, 1.0: 1})


def test_nothing_is_said_of_runs_that_fit(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        study = from_images(imgs, events, mask)
    assert study.n_trials == sum((table["trial_type"] != "rest").sum() for table in events)


def test_runs_with_another_tr_are_cut_by_their_own(events: list[pd.DataFrame], mask: Any) -> None:
    imgs = [scan(0), scan(1, 80, 1.0)]
    with pytest.warns(UserWarning, match=naming("TR")):
        study = from_images(imgs, events[:2], mask, ["a", "b"], standardize="none")
    np.testing.assert_allclose(study.frames["a"][:6], imgs[0].get_fdata()[inside_of(mask)].T[9:15], rtol=1e-6)
    np.testing.assert_allclose(study.frames["b"][:12], imgs[1].get_fdata()[inside_of(mask)].T[18:30], rtol=1e-6)


def test_a_header_that_contradicts_t_r_is_said_and_t_r_used(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any
) -> None:
    with pytest.warns(UserWarning, match=naming("run-1", "participant a", 2, 1)):
        study = from_images(imgs[:1], [events[0][:2]], mask, ["a"], t_r=1.0, standardize="none")
    series = imgs[0].get_fdata()[inside_of(mask)].T
    np.testing.assert_allclose(study.frames["a"], series[18:30], rtol=1e-6)


def test_the_quality_of_a_run_is_in_numbers(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> None:
    np.asarray(imgs[0].dataobj)[tuple(positions_of(mask)[7])] = 0
    kept = np.setdiff1d(np.arange(N_FRAMES), [3, 10, 11])
    runs = [
        Run(imgs[0], events[0], "sub-01", "run-1", "ses-a", start_time=1.0, sample_mask=kept),
        Run(imgs[2], events[2], "sub-01", "run-2", "ses-b"),
    ]
    prepared = prepare_participant(runs, mask, Preparation(rest="rest"))
    assert prepared.trials["session"].tolist() == ["ses-a", "ses-a", "ses-b", "ses-b"]
    assert (~prepared.usable).sum() == 1
    first, second = prepared.quality.to_dict("records")
    assert first == {
        "participant": "sub-01",
        "run": "run-1",
        "session": "ses-a",
        "frames": 40,
        "frames_kept": 37,
        "frames_spoiled": 0,
        "trials": 2,
        "trial_frames": 11,
        "rest_frames": 23,
        "trials_without_frames": 0,
        "events_past_the_end": 0,
        "frames_in_two_events": 0,
        "t_r": 2.0,
        "start_time": 1.0,
        "voxels": 116,
        "voxels_lost": 1,
        "image": "run run-1 of participant sub-01",
        "events": "events of run run-1 of participant sub-01",
    }
    assert (second["trial_frames"], second["rest_frames"], second["voxels_lost"]) == (13, 24, 0)


# --- what is refused


def test_lists_must_have_an_entry_a_run(imgs: list[Any], events: list[pd.DataFrame], mask: Any) -> None:
    for name, options in {
        "participants": {"participants": WHO[:3]},
        "confounds": {"confounds": [None]},
        "sample_masks": {"sample_masks": [None] * 5},
        "runs": {"runs": ["1"]},
    }.items():
        with pytest.raises(StudyError, match=naming(name, 4)):
            from_images(imgs, events, mask, **options)
    for wrong in (events[:3], events[0], "events.tsv"):
        with pytest.raises(StudyError, match=naming("events", 4)):
            from_images(imgs, wrong, mask)  # type: ignore[arg-type]
    with pytest.raises(StudyError, match=naming("imgs")):
        Study.from_images([], [])


@pytest.mark.parametrize("one", ["bold.nii.gz", Path("bold.nii.gz"), scan(0)])
def test_one_image_is_not_a_list(one: Any, events: list[pd.DataFrame]) -> None:
    with pytest.raises(StudyError, match=naming("imgs", type(one).__name__)):
        Study.from_images(one, events)


def test_a_broken_run_is_named_by_its_file(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any, tmp_path: Path
) -> None:
    images, tables = paths_of(tmp_path, imgs, events)
    whole = images[2].read_bytes()
    images[2].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StudyError) as error:
        from_images(images, tables, mask)
    assert_names(error.value, images[2])
    images[2].write_bytes(whole)
    nibabel.Nifti1Image(imgs[2].get_fdata()[..., 0], AFFINE).to_filename(images[2])
    with pytest.raises(StudyError) as error:
        from_images(images, tables, mask)
    assert_names(error.value, images[2], SHAPE)


def test_broken_events_are_named_by_file_and_row(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any, tmp_path: Path
) -> None:
    images, tables = paths_of(tmp_path, imgs, events)
    text = tables[3].read_text()
    for old, new, things in (
        ("onset\t", "start\t", ["onset"]),
        ("\n37.0\t", "\nsoon\t", ["line 5", "onset", "'soon'"]),
        ("\t14\t", "\t-14\t", ["line 5", "duration", -14]),
        ("\n37.0\t", "\nn/a\t", ["line 5", "onset", "n/a"]),
        ("\t14\tface", "\t14\tn/a", ["line 5", "trial_type", "n/a", 1, 5]),
        ("face", "rest", ["trial"]),
    ):
        tables[3].write_text(text.replace(old, new))
        with pytest.raises(StudyError) as error:
            from_images(images, tables, mask)
        assert_names(error.value, tables[3], *things)


def test_too_little_rest_is_named_by_run(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any, tmp_path: Path
) -> None:
    images, tables = paths_of(tmp_path, imgs, events)
    with pytest.raises(StudyError) as error:
        from_images(images, tables, mask, min_rest_frames=25)
    assert_names(error.value, images[0], 24, 25)


def test_a_mask_of_another_grid_is_refused_or_resampled_to(
    imgs: list[Any], events: list[pd.DataFrame], mask: Any, tmp_path: Path
) -> None:
    images, tables = paths_of(tmp_path, imgs, events)
    finer = AFFINE @ np.diag([0.5, 0.5, 0.5, 1])
    other = nibabel.Nifti1Image(np.ones((7, 9, 5), dtype=np.uint8), finer)
    with pytest.raises(StudyError) as error:
        from_images(images, tables, other)
    assert str(error.value).startswith(f"{images[0]}: its grid {SHAPE} is not the mask's (7, 9, 5)")
    study = from_images(images, tables, other, other_grid="resample", standardize="none")
    np.testing.assert_allclose(study.mask_img.affine, finer)
    # Every second voxel of the finer grid is one of the images'.
    coarse = np.argwhere(np.ones((7, 9, 5)))
    on_grid = (coarse % 2 == 0).all(1)
    series = imgs[0].get_fdata()[tuple((coarse[on_grid] // 2).T)].T
    np.testing.assert_allclose(study.frames["sub-01"][:6][:, on_grid], series[9:15], rtol=1e-4)


def test_an_empty_mask_is_refused(imgs: list[Any], events: list[pd.DataFrame], tmp_path: Path) -> None:
    nibabel.Nifti1Image(np.zeros(SHAPE, dtype=np.uint8), AFFINE).to_filename(tmp_path / "mask.nii.gz")
    with pytest.raises(StudyError) as error:
        from_images(imgs, events, tmp_path / "mask.nii.gz")
    assert_names(error.value, tmp_path / "mask.nii.gz")
