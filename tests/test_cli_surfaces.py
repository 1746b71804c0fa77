"""`ntfa bids` and `ntfa maps` on cortical surfaces, from files in the form that fMRIPrep writes."""

import json
import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import assert_names
from nibabel import cifti2

from ntfa import NTFA, Study
from ntfa.cli import main
from ntfa.simulation.bids import _confounds
from ntfa.simulation.cortex import simulate_cortex
from ntfa.study.surfaces import Surfaces

N, T_R, STIMULI = 642, 2.0, ["face", "house", "tool"]
FIT = ["--n-factors", "2", "--max-epochs", "5", "--uncertainty", "mean-field", "--response", "loadings", "--quiet"]
PREPARE = ["--standardize", "none", "--delay", "0"]
SCENE = {"Name": "x", "BIDSVersion": "1.9.0"}


def gifti(path: Path, arrays: list[np.ndarray], intents: list[str], side: str) -> Path:
    kinds = {"i": "NIFTI_TYPE_INT32", "f": "NIFTI_TYPE_FLOAT32"}
    data = [
        nibabel.gifti.GiftiDataArray(array, intent, kinds[array.dtype.kind])
        for array, intent in zip(arrays, intents, strict=True)
    ]
    meta = nibabel.gifti.GiftiMetaData({"AnatomicalStructurePrimary": f"Cortex{side}"})
    nibabel.GiftiImage(darrays=data, meta=meta).to_filename(path)
    return path


