"""Properties of readers that hold for any content: what is written comes back, and order and units do not matter."""

import gzip
import json
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ntfa import Study
from ntfa.errors import StudyError
from ntfa.files.reading import read_json
from ntfa.report.files import safe_file_name
from ntfa.study.events import read_events, read_table
from ntfa.study.folder import safe_name

few = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
times = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))
# What a TSV file may hold between its tabs: no control characters, and no quotes, which mean something there.
words = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters='"\ufeff'), min_size=1, max_size=8)
labels = words.filter(lambda text: text.strip() not in ("", "n/a"))
any_text = st.text(max_size=20)


def written(text: str | bytes) -> Path:
    path = Path(tempfile.mkdtemp()) / "x.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@few
@given(st.lists(st.tuples(times, st.floats(0, 1e4).map(lambda value: round(value, 6)), labels), min_size=1, max_size=8))
def test_events_come_back_in_order_of_onset(rows: Sequence[tuple[float, float, str]]) -> None:
    text = "onset\tduration\ttrial_type\n" + "".join(f"{onset!r}\t{lasts!r}\tx{name}\n" for onset, lasts, name in rows)
    events = read_events(written(text), "x")
    expected = sorted(rows, key=lambda row: row[0])
    assert events["onset"].tolist() == [onset for onset, _, _ in expected]
    assert events["duration"].tolist() == [lasts for _, lasts, _ in expected]
    assert events["trial_type"].tolist() == [f"x{name}" for _, _, name in expected]


@few
@given(st.binary(max_size=300))
def test_any_bytes_are_a_table_or_an_error_of_ours(data: bytes) -> None:
    path = written(data)
    try:
        said, table = "", read_table(path, str(path))
    except StudyError as error:
        said, table = str(error), pd.DataFrame()
    assert not said or (str(path) in said and "\n" not in said)
    assert table.columns.is_unique


@few
@given(st.lists(st.lists(st.text(st.sampled_from('ab"\t \r\n'), max_size=4), max_size=4), max_size=5))
def test_no_row_is_lost_in_silence(rows: list[list[str]]) -> None:
    text = "a\tb\n" + "\n".join("\t".join(row) for row in rows)
    try:
        table = read_table(written(text), "x")
    except StudyError:
        return
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert len(table) == sum(bool(line.strip(" ")) for line in lines) - 1
    assert list(table.columns) == ["a", "b"]


@few
@given(any_text)
def test_any_label_is_one_plain_file_name_and_no_other_label_has_it(label: str) -> None:
    name = safe_file_name(label)
    assert name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert safe_file_name(label + "x") != name
    if label.isprintable():
        assert not set(safe_name(label)) & set("/\\\0")


@few
@given(st.recursive(st.none() | st.booleans() | st.floats() | any_text, lambda inner: st.lists(inner, max_size=3)))
def test_json_comes_back_or_is_an_error(value: object) -> None:
    path = written(json.dumps({"a": value}))
    np.testing.assert_equal(read_json(path), {"a": value})


@few
@given(
    slope=st.floats(0.01, 100).map(lambda value: float(np.float32(value))),
    shift=st.floats(-1000, 1000).map(lambda value: float(np.float32(value))),
    kind=st.sampled_from(["int16", "float32", "uint8", "float64"]),
    signs=st.tuples(*[st.sampled_from([-1, 1])] * 3),
    suffix=st.sampled_from([".nii", ".nii.gz"]),
)
def test_scaling_type_orientation_and_compression_do_not_change_a_study(
    slope: float, shift: float, kind: str, signs: tuple[int, int, int], suffix: str
) -> None:
    random = np.random.default_rng(0)
    data = random.integers(50, 200, (3, 2, 2, 20))
    affine = np.diag([2.0, 3.0, 4.0, 1.0])
    affine[:3, :3] *= np.array(signs)
    img = nibabel.Nifti1Image(data.astype(kind), affine)
    img.header.set_zooms((2, 3, 4, 2))
    path = Path(tempfile.mkdtemp()) / f"bold{suffix}"
    img.to_filename(path)
    _set_scaling(path, slope, shift)
    mask = nibabel.Nifti1Image(np.ones((3, 2, 2), np.uint8), affine)
    events = pd.DataFrame({"onset": [0.0, 20.0], "duration": [10.0, 10.0], "trial_type": ["a", "b"]})
    study = Study.from_images([path], [events], ["p"], mask, t_r=2.0, delay=0.0, standardize="run")
    expected = data.reshape(12, 20).T.astype(float)
    expected = (expected - expected.mean(0)) / expected.std(0, ddof=1)
    rows = [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    # float32 of the scaled value keeps seven digits of something far from zero.
    far = 1 + abs(shift) / slope
    np.testing.assert_allclose(study.frames["p"], expected[rows], atol=1e-5 + 2e-7 * far)


def _set_scaling(path: Path, slope: float, shift: float) -> None:
    raw = bytearray(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    struct.pack_into("<2f", raw, 112, slope, shift)
    path.write_bytes(gzip.compress(bytes(raw)) if path.suffix == ".gz" else bytes(raw))
