"""Motion of a run, read from its confounds."""

from pathlib import Path

import numpy as np
import pytest

from ntfa.study.motion import framewise_displacement, motion_summary


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
