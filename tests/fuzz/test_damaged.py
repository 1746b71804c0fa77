"""Damaged files that once led astray: a traceback, an endless allocation, or a success that was none."""

import gzip
import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from fuzz_readers import READERS, fitted, simulation
from fuzz_run import guarded
from helpers import assert_names
from safetensors.numpy import load_file, save_file

from ntfa import NTFA, TLSA, Study
from ntfa.comparison.report import write_comparison_report
from ntfa.errors import ModelError, NTFAError, OutputError, StudyError
from ntfa.files.reading import load_array, read_json
from ntfa.report.build import load_any
from ntfa.report.evidence import read_evidence
from ntfa.report.files import read_labels
from ntfa.simulation import Truth
from ntfa.study.bids import Selection, _read_json, find_runs
from ntfa.study.events import read_events, read_table
from ntfa.study.images import Run, load_mask, open_image, repetition_time
from ntfa.study.participants import participant_labels

DEEP = "[" * 20_000 + "]" * 20_000


def made(name: str, folder: Path) -> Path:
    READERS[name].make(folder)
    return folder


def refused(call: Callable[..., Any], *args: Any, kind: type[NTFAError] = StudyError, **options: Any) -> str:
    with pytest.raises(kind) as error, guarded():
        call(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- images


def with_header(path: Path, *fields: tuple[int, str, Any]) -> Path:
    """Change fields of a NIfTI file's header, each at an offset and of a type."""
    zipped = path.suffix == ".gz"
    raw = bytearray(gzip.decompress(path.read_bytes()) if zipped else path.read_bytes())
    for place, code, value in fields:
        struct.pack_into(f"<{code}", raw, place, *(value if isinstance(value, tuple) else (value,)))
    path.write_bytes(gzip.compress(bytes(raw)) if zipped else bytes(raw))
    return path


def read_run(folder: Path) -> Study:
    name = "image, gz" if (folder / "bold.nii.gz").exists() else "image, plain"
    study: Study = READERS[name].read(folder)
    return study


@pytest.mark.parametrize("kind", ["image, gz", "image, plain"])
@pytest.mark.parametrize(
    "dims", [(4, 10_000, 10_000, 10_000, 1), (4, 4, 3, 3, 32_767), (4, 32_767, 32_767, 32_767, 24)]
)
def test_a_header_that_claims_a_trillion_voxels_costs_nothing(kind: str, dims: tuple[int, ...], tmp_path: Path) -> None:
    made(kind, tmp_path)
    read_run(tmp_path)
    with_header(next(tmp_path.glob("bold*")), (40, "5h", dims))
    with_header(next(tmp_path.glob("mask*")), (40, "4h", (3, *dims[1:4])))
    tracemalloc.start()
    try:
        message = refused(read_run, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(dims[1]) in message
    assert peak < 5e6


def test_a_bomb_is_refused_by_its_claim(tmp_path: Path) -> None:
    # 8 GiB of zeros, in deflate's own words: the header is true, the file is a few MB, nothing must be unpacked.
    made("image, gz", tmp_path)
    header = bytearray(gzip.decompress((tmp_path / "bold.nii.gz").read_bytes())[:352])
    struct.pack_into("<5h", header, 40, 4, 512, 512, 128, 64)
    block = gzip.compress(bytes(2**20), 9)
    (tmp_path / "bold.nii.gz").write_bytes(gzip.compress(bytes(header)) + block * 2**13)
    assert "bold.nii.gz" in refused(open_image, Run(tmp_path / "bold.nii.gz", None, "sub-01"))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ([(280, "4f", (0.0, 0.0, 0.0, 0.0))], "affine"),
        ([(280, "f", float("nan"))], "affine"),
        ([(280, "f", float("inf"))], "affine"),
        ([(70, "h", 32), (72, "h", 64)], "complex64"),
        ([(70, "h", 128), (72, "h", 24)], "bold.nii"),
        ([(108, "f", float("inf"))], "bold.nii"),
        ([(40, "5h", (4, 4, 3, 0, 24))], "bold.nii"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused(fields: list[Any], named: str, tmp_path: Path) -> None:
    path = made("image, plain", tmp_path) / "bold.nii"
    with_header(path, *fields)
    with pytest.raises(StudyError, match=named) as error:
        read_run(tmp_path)
    assert str(path) in str(error.value)


def test_a_flipped_affine_is_no_damage(tmp_path: Path) -> None:
    made("image, plain", tmp_path)
    straight = read_run(tmp_path)
    for name in ("bold.nii", "mask.nii"):
        with_header(tmp_path / name, (280, "4f", (-3.0, 0.0, 0.0, 9.0)))
    flipped = read_run(tmp_path)
    np.testing.assert_array_equal(flipped.coordinates[:, 0], 9 - straight.coordinates[:, 0])
    np.testing.assert_array_equal(flipped.frames["sub-01"], straight.frames["sub-01"])


@pytest.mark.parametrize(("value", "given"), [(float("inf"), None), (float("nan"), None), (2.0, -1.0), (2.0, np.inf)])
def test_a_repetition_time_that_is_none_is_refused(value: float, given: float | None, tmp_path: Path) -> None:
    path = made("image, plain", tmp_path) / "bold.nii"
    with_header(path, (92, "f", value))
    run = Run(path, None, "sub-01", t_r=given)
    assert str(path) in refused(lambda: repetition_time(run, open_image(run)))


def test_an_unknown_unit_of_time_is_not_guessed(tmp_path: Path) -> None:
    path = made("image, plain", tmp_path) / "bold.nii"
    with_header(path, (123, "b", 7))
    run = Run(path, None, "sub-01")
    assert "say t_r" in refused(lambda: repetition_time(run, open_image(run)))


def test_a_voxel_that_hardly_varies_is_dropped(tmp_path: Path) -> None:
    made("image, plain", tmp_path)
    data = np.asanyarray(nibabel.load(tmp_path / "bold.nii").dataobj).copy()
    data[0, 0, 0] = 1e-44 * (np.arange(data.shape[3]) % 2)
    data[0, 0, 0, 7] = 1e30
    nibabel.Nifti1Image(data, np.diag([3.0, 3.0, 4.0, 1.0])).to_filename(tmp_path / "bold.nii")
    with guarded(), pytest.warns(UserWarning, match="1 voxel"):
        assert np.isfinite(read_run(tmp_path).frames["sub-01"]).all()


def test_infinities_of_both_signs_do_not_spoil_the_brain_mask(tmp_path: Path) -> None:
    path = made("image, header", tmp_path) / "bold.nii.gz"
    data = np.asanyarray(nibabel.load(path).dataobj).copy()
    data[6, 6, 6, :2] = np.inf, -np.inf
    nibabel.Nifti1Image(data, np.diag([3.0, 3.0, 3.0, 1.0])).to_filename(path)
    with guarded():
        study = Study.from_images([path], [tmp_path / "events.tsv"], t_r=2.0, rest=("rest",), min_rest_frames=3)
    assert np.isfinite(study.frames["1"]).all()


def test_voxels_with_signalling_nan_or_beyond_float32_are_dropped(tmp_path: Path) -> None:
    path = made("image, plain", tmp_path) / "bold.nii"
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, 352, 0x7F800001)
    struct.pack_into("<f", raw, 356, float("inf"))
    path.write_bytes(bytes(raw))
    with guarded(), pytest.warns(UserWarning, match="2 voxel"):
        study = read_run(tmp_path)
    assert study.n_voxels == 4 * 3 * 3 - 2
    assert np.isfinite(study.frames["sub-01"]).all()


def test_an_image_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bold.gii"
    nibabel.save(nibabel.gifti.GiftiImage(), path)
    assert str(path) in refused(open_image, Run(path, None, "sub-01"))
    assert str(path) in refused(load_mask, path)


# --- tables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("onset\tduration\tonset\n1\t2\t3\n", "'onset' twice"),
        ("onset\tduration\ta\n1\t2\tx\ty\n", "line 2 has 4 values, but the header names 3 columns"),
        ("onset\tduration\ta\n1\t2\n", "line 2 has 2 values"),
        ('onset\tduration\ta\n1\t2\t"x\n3\t4\ty\n5\t6\tz"\n', "is a quote missing"),
        ('onset\tduration\ta\n1\t2\t"x\n', "cannot be read as a table"),
        ("onset\tduration\ta\n1\t2\tx\0\n", "NUL"),
        ("\n\n", "empty"),
        ("\t\nonset\tduration\n1\t2\n", "names no column"),
    ],
)
def test_what_pandas_passes_over_in_silence_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "events.tsv"
    path.write_text(text)
    said = refused(read_events, path, str(path))
    assert message in said
    assert str(path) in said


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1", "utf-32"])
def test_other_encodings_are_refused(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "events.tsv"
    path.write_bytes("onset\tduration\tné\n1\t2\té\n".encode(encoding))
    assert str(path) in refused(read_events, path, str(path))


def test_tabs_at_the_ends_of_lines_and_quoted_tabs_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "events.tsv"
    path.write_bytes(b'\xef\xbb\xbfonset\tduration\tname\t\r\n1\t2\t"a\tb"\t\r\n\r\n3\t4\tc\t\r\n')
    table = read_table(path, str(path))
    assert table["name"].tolist() == ["a\tb", "c"]


def test_a_blank_stimulus_is_named_by_its_line(tmp_path: Path) -> None:
    made("events, cut", tmp_path)
    path = tmp_path / "events.tsv"
    path.write_text(path.read_text().replace("\thouse\t", "\t \t", 1))
    assert_names(refused(read_run, tmp_path), "events.tsv", "line 4")


def test_a_participant_without_a_label_is_refused(tmp_path: Path) -> None:
    (tmp_path / "participants.tsv").write_text("participant_id\tage\nsub-01\t20\nn/a\t30\n")
    assert "line 3" in refused(participant_labels, tmp_path)


def test_confounds_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    made("confounds", tmp_path)
    path = next(tmp_path.glob("*timeseries.tsv"))
    table = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    for column in table:
        table.loc[5, column] = "n/a"
    table.to_csv(path, sep="\t", index=False)
    assert "sub-01_task-x" in refused(READERS["confounds"].read, tmp_path)


# --- JSON and arrays


@pytest.mark.parametrize("text", [DEEP, '{"a": ' * 20_000 + "1" + "}" * 20_000, "[1]", '{"a": "\\ud800"}', "{", ""])
def test_json_that_no_sidecar_holds_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert str(path) in refused(_read_json, path)
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        read_json(path)


def test_an_array_that_claims_a_trillion_values_costs_nothing(tmp_path: Path) -> None:
    made("saved study", tmp_path)
    path = tmp_path / "study" / "coordinates.npy"
    data = path.read_bytes()
    length = struct.unpack("<H", data[8:10])[0]
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (333333333333, 3), }".ljust(length - 1) + b"\n"
    path.write_bytes(data[:10] + header + data[10 + length :])
    assert "coordinates.npy" in refused(Study.open, tmp_path / "study")


