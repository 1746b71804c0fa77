"""`ntfa add`: from a folder of results and a study to another folder of results, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from helpers import assert_names

from ntfa import HTFA, NTFA, Study
from ntfa.cli import main


@pytest.fixture(scope="module")
def folders(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a fit to four people and three stimuli, and studies to be added."""
    folder = tmp_path_factory.mktemp("add")
    people, stimuli = study.participants, study.stimuli
    labelled = study.trials.assign(site=study.trials["participant"].map(dict(zip(people, "ababab", strict=True))))
    study = Study.from_arrays(study.frames, labelled, study.coordinates, study.mask_img)
    study.select(participants=people[:4], stimuli=stimuli[:3]).save(folder / "fit-study")
    study.select(participants=people[4:]).save(folder / "new")
    study.select(participants=people[:2], stimuli=stimuli[:3]).save(folder / "again")
    options = ["--n-factors", "3", "--response", "loadings", "--embedding-dim", "2,2", "--max-epochs", "30", "-q"]
    assert main(["fit", str(folder / "fit-study"), str(folder / "results"), *options]) == 0
    return folder


def add(folders: Path, study: str, out: Path, *options: str) -> int:
    return main(["add", str(folders / "results"), str(folders / study), str(out), "-q", *options])


def test_newcomers_get_results_and_a_report(
    folders: Path, study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    before = (folders / "results" / "model.safetensors").read_bytes()
    assert add(folders, "new", out) == 0
    assert (folders / "results" / "model.safetensors").read_bytes() == before
    table = pd.read_csv(out / "embeddings_participants.tsv", sep="\t", index_col=0)
    assert table.index[table["added"]].tolist() == study.participants[4:]
    assert pd.read_csv(out / "newcomers.tsv", sep="\t")["label"].tolist() == [*study.participants[4:], study.stimuli[3]]
    summary = json.loads((out / "summary.json").read_text())
    assert [summary[name] for name in ("n_participants", "n_participants_added", "n_stimuli_added")] == [4, 2, 1]
    labels = pd.read_csv(out / "labels_participants.tsv", sep="\t", index_col=0)
    assert labels["site"].tolist() == list("ababab")
    page = (out / "report.html").read_text()
    assert "Who was added" in page
    assert "2 participants and 1 stimulus were added to the fitted model" in page
    assert_names(capsys.readouterr().out, "2 participants and 1 stimulus", out / "report.html")
    assert json.loads((out / "config.json").read_text())["command"][:2] == ["ntfa", "add"]
    assert len(NTFA.load(out).participants_) == 6


def test_a_session_becomes_a_point_joined_to_the_first(folders: Path, study: Study, tmp_path: Path) -> None:
    assert add(folders, "again", tmp_path / "out", "--session", "ses-02") == 0
    first = study.participants[0]
    retests = pd.read_csv(tmp_path / "out" / "retests.tsv", sep="\t")
    assert retests[["participant", "session"]].iloc[0].tolist() == [first, f"{first} ses-02"]
    assert (retests["distance"] < 1e-6).all()


def test_known_people_without_a_session_are_refused(
    folders: Path, study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(folders, "again", tmp_path / "out") == 1
    assert_names(capsys.readouterr().err, study.participants[0], "--session")
    assert not (tmp_path / "out").exists()


def test_results_are_replaced_only_if_asked(
    folders: Path, tmp_path: Path, no_pictures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(folders, "new", tmp_path / "out") == 0
    assert add(folders, "new", tmp_path / "out") == 1
    assert_names(capsys.readouterr().err, tmp_path / "out", "overwrite")
    assert add(folders, "new", tmp_path / "out", "--overwrite") == 0


def test_other_models_and_folders_without_a_fit_are_refused(
    folders: Path, study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    HTFA(3, max_epochs=2, random_state=0, device="cpu").fit(study).save(tmp_path / "htfa")
    assert main(["add", str(tmp_path / "htfa"), str(folders / "new"), str(tmp_path / "out"), "-q"]) == 1
    assert_names(capsys.readouterr().err, "HTFA")
    assert main(["add", str(tmp_path), str(folders / "new"), str(tmp_path / "out"), "-q"]) == 1
    assert_names(capsys.readouterr().err, tmp_path)
