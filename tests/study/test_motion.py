"""Motion of a run, read from its confounds."""

from pathlib import Path

import numpy as np
import pytest

from ntfa.study.motion import as_text, framewise_displacement, motion_summary, of_frames


def confounds(path: Path, values: list[str], column: str = "framewise_displacement") -> Path:
    path.write_text("\n".join([f"trans_x\t{column}", *(f"0.1\t{value}" for value in values)]) + "\n")
    return path


def test_motion_is_read_and_summed_up(tmp_path: Path) -> None:
    found = framewise_displacement(confounds(tmp_path / "c.tsv", ["n/a", "0.1", "0.7", "0.4"]))
    assert found is not None
    np.testing.assert_allclose(found, [np.nan, 0.1, 0.7, 0.4])
    assert motion_summary(found) == {"mean_fd": pytest.approx(0.4), "max_fd": 0.7, "frames_high_fd": 1}


def test_without_motion_nothing_is_said(tmp_path: Path) -> None:
    assert framewise_displacement(None) is None
    assert framewise_displacement(tmp_path / "missing.tsv") is None
    assert framewise_displacement(confounds(tmp_path / "c.tsv", ["0.1"], column="rot_x")) is None
    nothing = framewise_displacement(confounds(tmp_path / "d.tsv", ["n/a", "n/a"]))
    assert motion_summary(nothing) == motion_summary(None) == {}


def test_a_damaged_file_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_bytes(b"\xff\xfe\x00 framewise_displacement\n")
    assert framewise_displacement(tmp_path / "c.tsv") is None


def test_motion_of_a_trial_is_one_field_of_its_table() -> None:
    values = np.array([np.nan, 0.1234, 2.0])
    assert as_text(values) == "n/a 0.123 2.000"
    np.testing.assert_allclose(of_frames(as_text(values), 3), [np.nan, 0.123, 2.0])
    # Read back from a file, a single number is one; what does not go with the trial, or is missing, is not known.
    np.testing.assert_allclose(of_frames(0.25, 1), [0.25])
    for unknown in (as_text(values), np.nan, None, "x y"):
        assert np.isnan(of_frames(unknown, 2)).all()