def test_an_archive_of_arrays_and_pickled_objects_are_no_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.ones(3))
    np.save(tmp_path / "b.npy", np.array([None, {}], dtype=object), allow_pickle=True)
    for name in ("a.npz", "b.npy"):
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            load_array(tmp_path / name)


@pytest.mark.parametrize("name", ["study.json", "trials.tsv", "coordinates.npy", "mask.nii.gz", "frames/*.npy"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_in_place_of_a_file_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    path = next((made("saved study", tmp_path) / "study").glob(name))
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else os.symlink("/dev/zero", path)
    assert path.name in refused(Study.open, tmp_path / "study")


def test_complex_coordinates_are_refused(tmp_path: Path) -> None:
    path = made("saved study", tmp_path) / "study" / "coordinates.npy"
    np.save(path, np.load(path) + 1j)
    assert "complex" in refused(Study.open, tmp_path / "study")


def test_a_frame_number_beyond_all_bounds_is_refused(tmp_path: Path) -> None:
    path = made("saved study", tmp_path) / "study" / "trials.tsv"
    table = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    table.loc[2, "stop"] = "9" * 400
    table.to_csv(path, sep="\t", index=False)
    assert "row 2" in refused(Study.open, tmp_path / "study")


def test_two_participants_do_not_share_a_file(tmp_path: Path) -> None:
    folder = made("saved study", tmp_path) / "study"
    content = json.loads((folder / "study.json").read_text())
    content["participants"] = dict.fromkeys(content["participants"], next(iter(content["participants"].values())))
    (folder / "study.json").write_text(json.dumps(content))
    assert "study.json" in refused(Study.open, folder)


# --- models


@pytest.fixture
def model(tmp_path: Path) -> Path:
    fitted(NTFA).save(tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, path: list[str], value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    inner = config
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["parameters", "n_factors"], 10**12),
        (["parameters", "n_factors"], 10**30),
        (["parameters", "embedding_dim"], 10**9),
        (["parameters", "n_factors"], -1),
        (["parameters", "inference"], "x"),
        (["labels", "participants"], ["sub-01", "sub-01", "sub-02"]),
        (["labels", "participants"], "abc"),
        (["labels", "stimuli"], [1, 2]),
        (["labels", "owners"], [["sub-01", [1], 2]]),
        (["labels", "owners"], ["a", "b", "c"]),
        (["units", "length"], float("nan")),
        (["units", "length"], 0.0),
        (["units", "intensity"], -1.0),
        (["units", "origin"], [1e400, 0, 0]),
        (["units", "origin"], [0, 0, 1e308]),
        (["counts", "data"], 0),
        (["seed"], 1e400),
        (["labels", "participants"], ["\ud800", "b", "c"]),
    ],
)
def test_a_config_that_no_fit_wrote_is_refused(path: list[str], value: Any, model: Path) -> None:
    change(model, path, value)
    assert str(model) in refused(NTFA.load, model, kind=ModelError)