def write_run(func: Path, stem: str, values: np.ndarray) -> None:
    """A run [frames, 2 N] on both kinds of surfaces, with its sidecars and confounds."""
    for side, own in zip("LR", (values[:, :N], values[:, N:]), strict=True):
        name = f"{stem}_hemi-{side}_space-fsaverage5_bold"
        structure = {"L": "Left", "R": "Right"}[side]
        gifti(func / f"{name}.func.gii", list(own), ["NIFTI_INTENT_TIME_SERIES"] * len(own), structure)
        (func / f"{name}.json").write_text(json.dumps({"RepetitionTime": T_R, "StartTime": 0.0}))
    used = np.arange(20, N)
    axis = cifti2.BrainModelAxis.from_surface(used, N, name="CIFTI_STRUCTURE_CORTEX_LEFT")
    axis += cifti2.BrainModelAxis.from_surface(used, N, name="CIFTI_STRUCTURE_CORTEX_RIGHT")
    inside = np.zeros((12, 12, 12), dtype=bool)
    inside[4:7, 5:8, 5:7] = True
    affine = np.diag([2.0, 2, 2, 1])
    affine[:3, 3] = -10
    axis += cifti2.BrainModelAxis.from_mask(inside, affine=affine, name="CIFTI_STRUCTURE_BRAIN_STEM")
    noise = np.random.default_rng(len(stem)).standard_normal((len(values), int(inside.sum())))
    data = np.hstack([values[:, used], values[:, N + used], noise]).astype(np.float32)
    rows = cifti2.SeriesAxis(0, T_R, len(data), unit="SECOND")
    name = f"{stem}_space-fsLR_den-91k_bold"
    cifti2.Cifti2Image(data, (rows, axis)).to_filename(func / f"{name}.dtseries.nii")
    (func / f"{name}.json").write_text(json.dumps({"RepetitionTime": T_R, "StartTime": 0.0}))
    table, described = _confounds(len(values), T_R, np.random.default_rng(0))
    table.to_csv(func / f"{stem}_desc-confounds_timeseries.tsv", sep="\t", index=False, na_rep="n/a")
    (func / f"{stem}_desc-confounds_timeseries.json").write_text(json.dumps(described))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three people, one run each, of three stimuli shown twice; no volumes. Do not write into it."""
    root = tmp_path_factory.mktemp("bids") / "dataset"
    derivatives = root / "derivatives" / "fmriprep"
    study, _ = simulate_cortex(3, 6, 1, n_vertices=N)
    for folder, kind in ((root, "raw"), (derivatives, "derivative")):
        folder.mkdir(parents=True)
        described = SCENE | {"DatasetType": kind, "GeneratedBy": [{"Name": "fMRIPrep", "Version": "24.1.0"}]}
        (folder / "dataset_description.json").write_text(json.dumps(described))
    for participant in study.participants:
        for base in (root, derivatives):
            (base / participant / "func").mkdir(parents=True)
        frames = study.frames[participant]
        onsets = np.arange(6) * 6 * T_R
        events = pd.DataFrame({"onset": onsets, "duration": 6 * T_R, "trial_type": STIMULI * 2})
        events.to_csv(root / participant / "func" / f"{participant}_task-x_events.tsv", sep="\t", index=False)
        write_run(derivatives / participant / "func", f"{participant}_task-x", frames)
    return root


@pytest.fixture
def dataset(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "dataset"))


def bids(dataset: Path, out: Path, level: str, *options: Any) -> int:
    return main(["bids", str(dataset), str(out), level, *PREPARE, *map(str, options)])


def test_cifti_of_fmriprep_leads_to_a_report_and_to_cifti(written: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert bids(written, out, "group", "--space", "fsLR", "--den", "91k", "--images", *FIT) == 0
    study = Study.open(out / "study")
    run = nibabel.load(next((written / "derivatives/fmriprep/sub-02/func").glob("*.dtseries.nii")))
    assert study.mask_img.axis == run.header.get_axis(1)
    np.testing.assert_array_equal(study.frames["sub-02"], np.asarray(run.dataobj))
    fit = out / "ntfa"
    assert nibabel.load(fit / "factors.dscalar.nii").shape == (2, study.n_voxels)
    predicted = nibabel.load(fit / "predictions" / "sub-01.dscalar.nii")
    model = NTFA.load(fit)
    expected = model.predict([("sub-01", label) for label in model.stimuli_.index])
    np.testing.assert_allclose(predicted.get_fdata(), expected, atol=1e-4)
    assert list(predicted.header.get_axis(0).name) == STIMULI
    page = (fit / "report.html").read_text()
    assert "fsaverage3 template that comes with nilearn" in page
    assert "great circle" in page
    assert "Analyses were of the vertices and voxels of the images" in page
    # The same command again has nothing to do, and another distance is another fit.
    assert bids(written, out, "participant", "--space", "fsLR", "--den", "91k") == 0


def test_gifti_pairs_of_fmriprep_lead_to_gifti_pairs(written: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert bids(written, out, "group", "--space", "fsaverage5", *FIT) == 0
    study = Study.open(out / "study")
    left = nibabel.load(
        written / "derivatives/fmriprep/sub-01/func/sub-01_task-x_hemi-L_space-fsaverage5_bold.func.gii"
    )
    np.testing.assert_array_equal(study.frames["sub-01"][:, :N], np.stack([array.data for array in left.darrays]))
    for side in ("L", "R"):
        image = nibabel.load(out / "ntfa" / f"factors_hemi-{side}.func.gii")
        assert [array.data.shape for array in image.darrays] == [(N,), (N,)]


def test_from_bids_is_the_same_study(written: Path, tmp_path: Path) -> None:
    study = Study.from_bids(written, space="fsaverage5", standardize="none", delay=0.0)
    assert bids(written, tmp_path / "out", "group", "--space", "fsaverage5", *FIT) == 0
    again = Study.open(tmp_path / "out" / "study")
    for participant in study.participants:
        np.testing.assert_array_equal(study.frames[participant], again.frames[participant])
    np.testing.assert_array_equal(study.positions, again.positions)


@pytest.mark.parametrize("space", ["fsLR", "fsaverage5"])
def test_confounds_are_regressed_out_of_vertices(written: Path, space: str) -> None:
    how: dict[str, Any] = {"space": space, "standardize": "none", "delay": 0.0}
    raw, clean = (Study.from_bids(written, confounds=kind, **how) for kind in ("none", "simple"))
    path = next((written / "derivatives/fmriprep/sub-01/func").glob("*_timeseries.tsv"))
    motion = pd.read_csv(path, sep="\t", na_values="n/a")["trans_x"].to_numpy()
    left, taken = (np.abs(np.corrcoef(motion, study.frames["sub-01"][:, 50])[0, 1]) for study in (raw, clean))
    assert taken < 1e-3 < left


def test_what_is_missing_is_named(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    func = dataset / "derivatives/fmriprep/sub-02/func"
    assert bids(dataset, tmp_path / "out", "participant") == 1
    assert_names(capsys.readouterr().err, "space fsLR (den 91k)", "space fsaverage5")
    (func / "sub-02_task-x_hemi-R_space-fsaverage5_bold.func.gii").unlink()
    assert bids(dataset, tmp_path / "out", "participant", "--space", "fsaverage5") == 1
    assert "other hemisphere" in capsys.readouterr().err
    shutil.copy(
        next((dataset / "derivatives/fmriprep/sub-01/func").glob("*hemi-L*.gii")),
        func / "sub-02_task-x_hemi-R_space-fsaverage5_bold.func.gii",
    )
    assert bids(dataset, tmp_path / "out", "participant", "--space", "fsaverage5", "--dry-run") == 1
    assert_names(capsys.readouterr().err, "right hemisphere", "sub-02")
    assert bids(dataset, tmp_path / "out", "participant", "--space", "fsLR", "--smoothing-fwhm", 4) == 1
    assert "wb_command" in capsys.readouterr().err


def named(folder: Path, n: int) -> list[str]:
    """Options that name surfaces of a template."""
    options = []
    for name in ("midthickness", "sphere"):
        options.append(f"--{name}")
        for side, surface in Surfaces.fsaverage(n).by_side.items():
            path = folder / f"tpl-mine_hemi-{side[0].upper()}_{name}.surf.gii"
            points, faces = getattr(surface, name).astype(np.float32), surface.faces.astype(np.int32)
            gifti(path, [points, faces], ["NIFTI_INTENT_POINTSET", "NIFTI_INTENT_TRIANGLE"], side.capitalize())
            options.append(str(path))
    return options


def test_surfaces_are_named_or_found_where_fmriprep_keeps_templates(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = named(tmp_path, N)
    out = tmp_path / "named"
    assert bids(dataset, out, "group", "--space", "fsaverage5", *options, "--surface-distance", "straight", *FIT) == 0
    space = Study.open(out / "study").mask_img
    assert (space.is_on_sphere, "tpl-mine_hemi-L" in space.surfaces.source) == (False, True)
    monkeypatch.setattr("ntfa.study.bids_surfaces.shipped_template", lambda n: None)
    monkeypatch.setattr("ntfa.study.templates.DENSITIES", {N: ("fsLR", "32k")})
    monkeypatch.setenv("TEMPLATEFLOW_HOME", str(tmp_path / "templateflow"))
    anat = dataset / "derivatives/fmriprep/sub-01/anat"
    anat.mkdir()
    for side in "LR":
        given = tmp_path / f"tpl-mine_hemi-{side}_midthickness.surf.gii"
        shutil.copy(given, anat / f"sub-01_hemi-{side}_space-fsLR_den-32k_midthickness.surf.gii")
    with pytest.warns(UserWarning, match="straight lines"):
        study = Study.from_bids(dataset, space="fsLR", standardize="none", delay=0.0)
    assert "one participant (sub-01_hemi-L" in study.mask_img.surfaces.source
    folder = tmp_path / "templateflow" / "tpl-fsLR"
    folder.mkdir(parents=True)
    for name in ("midthickness", "sphere"):
        for side in "LR":
            given = tmp_path / f"tpl-mine_hemi-{side}_{name}.surf.gii"
            shutil.copy(given, folder / f"tpl-fsLR_den-32k_hemi-{side}_{name}.surf.gii")
    study = Study.from_bids(dataset, space="fsLR", standardize="none", delay=0.0)
    assert study.mask_img.surfaces.source == "TemplateFlow's fsLR (32k)"
    assert study.mask_img.is_on_sphere


def test_maps_on_surfaces_in_one_command(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for who in ("sub-a", "sub-b", "sub-c"):
        for side in "LR":
            arrays = list(rng.standard_normal((4, N)).astype(np.float32))
            path = tmp_path / f"{who}_hemi-{side}_stat-beta.func.gii"
            gifti(path, arrays, ["NIFTI_INTENT_NONE"] * 4, {"L": "Left", "R": "Right"}[side])
    pd.DataFrame({"stimulus": list("abcd")}).to_csv(tmp_path / "maps.tsv", sep="\t", index=False)
    files = [str(path) for path in sorted(tmp_path.glob("*.func.gii"))]
    command = ["maps", str(tmp_path / "out"), *files, "--table", str(tmp_path / "maps.tsv"), *FIT]
    assert main([*command, *named(tmp_path, N)]) == 0
    study = Study.open(tmp_path / "out" / "study")
    assert study.participants == ["sub-a", "sub-b", "sub-c"]
    assert study.n_voxels == 2 * N
    assert (tmp_path / "out" / "ntfa" / "factors_hemi-R.func.gii").exists()
    assert main([*command[:2], *files[:3], *command[len(files) + 2 :], "--overwrite"]) == 1
