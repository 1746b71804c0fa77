"""Data quality in a report: one row per run, problems first, and nobody's folders."""

import pandas as pd
import pytest

from ntfa.report.quality import quality_in_words, quality_of, without_folders


def runs(**changes: list[object]) -> pd.DataFrame:
    table = {
        "participant": ["sub-01", "sub-02", "sub-03"],
        "run": ["task-x_run-1"] * 3,
        "frames": [100, 100, 100],
        "frames_kept": [98, 99, 100],
        "trials": [12, 12, 11],
        "voxels": [1000, 1000, 1000],
        "voxels_lost": [0, 1, 0],
        "mean_fd": [0.12, 0.2, 0.11],
        "image": ["/home/jane/study/sub-01/func/sub-01_task-x_run-1_desc-preproc_bold.nii.gz"] * 3,
        "events": ["run 1 of participant a/b"] * 3,
    }
    return pd.DataFrame({**table, **changes})


def test_a_run_is_a_row_with_its_bids_name() -> None:
    quality = quality_of(runs(session=["ses-2"] * 3))
    assert [row.name for row in quality.rows] == [f"sub-0{i}_ses-2_task-x_run-1" for i in (1, 2, 3)]
    assert quality.rows[0].frames is not None
    assert quality.rows[0].frames.length == pytest.approx(0.98)
    assert quality.n_problems == 0


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("frames_kept", [98, 99, 70]),
        ("voxels_lost", [0, 0, 200]),
        ("mean_fd", [0.1, 0.1, 0.9]),
        ("trials_without_frames", [0, 0, 2]),
        ("events_past_the_end", [0, 0, 1]),
    ],
)
def test_runs_with_problems_come_first(column: str, values: list[object]) -> None:
    quality = quality_of(runs(**{column: values}))
    assert quality.n_problems == 1
    assert quality.rows[0].name.startswith("sub-03")
    assert quality.rows[0].problems
    assert [row.name[:6] for row in quality.rows[1:]] == ["sub-01", "sub-02"]
    assert "sub-03" in quality_in_words(quality)


def test_the_longest_bar_of_motion_is_that_of_the_worst_run() -> None:
    lengths = [row.motion.length for row in quality_of(runs(mean_fd=[0.5, 2.0, 1.0])).rows if row.motion]
    assert sorted(lengths) == pytest.approx([0.25, 0.5, 1.0])
    quiet = quality_of(runs(mean_fd=[0.05, 0.1, 0.1])).rows[0]
    assert quiet.motion is not None
    assert quiet.motion.length == pytest.approx(0.1)


def test_what_is_not_known_is_left_out() -> None:
    quality = quality_of(pd.DataFrame({"participant": ["a", "b"], "mean_fd": [None, 0.3], "frames": ["n/a", 3]}))
    assert not quality.has_frames
    assert not quality.has_voxels
    assert [row.motion is None for row in quality.rows] == [True, False]


def test_folders_are_left_out_and_descriptions_are_not() -> None:
    table = without_folders(runs())
    assert set(table["image"]) == {"sub-01_task-x_run-1_desc-preproc_bold.nii.gz"}
    assert set(table["events"]) == {"run 1 of participant a/b"}
    assert "jane" not in table.to_csv()
    windows = without_folders(pd.DataFrame({"image": ["C:\\Users\\jane\\a_bold.nii.gz"]}))
    assert windows["image"].tolist() == ["a_bold.nii.gz"]
