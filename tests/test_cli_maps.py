"""`ntfa maps`: from files of maps to a report, and again."""

import json
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest

from ntfa.cli import main
from ntfa.simulation import simulate
from ntfa.study import Study

SMALL = ["--n-factors", "2", "--max-epochs", "5", "--uncertainty", "mean-field", "--quiet"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Maps of three people in dense CIFTI files, and the table that says what they are of."""
    folder = tmp_path_factory.mktemp("maps")
    sim = simulate("mdtb", n_participants=3, n_stimuli=4, n_voxels=500, random_state=0)
    mask = np.asarray(sim.study.mask_img.dataobj) > 0
    axis = nibabel.cifti2.BrainModelAxis.from_mask(mask, affine=sim.study.mask_img.affine, name="CEREBELLUM_LEFT")
    for who in sim.study.participants:
        trials = sim.study.trials[sim.study.trials["participant"] == who]
        rows = nibabel.cifti2.ScalarAxis([f"map {i}" for i in range(len(trials))])
        data = np.stack([sim.study.frames[who][start] for start in trials["start"]])
        nibabel.Cifti2Image(data, (rows, axis)).to_filename(folder / f"{who}_maps.dscalar.nii")
    trials[["stimulus", "run"]].to_csv(folder / "maps.tsv", sep="\t", index=False)
    return folder


def command(files: Path, out: Path, *more: str) -> list[str]:
    images = [str(path) for path in sorted(files.glob("*.dscalar.nii"))]
    given = ["maps", str(out), *images, "--table", str(files / "maps.tsv"), "--run-column", "run"]
    return [*given, *SMALL, *more]


def test_one_command_leads_to_a_report(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(command(files, out)) == 0
    assert (out / "ntfa" / "report.html").exists()
    assert str(out / "ntfa" / "report.html") in capsys.readouterr().out
    study = Study.open(out / "study")
    assert len(study.participants) == 3
    assert study.mask_img is not None
    embedded = pd.read_csv(out / "ntfa" / "embeddings_stimuli.tsv", sep="\t")
    assert set(embedded.iloc[:, 0].astype(str)) == set(study.stimuli)
    assert json.loads((out / "ntfa" / "config.json").read_text())["parameters"]["n_factors"] == 2
    for again in ([], ["--resume"]):
        assert main(command(files, out, *again)) == 0
        assert "nothing to do" in capsys.readouterr().out
    for other in (["--seed", "1"], ["--keep-scale"]):
        assert main(command(files, out, *other)) == 1, "that is another fit"
        assert "exists" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(files, tmp_path / "out", "--dry-run")) == 0
    assert "3 participants" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_wrong_column_and_a_strange_folder_are_errors(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(files, tmp_path / "out", "--stimulus-column", "condition")) == 1
    assert "'condition'" in capsys.readouterr().err
    assert not (tmp_path / "out" / "ntfa").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    assert main(command(files, tmp_path / "mine", "--overwrite")) == 1
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"
    assert "not an output of ntfa maps" in capsys.readouterr().err
