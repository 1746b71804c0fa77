"""The command line: what it writes, what it says, how it ends."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import assert_names, weights_of
from safetensors.numpy import load_file

from ntfa import HTFA, NTFA, TFA, TLSA, Study, simulate
from ntfa.analyses.groups import find_groups
from ntfa.cli import main
from ntfa.cli.demo import findings
from ntfa.errors import ModelError, OutputError
from ntfa.estimators.base import TopographicModel

TINY = ["--participants", "4", "--stimuli", "4", "--frames", "4", "--voxels", "200", "--factors", "3"]
FIT = ["--n-factors", "3", "--max-epochs", "6", "--device", "cpu"]
FILES = {
    "config.json",
    "embeddings_participants.tsv",
    "embeddings_stimuli.tsv",
    "factors.tsv",
    "history.tsv",
    "model.safetensors",
    "report.html",
    "summary.json",
}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cli") / "study"
    assert main(["simulate", str(folder), *TINY, "--quiet"]) == 0
    return str(folder)


@pytest.fixture(scope="module")
def fitted_once(simulated: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "out"
    assert main(["fit", simulated, str(out), *FIT]) == 0
    return out


@pytest.fixture
def output(fitted_once: Path, tmp_path: Path) -> Path:
    """A complete output, all that is in its folder."""
    return Path(shutil.copytree(fitted_once, tmp_path / "out"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_one_line(error: str) -> None:
    assert error.startswith("ntfa: error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error


# --- help


def test_help_is_instant() -> None:
    """Nothing heavy is imported to parse arguments, for no command."""
    code = """
import sys
from ntfa.cli import main, parser
names = next(action for action in parser()._actions if action.dest == "command").choices
assert {"demo", "simulate", "fit"} <= set(names)
for command in ([], *[[name] for name in names]):
    try:
        main([*command, "--help"])
    except SystemExit as end:
        assert end.code == 0
