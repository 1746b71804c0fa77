"""`ntfa contrast`: an answer beside the results, in their report, and errors that name what is wrong."""

import json
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import assert_names

from ntfa import NTFA
from ntfa.cli import main
from ntfa.simulation import Simulation


@pytest.fixture(scope="module")
def results(clear_simulation: Simulation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    clear_simulation.study.save(folder / "study")
    settings = ["--n-factors", "3", "--max-epochs", "40", "--response", "loadings", "--embedding-dim", "2"]
    command = ["fit", str(folder / "study"), str(folder / "out"), *settings, "--uncertainty", "laplace", "-q"]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("plot_factors", "plot_noise", "plot_prediction"):
            patch.setattr(f"ntfa.report.figures.{name}", lambda *args, **kwargs: None)
        assert main([*command, "--device", "cpu"]) == 0
    return folder / "out"


def answer_of(results: Path, name: str) -> Path:
    (folder,) = [path for path in (results / "answers").iterdir() if path.name.startswith(name)]
    return folder


def test_answer_is_that_of_python(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    regions = nibabel.Nifti1Image(np.ones((50, 50, 50), dtype=np.int16), np.diag([4.0, 4, 4, 1]))
    regions.affine[:3, 3] = -100
    nibabel.Nifti1Image(regions.get_fdata().astype(np.int16), regions.affine).to_filename(tmp_path / "all_dseg.nii.gz")
    (tmp_path / "all_dseg.tsv").write_text("index\tname\n1\tBrain, somewhere\n")
    sets = ["--a", "category=Task 2", "--b", "category=Task 1", "--only", "group=Group 1,Group 2"]
    assert main(["contrast", str(results), *sets, "--name", "tasks", "--atlas", str(tmp_path / "all_dseg.nii.gz")]) == 0
    folder, model = answer_of(results, "tasks"), NTFA.load(results)
    people = [f"sub-0{i}" for i in range(1, 5)]
    pairs = [
        [(who, what) for who in people for what in model.stimuli_.index if what.startswith(task)]
        for task in ("task2", "task1")
    ]
    contrast = model.contrast(*pairs)
    inside = np.asarray(model.mask_img_.dataobj) > 0
    for name in ("difference", "sd", "z", "thresholded"):
        image = nibabel.load(folder / f"{name}.nii.gz")
        assert np.allclose(image.get_fdata()[inside], contrast.map(name), atol=1e-3 * np.abs(contrast.map(name)).max())
    factors = pd.read_csv(folder / "factors.tsv", sep="\t")
    assert np.allclose(factors["z_value"], contrast.factors["z_value"], rtol=1e-4)
    assert set(factors["region"]) == {"Brain, somewhere"}
    content = json.loads((folder / "answer.json").read_text())
    assert_names(content["sentences"][0], f"{int(contrast.significant.sum()):,}", f"{len(contrast.z):,}")
    assert content["sentences"][0] in capsys.readouterr().out
    assert "category=Task 2" in (results / "report.html").read_text()


def test_population_is_asked_for(results: Path) -> None:
    sets = ["--a", "stimulus=task2_stim1", "--b", "stimulus=task1_stim1"]
    assert main(["contrast", str(results), *sets, "--name", "these", "-q"]) == 0
    assert main(["contrast", str(results), *sets, "--name", "population", "--population", "-q"]) == 0
    sds = [nibabel.load(answer_of(results, name) / "sd.nii.gz").get_fdata() for name in ("population", "these")]
    assert (sds[0] >= sds[1] * (1 - 1e-5)).all()
    assert sds[0].sum() > sds[1].sum()


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        (["--a", "stimulus=task2_stim9", "--b", "stimulus=task1_stim1"], ("task2_stim9",)),
        (["--a", "diagnosis=x", "--b", "stimulus=task1_stim1"], ("diagnosis", "group", "category")),
        (["--a", "participant=sub-01", "--b", "participant=sub-01"], ()),
        (["--a", "participant=sub-01", "--b", "participant=sub-02", "--population"], ("sub-01",)),
        (["--a", "participant=sub-01", "--b", "participant=sub-02", "--atlas-labels", "x.tsv"], ("--atlas",)),
        (["--a", "participant=sub-01", "--b", "participant=sub-02", "--atlas", "none.nii.gz"], ("none.nii.gz",)),
    ],
)
def test_what_is_wrong_is_named(
    sets: list[str], named: tuple[str, ...], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["contrast", str(results), *sets, "-q"]) == 1
    assert_names(capsys.readouterr().err, *named)


def test_folder_without_results_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contrast", str(tmp_path), "--a", "stimulus=a", "--b", "stimulus=b"]) == 1
    assert_names(capsys.readouterr().err, tmp_path)