@pytest.mark.parametrize("scale", [0.0, float("nan"), -1.0, "x"])
def test_a_design_that_no_fit_wrote_is_refused(scale: Any, tmp_path: Path) -> None:
    fitted(TLSA).save(tmp_path / "model")
    columns = json.loads((tmp_path / "model/config.json").read_text())["labels"]["design"]["columns"]
    change(tmp_path / "model", ["labels", "design", "columns"], [{**columns[0], "scale": scale}])
    refused(TLSA.load, tmp_path / "model", kind=ModelError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("centers.mean", np.nan),
        ("z_stimulus.mean", np.inf),
        ("log_widths.mean", 1e4),
        ("log_widths.mean", -1e4),
        ("coordinates", np.nan),
        ("weight_network.4.weight", 1e200),
    ],
)
def test_tensors_that_come_to_nothing_are_refused(name: str, value: float, model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors[name] = np.array(tensors[name])
    tensors[name].reshape(-1)[0] = value
    save_file(tensors, model / "model.safetensors")
    assert str(model) in refused(NTFA.load, model, kind=ModelError)


def test_a_mask_of_other_voxels_is_refused(model: Path) -> None:
    mask = nibabel.load(model / "mask.nii.gz")
    affine = mask.affine.copy()
    affine[0, 3] += 1
    nibabel.Nifti1Image(np.asanyarray(mask.dataobj), affine).to_filename(model / "mask.nii.gz")
    assert str(model) in refused(NTFA.load, model, kind=ModelError)


@pytest.mark.parametrize(("name", "value"), [("command", 5), ("command", [1]), ("versions", "x")])
def test_a_config_that_a_report_cannot_show_is_refused(name: str, value: Any, model: Path) -> None:
    change(model, [name], value)
    assert str(model) in refused(load_any, model, kind=ModelError)


# --- truths, reports and comparisons


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        *[("factors", "log_width", value) for value in ("n/a", "inf", "1e300")],
        *[("participant_factors", "log_width", value) for value in ("-inf", "-1000")],
        *[("weights", "factor0", value) for value in ("x", "nan")],
        ("participants", "z1", "n/a"),
        ("participant_factors", "x", "nan"),
        ("participant_factors", "x", "1e308"),
    ],
)
def test_a_truth_without_numbers_is_refused(table: str, column: str, value: str, tmp_path: Path) -> None:
    made("truth", tmp_path)
    path = tmp_path / "truth" / f"truth_{table}.tsv"
    content = pd.read_csv(path, sep="\t", dtype=str)
    content.loc[0, column] = value
    content.to_csv(path, sep="\t", index=False)
    assert str(tmp_path) in refused(Truth.open, tmp_path / "truth", simulation().truth.coordinates)