heavy = {"torch", "numpy", "pandas", "matplotlib", "nilearn", "sklearn", "scipy"}
print("heavy:", sorted(heavy.intersection(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("heavy: []\n")
    for option in ("--n-factors", "--embedding-dim", "--inference", "--init", "--schedule", "--max-epochs"):
        assert option in result.stdout
    for option in ("--n-particles", "--n-restarts", "--seed", "--device", "--resume", "--overwrite", "--like"):
        assert option in result.stdout


def test_python_m_ntfa_is_ntfa() -> None:
    result = subprocess.run([sys.executable, "-m", "ntfa", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"ntfa \d+\.\d+\.\d+\n", result.stdout)


@pytest.mark.parametrize(("of_user", "used"), [(None, "1000"), ("5", "5")])
def test_threads_of_a_command_wait_briefly_unless_the_user_says_how_long(of_user: str | None, used: str) -> None:
    """It must be settled before PyTorch is imported, which reads it once."""
    code = """
import os, sys
from ntfa.cli import main
waits = []
class Finder:
    def find_spec(name, path, target=None):
        if name == "torch" and not waits: waits.append(os.environ["GOMP_SPINCOUNT"])
sys.meta_path.insert(0, Finder)
main(["fit", "nowhere", "nothing"])
print(waits)
"""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    environment |= {} if of_user is None else {"GOMP_SPINCOUNT": of_user}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"['{used}']\n"


def test_importing_the_package_is_light_until_a_model_is_used() -> None:
    code = "import sys, ntfa; print(sorted({'torch', 'pandas'}.intersection(sys.modules)), 'NTFA' in dir(ntfa))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[] True\n"


def test_a_fit_imports_what_it_takes_to_fit() -> None:
    """Pictures, reports and comparisons are imported by what draws, reports or compares."""
    code = "import sys, ntfa.cli.fit; print({name.split('.')[1] for name in sys.modules if name.startswith('ntfa.')})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = ast.literal_eval(result.stdout)
    assert rooms >= {"estimators", "fitting", "models"}
    assert not rooms & {"plots", "report", "comparison", "baselines", "analyses", "simulation"}


def test_the_choices_on_the_command_line_are_those_of_the_package() -> None:
    from ntfa.cli import LIKE, MODELS
    from ntfa.estimators import MODELS as KINDS
    from ntfa.simulation.simulator import KINDS as STUDIES

    assert set(LIKE) == set(STUDIES)
    assert set(MODELS) == set(KINDS)


def test_defaults_on_the_command_line_are_those_of_the_models() -> None:
    from ntfa.cli import parser
    from ntfa.cli.fit import model_from

    for name, kind in (("ntfa", NTFA), ("htfa", HTFA), ("tfa", TFA), ("tlsa", TLSA)):
        model = model_from(parser().parse_args(["fit", "study", "out", "--model", name]))
        assert type(model) is kind
        expected = {**kind().get_params(), "random_state": 0, "verbose": 1}
        assert model.get_params() == expected


# --- simulate


@pytest.mark.parametrize(
    ("like", "kind"), [("synthetic", NTFA), ("haxby", HTFA), ("lepping", TFA), ("threatvids", NTFA)]
)
def test_simulate_fit_and_read_back(
    like: str, kind: type[TopographicModel], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder, out = tmp_path / "study", tmp_path / "out"
    runs = ["--runs", "2"] if like != "synthetic" else []
    assert main(["simulate", str(folder), "--like", like, *TINY, *runs, "--seed", "1", "-q"]) == 0
    study = Study.open(folder)
    assert (len(study.participants), len(study.stimuli), study.n_voxels) == (4, 4, 200)
    notes = json.loads((folder / "study.json").read_text())["notes"]
    assert notes == {**notes, "simulated": True, "like": like, "seed": 1}
    assert len(pd.read_csv(folder / "truth_factors.tsv", sep="\t")) == 3
    assert main(["fit", str(folder), str(out), *FIT, "--model", kind.__name__.lower()]) == 0
    assert kind.load(out).factors_["participant"].unique().tolist() == study.participants
    assert str(out / "report.html") in capsys.readouterr().out


def test_simulate_refuses_and_replaces(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "study"
    assert main(["simulate", str(out), *TINY, "-q"]) == 0
    before = contents(out)
    assert main(["simulate", str(out), *TINY, "-q", "--seed", "1"]) == 1
    assert_one_line(capsys.readouterr().err)
    assert contents(out) == before
    assert main(["simulate", str(out), *TINY, "-q", "--seed", "1", "--overwrite"]) == 0
    assert contents(out) != before
    assert [path.name for path in tmp_path.iterdir()] == ["study"]


def test_simulate_says_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["simulate", str(tmp_path / "study"), "--voxels", "10", "--factors", "11"]) == 1
    assert_one_line(capsys.readouterr().err)
    with pytest.raises(SystemExit, match="2"):
        main(["simulate", str(tmp_path / "study"), "--seed", "-1"])
    assert not any(tmp_path.iterdir())


# --- fit


@pytest.mark.parametrize(
    ("model", "inference", "extra", "n_blocks"),
    [
        ("ntfa", "collapsed", [], 4),
        ("ntfa", "mean-field", ["--embedding-dim", "3", "--init", "kmeans", "--schedule", "paper"], 4),
        pytest.param(
            *("htfa", "collapsed", ["--block", "participant", "--n-restarts", "2"], 4), marks=pytest.mark.pictures
        ),
        ("htfa", "mean-field", ["--block", "trial"], 16),
        ("tfa", "collapsed", ["--block", "trial", "--n-particles", "2"], 16),
        ("tfa", "mean-field", [], 4),
        pytest.param("tlsa", "collapsed", ["--design", "category", "run"], 4, marks=pytest.mark.pictures),
        ("tlsa", "mean-field", [], 4),
    ],
)
def test_every_model_writes_its_files(
    simulated: str, tmp_path: Path, model: str, extra: list[str], n_blocks: int, inference: str
) -> None:
    out = tmp_path / "out"
    command = ["fit", simulated, str(out), "--model", model, *FIT, "--inference", inference, "--seed", "5", *extra]
    assert main(command) == 0
    files = {path.name for path in out.iterdir()}
    embeddings = {name for name in FILES if name.startswith("embeddings")}
    assert files >= (FILES if model == "ntfa" else FILES - embeddings)
    assert ("embeddings.png" in files) == (model == "ntfa")
    assert "checkpoint" not in files
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

    config = json.loads((out / "config.json").read_text())
    assert config["schema_version"] == 1
    assert config["seed"] == 5
    assert config["command"] == ["ntfa", *command]
    assert config["versions"].keys() >= {"ntfa", "python", "torch", "numpy"}
    assert config["parameters"]["inference"] == inference

    study = Study.open(simulated)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["model"] == model.upper()
    assert (summary["n_participants"], summary["n_stimuli"], summary["n_trials"]) == (4, 4, 16)
    assert (summary["n_voxels"], summary["n_factors"], summary["n_steps"]) == (200, 3, 6)
    assert summary["n_data"] == study.n_data
    assert summary["stopped"] == "max_epochs"
    assert np.isfinite([summary["bound"], summary["noise_sd"], summary["seconds"]]).all()

    history = pd.read_csv(out / "history.tsv", sep="\t")
    assert history["bound"].iloc[-1] == summary["bound"]
    assert len(pd.read_csv(out / "factors.tsv", sep="\t")) == 3 * n_blocks
    assert all(np.isfinite(tensor).all() for tensor in load_file(out / "model.safetensors").values())
    assert "<h1>" in (out / "report.html").read_text(encoding="utf-8")
    kind = {"ntfa": NTFA, "htfa": HTFA, "tfa": TFA, "tlsa": TLSA}[model]
    assert weights_of(kind.load(out), study).shape == (16, 3)


def test_a_command_gives_what_python_gives(simulated: str, output: Path) -> None:
    model = NTFA(n_factors=3, max_epochs=6, random_state=0).fit(Study.open(simulated))
    pd.testing.assert_frame_equal(NTFA.load(output).participants_, model.participants_, check_exact=True)


def test_a_fit_ends_in_plain_words(
    no_pictures: None, simulated: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["fit", simulated, str(tmp_path / "out"), *FIT]) == 0
    said = capsys.readouterr().out
    assert "NTFA with 3 factors was fitted to 16 trials of 4 participants and 4 stimuli, 200 voxels." in said
    assert re.search(r"before converging\b.*\b6 steps", said)
    assert str(tmp_path / "out" / "report.html") in said


def test_a_fit_reports_how_it_ended_unless_quiet(
    no_pictures: None, simulated: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["fit", simulated, str(tmp_path / "loud"), *FIT]) == 0
    assert "NTFA: stopped at max_epochs after 6 steps" in capsys.readouterr().err
    assert main(["fit", simulated, str(tmp_path / "quiet"), *FIT, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


# --- errors


def test_an_existing_output_is_refused(simulated: str, output: Path, capsys: pytest.CaptureFixture) -> None:
    before = contents(output)
    capsys.readouterr()
    assert main(["fit", simulated, str(output), *FIT]) == 1
    error = capsys.readouterr().err
    assert_one_line(error)
    assert str(output) in error
    assert contents(output) == before


def test_overwriting_replaces_the_whole_output(no_pictures: None, simulated: str, output: Path) -> None:
    (output / "stray.txt").write_text("from another time")
    assert main(["fit", simulated, str(output), *FIT, "--model", "htfa", "--overwrite"]) == 0
    files = {path.name for path in output.iterdir()}
    assert not files.intersection({"stray.txt", "embeddings.png", "embeddings_participants.tsv"})
    assert json.loads((output / "config.json").read_text())["model"] == "HTFA"
    assert [path.name for path in output.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("failing", ["ntfa.cli.results.write_model", "ntfa.report.build.write_report"])
def test_a_failure_midway_leaves_the_old_output_intact(
    no_pictures: None,
    simulated: str,
    output: Path,
    failing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    before = contents(output)

    def fail(*args: object, **options: object) -> None:
        raise OutputError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(failing, fail)
        capsys.readouterr()
        assert main(["fit", simulated, str(output), *FIT, "--overwrite", "--quiet", "--seed", "8"]) == 1
        assert capsys.readouterr().err == "ntfa: error: no space left on device\n"
    assert contents(output) == before


def test_after_a_failure_midway_nothing_is_mixed(
    simulated: str, output: Path, no_pictures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OutputError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ntfa.report.build.write_report", fail)
        assert main(["fit", simulated, str(output), *FIT, "--overwrite", "--seed", "8"]) == 1
    assert main(["fit", simulated, str(output), *FIT, "--overwrite", "--seed", "9", "--model", "htfa"]) == 0
    assert json.loads((output / "config.json").read_text())["seed"] == 9
    assert not (output / "embeddings_participants.tsv").exists()
    assert [path.name for path in output.parent.iterdir()] == ["out"]


def test_a_fit_that_fails_leaves_nothing(simulated: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["fit", simulated, str(tmp_path / "out"), "--n-factors", "201"]) == 1
    error = capsys.readouterr().err
    assert_one_line(error)
    assert "n_factors=201" in error
    assert not any(tmp_path.iterdir())


def test_a_bad_study_is_named(simulated: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "other").mkdir()
    for place in (tmp_path / "nowhere", tmp_path / "other"):
        assert main(["fit", str(place), str(tmp_path / "out"), *FIT]) == 1
        error = capsys.readouterr().err
        assert_one_line(error)
        assert str(place) in error
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_unusable_frames_are_named(simulated: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    study = Study.open(simulated)
    study.save(tmp_path / "study")
    frame = int(study.trials["start"].iloc[0])
    who = study.trials["participant"].iloc[0]
    frames = np.load(tmp_path / "study" / "frames" / f"{who}.npy", mmap_mode="r+")
    frames[frame, 3] = np.inf
    frames.flush()
    assert main(["fit", str(tmp_path / "study"), str(tmp_path / "out"), *FIT]) == 1
    error = capsys.readouterr().err
    assert_one_line(error)
    assert_names(error, who, f"frame {frame}", "voxel 3")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "model"),
    [
        (["--embedding-dim", "3"], "htfa"),
        (["--block", "trial"], "ntfa"),
        (["--embedding-dim", "3"], "tfa"),
        (["--design", "run"], "ntfa"),
    ],
)
def test_an_option_of_another_model_is_refused(
    simulated: str, tmp_path: Path, capsys: pytest.CaptureFixture, option: list[str], model: str
) -> None:
    assert main(["fit", simulated, str(tmp_path / "out"), "--model", model, *option]) == 1
    error = capsys.readouterr().err
    assert_one_line(error)
    assert option[0] in error
    assert model in error


USAGE = [
    ["bogus"],
    ["fit"],
    ["fit", "study"],
    ["fit", "study", "out", "--n-factors", "0"],
    ["fit", "study", "out", "--n-factors", "some"],
    ["fit", "study", "out", "--max-epochs", "-3"],
    ["fit", "study", "out", "--model", "pca"],
    ["fit", "study", "out", "--inference", "exact"],
    ["fit", "study", "out", "--seed", "x"],
    ["simulate", "out", "--like", "life"],
    ["simulate", "out", "--voxels", "0"],
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: ntfa" in capsys.readouterr().err


def test_wrong_numbers_are_refused_in_words(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "study", "out", "--n-factors", "some"])
    assert "_count" not in capsys.readouterr().err


def test_fit_takes_v(no_pictures: None, simulated: str, tmp_path: Path) -> None:
    try:
        assert main(["fit", simulated, str(tmp_path / "out"), *FIT, "-v"]) == 0
    except SystemExit:
        pytest.fail("no option -v")


@pytest.mark.parametrize("command", ["simulate", "fit"])
def test_a_place_that_cannot_be_written_to(
    simulated: str, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "out")
    monkeypatch.setattr("ntfa.estimators.base.optimise_all", lambda *args: pytest.fail("fitted before looking"))
    assert main([command, out, *TINY] if command == "simulate" else [command, simulated, out, *FIT]) == 1
    assert_one_line(capsys.readouterr().err)


def test_a_study_is_not_overwritten_by_its_own_fit(no_pictures: None, simulated: str, tmp_path: Path) -> None:
    Study.open(simulated).save(tmp_path / "study")
    before = contents(tmp_path / "study")
    main(["fit", str(tmp_path / "study"), str(tmp_path / "study"), *FIT, "--overwrite"])
    assert contents(tmp_path / "study") == before


def test_a_negative_seed_is_refused(simulated: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["fit", simulated, str(tmp_path / "out"), *FIT, "--seed", "-1", "--init", "kmeans"])
    assert "'-1' is not a whole number" in capsys.readouterr().err


def test_an_interruption_before_the_fit_ends_with_130(
    simulated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "open", interrupt)
    assert main(["fit", simulated, str(tmp_path / "out"), *FIT]) == 130
    assert capsys.readouterr().err.startswith("ntfa: stopped by signal 2")


def test_errors_that_are_not_ours_are_not_hidden(
    simulated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(NTFA, "fit", lambda *args, **kwargs: fail())
    with pytest.raises(ZeroDivisionError):
        main(["fit", simulated, str(tmp_path / "out"), *FIT])


def test_every_error_of_ours_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def fail(*args: Any) -> None:
        raise ModelError("said so")

    monkeypatch.setattr(Study, "open", fail)
    assert main(["fit", "study", "out"]) == 1
    assert capsys.readouterr().err == "ntfa: error: said so\n"


# --- greeting


def test_without_a_command_people_are_greeted(capsys: pytest.CaptureFixture) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    for command in ("ntfa demo", "ntfa bids", "ntfa fit", "--help"):
        assert command in said


# --- demo


def test_the_demo_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ntfa.cli.demo._run", lambda args: Path(args.out).mkdir())
    for name in ("ntfa-demo", "ntfa-demo-2", "ntfa-demo-3"):
        assert main(["demo", "-q"]) == 0
        assert (tmp_path / name).is_dir()


def test_the_demo_counts_groups_in_the_embeddings_not_in_the_truth(fitted_once: Path, simulated: str) -> None:
    study, model = Study.open(simulated), NTFA.load(fitted_once)
    truth = simulate("synthetic", n_participants=4, n_stimuli=4, n_frames=4, n_voxels=200).truth
    model.participants_[["z1", "z2"]] = [[0.0, 0], [0, 1], [50, 0], [50, 1]]
    model.stimuli_[["z1", "z2"]] = 0.0
    _, participants, stimuli, *_ = findings(model, truth, study)
    assert truth.participant_groups.nunique() == 3
    assert re.search(r"into (\d+) clusters", participants).group(1) == "2"
    assert re.search(r"into (\d+) clusters", stimuli) is None
    assert "Rand index 1.00" not in participants + stimuli


def test_the_demo_finds_what_was_simulated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "demo"
    assert main(["demo", str(out)]) == 0
    said = capsys.readouterr().out
    for name, truth in (("participants", 3), ("stimuli", 2)):
        found = find_groups(getattr(NTFA.load(out), f"{name}_"))
        line = next(line for line in said.splitlines() if f"the {name} fall into" in line)
        assert re.search(r"into (\d+) clusters", line).group(1) == str(found.n_clusters) == str(truth)
        assert f"{found.p_value:.1%}" in line
        assert "Rand index 1.00" in line
    places = re.search(r"The factors .* at (\(.*\)) mm, at most (\S+) mm from", said)
    assert places is not None
    assert places.group(1).count("(") == 3
    assert float(places.group(2)) < 2
    assert str(out / "report.html") in said
    assert {path.name for path in out.iterdir()} >= FILES | {"embeddings.png"}
    assert (out / "embeddings.png").read_bytes().startswith(b"\x89PNG")
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "the participants fall into 3 clusters" in report
    summary = json.loads((out / "summary.json").read_text())
    assert summary["converged"] is True
    assert summary["noise_sd"] == pytest.approx(1, rel=0.01)
    assert main(["demo", str(out)]) == 1
