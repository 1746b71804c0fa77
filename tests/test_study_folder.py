"""The study as a folder: round trips, all or nothing, and no way out of the folder."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import naming
from test_study import make_mask, make_parts, make_study

from ntfa.errors import OutputError, StudyError
from ntfa.study import Study, StudyWriter
from ntfa.study.folder import safe_name


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    make_study(mask_img=make_mask()).save(tmp_path / "study", notes={"simulated": True})
    return tmp_path / "study"


def contents(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_files_and_description(saved: Path) -> None:
    assert contents(saved) == [
        "coordinates.npy",
        "frames/sub-01.npy",
        "frames/sub-02.npy",
        "frames/sub-03.npy",
        "mask.nii.gz",
        "study.json",
        "trials.tsv",
    ]
    description = json.loads((saved / "study.json").read_text())
    assert description["schema_version"] == 1
    assert description["notes"] == {"simulated": True}
    assert description["participants"]["sub-01"] == "frames/sub-01.npy"
    assert [p.name for p in saved.parent.iterdir()] == ["study"]


def test_round_trip(saved: Path) -> None:
    study, back = make_study(mask_img=make_mask()), Study.open(saved)
    pd.testing.assert_frame_equal(back.trials, study.trials)
    np.testing.assert_array_equal(back.coordinates, study.coordinates)
    np.testing.assert_array_equal(back.mask_img.get_fdata(), study.mask_img.get_fdata())
    for participant in study.participants:
        assert isinstance(back.frames[participant], np.memmap)
        np.testing.assert_array_equal(back.frames[participant], study.frames[participant])


def test_opened_frames_are_writable_without_touching_the_file(saved: Path) -> None:
    back = Study.open(saved)
    back.frames["sub-01"][0, 0] = 77.0
    assert Study.open(saved).frames["sub-01"][0, 0] != 77.0


def test_labels_come_back_as_they_were(tmp_path: Path) -> None:
    trials = make_parts()["trials"]
    trials["stimulus"] = trials["stimulus"].replace({"face": "NA", "house": "001", "cat": 'a\t"b"\nc'})
    trials = trials.assign(run="01", score=np.linspace(0, 1, 9) / 3, group=["", "NA", None, *"abcdef"])
    trials.loc[4, "score"] = np.nan
    study = make_study(trials=trials)
    study.save(tmp_path / "study")
    back = Study.open(tmp_path / "study").trials
    assert back["group"].isna().tolist() == study.trials["group"].isna().tolist()
    pd.testing.assert_frame_equal(back.fillna({"group": "-"}), study.trials.fillna({"group": "-"}), check_dtype=False)


@pytest.mark.parametrize("label", ["../../x", "a/b", "..", ".", "a b", "Zoë", "C:\\x", "~", "%2e", "x" * 40])
def test_no_label_leads_out_of_the_folder(tmp_path: Path, label: str) -> None:
    parts = make_parts(n_participants=1)
    parts["frames"] = {label: parts["frames"]["sub-01"]}
    parts["trials"]["participant"] = label
    Study.from_arrays(**parts).save(tmp_path / "in" / "study")
    assert [p.name for p in (tmp_path / "in" / "study" / "frames").iterdir()] == [f"{safe_name(label)}.npy"]
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    assert Study.open(tmp_path / "in" / "study").participants == [label]


def test_safe_names_keep_plain_labels_and_tell_others_apart() -> None:
    assert safe_name("sub-01_A.b") == "sub-01_A.b"
    labels = ["a/b", "a%2Fb", "a b", "a~b", "a_b"]
    names = {safe_name(label) for label in labels}
    assert len(names) == len(labels)
    assert set("".join(names)) <= set("ab%0123456789ABCDEF_")


@pytest.mark.parametrize(
    "name", ["../x.npy", "frames/../../x.npy", "/etc/passwd", "frames/..", "x.npy", "frames/a/b.npy", 3]
)
def test_open_refuses_file_names_outside_frames(saved: Path, name: Any) -> None:
    edit(saved, participants={"sub-01": name})
    with pytest.raises(StudyError, match=naming("sub-01", "frames/")):
        Study.open(saved)


# --- all or nothing


def test_save_refuses_what_exists(saved: Path) -> None:
    before = (saved / "study.json").read_bytes()
    with pytest.raises(OutputError, match=naming(saved)):
        make_study().save(saved)
    assert (saved / "study.json").read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["study"]


def test_overwrite_replaces_everything(saved: Path) -> None:
    (saved / "stray.txt").write_text("old")
    make_study().select(participants="sub-02").save(saved, overwrite=True)
    assert contents(saved) == ["coordinates.npy", "frames/sub-02.npy", "study.json", "trials.tsv"]
    assert [p.name for p in saved.parent.iterdir()] == ["study"]


def test_a_study_can_be_saved_over_itself(saved: Path) -> None:
    Study.open(saved).select(stimuli="cat").save(saved, overwrite=True)
    back = Study.open(saved)
    assert back.stimuli == ["cat"]
    np.testing.assert_array_equal(back.frames["sub-03"], make_study().frames["sub-03"])


def test_overwrite_does_not_replace_a_file_or_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("file", "link"):
        with pytest.raises(OutputError, match=naming(tmp_path / name)):
            make_study().save(tmp_path / name, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["elsewhere", "file", "link"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_failed_write_leaves_the_old_study_alone(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: (saved / name).read_bytes() for name in contents(saved)}
    study = make_study()
    with pytest.raises(KeyboardInterrupt):
        _interrupted_write(saved, study)
    real, calls = os.replace, []

    def fail_second(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError("disk trouble")
        real(source, target)

    monkeypatch.setattr("ntfa.files.folders.exchange", lambda one, other: False)
    monkeypatch.setattr(os, "replace", fail_second)
    with pytest.raises(OSError, match="disk trouble"):
        study.save(saved, overwrite=True)
    assert {name: (saved / name).read_bytes() for name in contents(saved)} == before
    assert [p.name for p in saved.parent.iterdir()] == ["study"]


def _interrupted_write(folder: Path, study: Study) -> None:
    with _writer(folder, study, overwrite=True) as writer:
        writer.add("sub-01", study.frames["sub-01"])
        raise KeyboardInterrupt


def _writer(folder: Path, study: Study, **options: Any) -> StudyWriter:
    return StudyWriter(folder, study.coordinates, study.trials, **options)


def test_writer_keeps_further_files_and_appears_at_the_end(tmp_path: Path) -> None:
    study, folder = make_study(), tmp_path / "deep" / "study"
    with _writer(folder, study) as writer:
        for participant in reversed(writer.participants):
            writer.add(participant, study.frames[participant].astype(np.float64))
        (writer.working_folder / "truth.json").write_text("{}")
        assert not folder.exists()
    assert "truth.json" in contents(folder)
    pd.testing.assert_frame_equal(Study.open(folder).trials, study.trials)


@pytest.mark.parametrize(
    ("participant", "change", "named"),
    [
        ("sub-09", lambda frames: frames, naming("sub-09")),
        ("sub-01", lambda frames: frames[:, :5], naming("sub-01", 5)),
        ("sub-01", lambda frames: frames[:25], naming("row 2", "sub-01", 27)),
        ("sub-01", lambda frames: frames * np.nan, naming("sub-01", 180)),
        ("sub-01", lambda frames: frames, naming("sub-02", "sub-03")),
    ],
)
def test_writer_checks_as_it_goes(tmp_path: Path, participant: str, change: Any, named: str) -> None:
    study = make_study()
    with pytest.raises(StudyError, match=named), _writer(tmp_path / "study", study) as writer:
        writer.add(participant, change(study.frames["sub-01"]))
    assert list(tmp_path.iterdir()) == []


def test_writer_refuses_a_participant_twice(tmp_path: Path) -> None:
    study = make_study()
    with _writer(tmp_path / "study", study) as writer:
        for participant in writer.participants:
            writer.add(participant, study.frames[participant])
        with pytest.raises(StudyError, match=naming("sub-01")):
            writer.add("sub-01", study.frames["sub-01"])


# --- folders that are not (whole) studies


def cut(name: str) -> Any:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-7])


def remove(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def fill(name: str, content: bytes) -> Any:
    return lambda folder: (folder / name).write_bytes(content)


def save_array(name: str, array: Any) -> Any:
    return lambda folder: np.save(folder / name, array)


BROKEN = {
    "no json": (remove("study.json"), naming("study")),
    "garbled json": (fill("study.json", b"{"), naming("study.json")),
    "other json": (fill("study.json", b"[1]"), naming("study.json")),
    "newer": (
        lambda folder: edit(folder, schema_version=3),
        naming("schema_version", 3, 1),
    ),
    "no participants": (lambda folder: edit(folder, participants=None), naming("participants")),
    "unlisted": (
        lambda folder: edit(folder, participants={"sub-01": "frames/sub-01.npy"}),
        naming("row 3", "sub-02"),
    ),
    "voxels": (lambda folder: edit(folder, n_voxels=7), naming("n_voxels", 7, 6)),
    "no trials": (remove("trials.tsv"), naming("trials.tsv")),
    "empty trials": (fill("trials.tsv", b""), naming("trials.tsv")),
    "binary trials": (fill("trials.tsv", b"\xff\xfe\x00\x01\n\xff"), "trials"),
    "other table": (fill("trials.tsv", b"a\tb\n1\t2\n"), naming("participant")),
    "short trials": (
        fill("trials.tsv", b"participant\tstimulus\tstart\tstop\nsub-01\tx\t0\t2\n"),
        naming("n_trials", 9, 1),
    ),
    "no coordinates": (remove("coordinates.npy"), naming("coordinates.npy")),
    "cut coordinates": (cut("coordinates.npy"), naming("coordinates.npy")),
    "no frames": (remove("frames/sub-02.npy"), naming("sub-02.npy")),
    "cut frames": (cut("frames/sub-02.npy"), naming("sub-02.npy")),
    "pickle": (save_array("frames/sub-02.npy", np.array([{}], dtype=object)), naming("sub-02.npy")),
    "double": (save_array("frames/sub-02.npy", np.ones((30, 6))), naming("sub-02.npy", "float32")),
    "narrow": (save_array("frames/sub-02.npy", np.ones((30, 5), np.float32)), naming("sub-02", 5)),
    "short": (save_array("frames/sub-02.npy", np.ones((9, 6), np.float32)), naming("row 4")),
    "cut mask": (cut("mask.nii.gz"), naming("mask.nii.gz")),
    "garbled mask": (fill("mask.nii.gz", b"x"), naming("mask.nii.gz")),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN.keys())
def test_open_says_what_is_broken(saved: Path, case: tuple[Any, str]) -> None:
    damage, named = case
    damage(saved)
    with pytest.raises(StudyError, match=named) as caught:
        Study.open(saved)
    assert str(saved) in str(caught.value)


def test_open_names_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=naming("nowhere")):
        Study.open(tmp_path / "nowhere")


def test_study_and_simulation_import_neither_torch_nor_nilearn() -> None:
    code = (
        "import sys, ntfa.study, ntfa.simulation;"
        "print([m for m in ('torch', 'nilearn', 'nibabel', 'sklearn') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
