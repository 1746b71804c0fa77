"""`ntfa compare` from the command line."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import assert_names

import ntfa.cli
from ntfa import comparison
from ntfa.cli import main
from ntfa.comparison import Settings
from ntfa.simulation import Simulation
from ntfa.study import StudyWriter

FAST = ["--n-factors", "3", "--max-epochs", "5", "--n-samples", "4", "--n-jobs", "1", "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def folder(tiny: Simulation, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The study with its truth, as `ntfa simulate` writes it."""
    path, study = tmp_path_factory.mktemp("saved") / "study", tiny.study
    notes = {"simulated": True}
    with StudyWriter(path, study.coordinates, study.trials, mask_img=study.mask_img, notes=notes) as writer:
        for participant in writer.participants:
            writer.add(participant, study.frames[participant])
        tiny.truth.save(writer.working_folder)
    return str(path)


def test_the_command_offers_what_there_is() -> None:
    assert tuple(comparison.PARTS) == ntfa.cli.PARTS
    args = ntfa.cli.parser().parse_args(["compare", "study", "out"])
    for field in dataclasses.fields(Settings):
        assert (getattr(args, field.name) or None) == (field.default or None), field.name


@pytest.mark.usefixtures("no_figures")
def test_compare_says_what_it_found(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out"
    command = ["compare", folder, str(out), *FAST, "--parts", "generalisation", "mvpa"]
    assert main(command) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Held-out log predictive of NTFA (")
    assert "95% interval" in said[0]
    assert said[1].startswith("Mean squared error")
    assert said[2].startswith("MVPA, AUC, trials left out: ")
    assert said[-1] == f"Report: {out / 'report.html'}"
    assert "mse_over_oracle" in (out / "generalisation" / "table.tsv").read_text()
    known = json.loads((out / "comparison.json").read_text())
    assert known["command"] == ["ntfa", *command]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == said
    assert main([*command, "--seed", "1"]) == 1
    error = capsys.readouterr().err
    assert_names(error, "seed", 0, 1)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--category", "taste"], "'taste'"),
        (["--participant-labels", "group", "age"], "'age'"),
    ],
)
def test_wrong_columns_end_with_1_in_one_line(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture, options: list[str], message: str
) -> None:
    assert main(["compare", folder, str(tmp_path / "out"), *FAST, *options]) == 1
    error = capsys.readouterr().err
    assert error.startswith("ntfa: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_no_study_and_no_truth_end_with_1(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", str(tmp_path), str(tmp_path / "out"), *FAST]) == 1
    assert_names(capsys.readouterr().err, "ntfa: error:", tmp_path)


@pytest.mark.parametrize(
    "arguments", [["--parts", "magic"], ["--across", "runs"], ["--atlas", "aal"], ["--n-samples", "0"]], ids=" ".join
)
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["compare", "study", "out", *arguments])
    assert end.value.code == 2


@pytest.mark.usefixtures("no_figures")
def test_a_study_z_scored_by_its_runs_is_warned_of(
    tiny: Simulation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny.study.save(tmp_path / "study", notes={"preparation": {"standardize": "run"}})
    assert main(["compare", str(tmp_path / "study"), str(tmp_path / "out"), *FAST, "--parts", "embeddings"]) == 0
    assert "--standardize rest" in caplog.text


def test_help_needs_no_torch() -> None:
    code = "import sys; from ntfa.cli import main\ntry: main(['compare', '--help'])\nexcept SystemExit: pass\n"
    code += "heavy = {'torch', 'pandas', 'sklearn', 'nilearn', 'matplotlib'} & set(sys.modules); print('HEAVY', heavy)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--refit-per-fold" in done.stdout
    assert "HEAVY set()" in done.stdout