def test_a_truth_is_numbers_also_where_pandas_reads_text(tmp_path: Path) -> None:
    made("truth", tmp_path)
    path = tmp_path / "truth" / "truth_participant_factors.tsv"
    table = pd.read_csv(path, sep="\t", dtype=str)
    table.loc[0, "x"] = "1_0"
    table.to_csv(path, sep="\t", index=False)
    truth = Truth.open(tmp_path / "truth", simulation().truth.coordinates)
    assert truth.participant_centers[0, 0, 0] == 10
    assert np.isfinite(truth.factors(truth.participants[0])).all()


@pytest.mark.parametrize("value", ["x", "inf", "n/a", "", "9" * 400])
def test_quality_that_is_no_number_is_refused(value: str, tmp_path: Path) -> None:
    made("prepared", tmp_path)
    path = next(tmp_path.glob("out/sub-02/func/*_quality.tsv"))
    table = pd.read_csv(path, sep="\t", dtype=str)
    table["voxels_lost"] = value
    table.to_csv(path, sep="\t", index=False)
    assert str(path) in refused(READERS["prepared"].read, tmp_path)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "a" * 300, "a\0b", "", 3, None])
def test_a_figure_with_a_name_that_is_not_ours_is_refused(name: Any, tmp_path: Path) -> None:
    figures = [{"name": name, "section": "predictions", "caption": "x"}]
    (tmp_path / "report.json").write_text(json.dumps({"figures": figures}))
    assert "report.json" in refused(read_evidence, tmp_path, kind=ModelError)


def test_labels_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    (tmp_path / "labels_stimuli.tsv").write_text("stimulus\tx\na\t1\na\t2\n")
    assert "labels_stimuli.tsv" in refused(read_labels, tmp_path, "stimulus", kind=ModelError)


def test_a_comparison_whose_tables_are_damaged_is_refused(tmp_path: Path) -> None:
    made("comparison", tmp_path)
    (tmp_path / "out/generalisation/table.tsv").write_text("method\nPCA\n")
    assert str(tmp_path / "out") in refused(write_comparison_report, tmp_path / "out", kind=OutputError)


def test_a_pipe_in_place_of_a_sidecar_is_refused(tmp_path: Path) -> None:
    made("confounds", tmp_path)
    path = next(tmp_path.glob("*timeseries.json"))
    path.unlink()
    os.mkfifo(path)
    assert "no file" in refused(READERS["confounds"].read, tmp_path)
    os.mkfifo(tmp_path / "d" / "sub-01" / "func" / "sub-01_task-synthetic_run-01_bold.json")
    assert "_bold.json" in refused(find_runs, tmp_path / "d", Selection())
