"""`ntfa test`: what it prints, what it leaves beside the results, and how it refuses."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from helpers import assert_names

from ntfa.cli import main
from ntfa.report.answers import read_answers

QUICK = ["--permutations", "199", "--draws", "99", "--quiet"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine people in three groups, and stimuli of two tasks, clear enough for a short fit."""
    folder = tmp_path_factory.mktemp("asked")
    small = ["--participants", "9", "--stimuli", "6", "--frames", "6", "--voxels", "400", "--quiet"]
    assert main(["simulate", str(folder / "study"), *small]) == 0
    fit = ["--n-factors", "3", "--max-epochs", "40", "--device", "cpu", "--quiet"]
    assert main(["fit", str(folder / "study"), str(folder / "out"), *fit]) == 0
    return folder / "out"


@pytest.fixture
def results(fitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fitted, tmp_path / "out"))


def test_groups_are_tested_from_the_labels_beside_the_results(results, capsys):
    assert main(["test", str(results), "--column", "group", *QUICK]) == 0
    printed = capsys.readouterr().out
    assert_names(printed, "group", "participants", "report.html")
    (answer,) = read_answers(results)
    assert answer.sentences[0] in printed
    folder = results / "answers" / answer.name
    table = pd.read_csv(folder / "tests.tsv", sep="\t")
    location = table[table["test"] == "location"].set_index("compared")
    assert location["p"]["all groups"] < 0.05
    assert len(table) == 8
    assert (folder / "embeddings.png").stat().st_size > 0
    assert json.loads((folder / "answer.json").read_text())["command"][:2] == ["ntfa", "test"]
    assert answer.title in (results / "report.html").read_text()


def test_stimuli_are_tested_with_a_table_and_confounds(results, tmp_path, capsys):
    stimuli = pd.read_csv(results / "embeddings_stimuli.tsv", sep="\t")
    valence = stimuli["z1"] + [0.01, -0.01, 0, 0.01, -0.01, 0]
    table = pd.DataFrame({"stimulus": stimuli["stimulus"], "valence": valence, "length": [3, 1, 4, 1, 5, 9]})
    table.to_csv(tmp_path / "ratings.csv", index=False)
    command = ["test", str(results), "--of", "stimuli", "--column", "valence", "--table", str(tmp_path / "ratings.csv")]
    assert main([*command, *QUICK]) == 0
    (answer,) = read_answers(results)
    table = pd.read_csv(results / "answers" / answer.name / "tests.tsv", sep="\t")
    assert table["test"].tolist() == ["regression", "nearest neighbours", "alike at one end"]
    assert table["p"][0] < 0.05
    capsys.readouterr()
    # Six stimuli are too few to take anything out.
    assert main([*command, "--confound", "length", *QUICK]) == 1
    assert_names(capsys.readouterr().err, "valence", "6", "stimuli")


def test_another_question_leaves_the_first_answer_alone(results, tmp_path, capsys):
    labels = pd.read_csv(results / "labels_participants.tsv", sep="\t")
    labels.assign(motion=range(9)).to_csv(tmp_path / "people.tsv", sep="\t", index=False)
    ask = ["test", str(results), "--column", "group", "--table", str(tmp_path / "people.tsv"), *QUICK]
    assert main(ask) == 0
    assert main(["test", str(results), "--column", "motion", "--table", str(tmp_path / "people.tsv"), *QUICK]) == 0
    assert main(ask) == 0
    assert len(read_answers(results)) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--column", "gruop"], ("gruop", "group", "labels_participants.tsv")),
        (["--column", "group", "--confound", "motion"], ("motion", "labels_participants.tsv")),
        (["--column", "group", "--table", "nowhere.tsv"], ("nowhere.tsv",)),
        (["--column", "group", "--permutations", "5"], ("n_permutations=5",)),
    ],
)
def test_errors_are_one_line_that_names_what_is_wrong(results, options, named, capsys):
    assert main(["test", str(results), "--quiet", *options]) == 1
    said = capsys.readouterr().err
    assert said.startswith("ntfa: error: ")
    assert said.count("\n") == 1
    assert_names(said, *named)
    assert not (results / "answers").exists()


def test_a_folder_without_results_is_named(tmp_path, capsys):
    assert main(["test", str(tmp_path), "--column", "group"]) == 1
    assert_names(capsys.readouterr().err, tmp_path)


def test_without_labels_a_table_is_asked_for(results, capsys):
    (results / "labels_participants.tsv").unlink()
    assert main(["test", str(results), "--column", "group", "--quiet"]) == 1
    assert_names(capsys.readouterr().err, "labels_participants.tsv", "--table")
