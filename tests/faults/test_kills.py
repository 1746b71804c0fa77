"""Commands that are killed, told to stop, run out of disk or meet each other end in the result they would have had."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import assert_names
from killing import Command, appears, names, state

from ntfa.cli import main

FIT = ["--n-factors", "3", "--max-epochs", "25", "--device", "cpu"]
KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "study"
    size = ["--participants", "3", "--stimuli", "3", "--frames", "4", "--voxels", "150", "--factors", "3"]
    assert main(["simulate", str(folder), *size, "--quiet"]) == 0
    return folder


@pytest.fixture(scope="module")
def results(study: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Undisturbed results: `old` of seed 1, `new` of seed 0. Do not write into them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for name, seed in (("old", "1"), ("new", "0")):
        command = Command(["fit", study, folder / name, *FIT, "--seed", seed], folder / f"{name}.log", every=1e9)
        assert command.run() == 0, command.said
    return {name: folder / name for name in ("old", "new")}


Fit = Callable[..., Command]


@pytest.fixture
def fit(study: Path, tmp_path: Path) -> Fit:
    """Make a command that fits to `tmp_path/work/out`."""
    (tmp_path / "work").mkdir()

    def make(*options: Any, **settings: Any) -> Command:
        arguments = ["fit", study, tmp_path / "work" / "out", *FIT, *options]
        return Command(arguments, tmp_path / "log", **settings)

    return make


MOMENTS = {
    "before the first step": ("ntfa.fitting.training:Trainer.step", 1),
    "before a later step": ("ntfa.fitting.training:Trainer.step", 17),
    "writing a checkpoint": ("ntfa.files.folders:os.fsync", 9),
    "after a checkpoint took its place": ("ntfa.fitting.checkpoint:flush", 5),
    "writing the results": ("ntfa.cli.results:write_model", 1),
    "before the results are in place": ("ntfa.files.folders:publish", 1),
    "after the results are in place": ("ntfa.files.folders:discard", 1),
    "before the checkpoint is removed": ("ntfa.cli.results:discard", 2),
    "between the fit and that of halves": ("ntfa.estimators.ntfa:halve", 1),
    "before the first step to halves": ("ntfa.fitting.training:Trainer.step", 26),
    "before a later step to halves": ("ntfa.fitting.training:Trainer.step", 40),
    "calibrating": ("ntfa.estimators.ntfa:calibrate", 1),
}
DONE = ("after the results are in place", "before the checkpoint is removed")


@pytest.mark.parametrize(("moment", "overwrite"), [(moment, bool(i % 2)) for i, moment in enumerate(MOMENTS)])
def test_kill_9_and_resume_is_the_same_as_never_killed(
    fit: Fit, results: dict[str, Path], tmp_path: Path, moment: str, overwrite: bool
) -> None:
    out, options = tmp_path / "work" / "out", ["--overwrite"] if overwrite else []
    if overwrite:
        shutil.copytree(results["old"], out)
    assert fit(*options, die_at=MOMENTS[moment]).run() == KILLED
    assert out.exists() == (overwrite or moment in DONE)
    if out.exists():
        wanted = "new" if moment in DONE else "old"
        assert names(out) == names(results[wanted])
        assert state(out) == state(results[wanted])
    again = fit(*options, "--resume")
    assert again.run() == 0, again.said
    assert state(out) == state(results["new"])
    assert names(tmp_path / "work") == ["out"]
    # Results are reported once they are written, and not where they were there already.
    assert ("report.html" not in again.said) == (moment in DONE)


def test_killed_again_and_again(fit: Fit, results: dict[str, Path], tmp_path: Path) -> None:
    for _ in range(4):
        assert fit("--resume", die_at=("ntfa.fitting.training:Trainer.step", 7)).run() == KILLED
    assert fit("--resume").run() == 0
    assert state(tmp_path / "work" / "out") == state(results["new"])


def test_without_atomic_exchange_old_results_come_back(
    fit: Fit, results: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that cannot swap two folders, and a kill just between the two moves."""
    from ntfa.files import folders

    out, partial = tmp_path / "work" / "out", tmp_path / "work" / ".out.partial-01234567"
    shutil.copytree(results["old"], out)
    shutil.copytree(results["new"], partial)
    replace, moves = folders.os.replace, []

    def killed(source: Path, target: Path) -> None:
        if moves:
            raise SystemExit
        moves.append(source)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(folders, "exchange", lambda one, other: False)
        patch.setattr(folders.os, "replace", killed)
        with pytest.raises(SystemExit):
            folders.publish(partial, out, overwrite=True, mark="config.json")
    assert not out.exists()
    with folders.only_writer(out):
        assert state(out) == state(results["old"])
    assert names(tmp_path / "work") == ["out"]


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
WHILE = {
    "fitting": ("ntfa.fitting.training:Trainer.step", 9),
    "starting": ("ntfa.fitting.optimise:find_start", 1),
    "writing results": ("ntfa.cli.results:write_model", 1),
}


@pytest.mark.parametrize(("number", "code"), SIGNALS, ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("when", WHILE)
def test_a_signal_is_obeyed_at_any_time(
    fit: Fit, results: dict[str, Path], tmp_path: Path, number: int, code: int, when: str
) -> None:
    stopped = fit(die_at=WHILE[when], die_with=number)
    assert stopped.run() == code
    assert_names(stopped.said, f"signal {number}")
    assert f"ntfa {' '.join(map(str, stopped.arguments))} --resume" in stopped.said
    assert "Traceback" not in stopped.said
    assert names(tmp_path / "work") == [".out.checkpoint"]
    assert ("checkpoint written" in stopped.said) == (when == "fitting")
    assert fit("--resume").run() == 0
    assert state(tmp_path / "work" / "out") == state(results["new"])


# --- a full disk


def test_a_full_disk_while_fitting_costs_checkpoints_not_the_fit(fit: Fit, tmp_path: Path) -> None:
    """Checkpoints are larger than results here: both fits go on, say so once each, and end well."""
    command = fit("--response", "network", largest_file=40_000)
    assert command.run() == 0, command.said
    for checkpoint in (".out.checkpoint/restart-0.safetensors", "halves/restart-0.safetensors"):
        assert command.said.count(f"{checkpoint} could not be written") == 1
    assert names(tmp_path / "work") == ["out"]


def test_a_full_disk_for_the_results_keeps_the_old_ones_and_the_checkpoint(
    fit: Fit, results: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "work" / "out"
    shutil.copytree(results["old"], out)
    assert fit("--overwrite", die_at=("ntfa.cli.results:write_model", 1)).run() == KILLED
    full = fit("--overwrite", "--resume", largest_file=2_000)
    assert full.run() == 1
    assert_names(full.said, "ntfa: error:", out)
    assert "Traceback" not in full.said
    assert state(out) == state(results["old"])
    assert names(tmp_path / "work") == [".out.checkpoint", "out"]
    assert fit("--overwrite", "--resume").run() == 0
    assert state(out) == state(results["new"])


def test_told_to_stop_with_the_disk_full(fit: Fit, results: dict[str, Path], tmp_path: Path) -> None:
    """What cannot be written is said; the checkpoint before it is still there."""
    assert fit(die_at=("ntfa.fitting.training:Trainer.step", 9)).run() == KILLED
    before = (tmp_path / "work" / ".out.checkpoint" / "restart-0.safetensors").read_bytes()
    number = signal.SIGTERM
    stopped = fit("--resume", every=1e9, largest_file=2_000, die_at=WHILE["fitting"], die_with=number)
    assert stopped.run() == 1
    assert_names(stopped.said, "ntfa: error:", "restart-0.safetensors")
    assert (tmp_path / "work" / ".out.checkpoint" / "restart-0.safetensors").read_bytes() == before
    assert fit("--resume").run() == 0
    assert state(tmp_path / "work" / "out") == state(results["new"])


# --- folders that go, processes that meet


def test_folders_removed_while_a_fit_runs(fit: Fit, results: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "work" / "out"
    shutil.copytree(results["old"], out)
    command = fit("--overwrite", die_at=("ntfa.fitting.training:Trainer.step", 9), die_with=signal.SIGSTOP).start()
    appears(tmp_path / "work" / ".out.checkpoint" / "restart-0.previous.safetensors")
    command.wait_until_stopped()
    shutil.rmtree(tmp_path / "work")
    command.send(signal.SIGCONT)
    assert command.wait(60) == 0, command.said
    assert state(out) == state(results["new"])


def test_the_second_process_is_refused(fit: Fit, results: dict[str, Path], tmp_path: Path) -> None:
    first = fit(die_at=("ntfa.fitting.training:Trainer.step", 9), die_with=signal.SIGSTOP).start()
    appears(tmp_path / "work" / ".out.checkpoint" / "restart-0.safetensors")
    for options in (["--overwrite"], ["--resume"]):
        second = fit(*options)
        second.log = tmp_path / "second.log"
        assert second.run() == 1
        assert_names(second.said, "ntfa: error:", first.process.pid)
    first.send(signal.SIGKILL)
    assert first.wait(60) == KILLED
    assert fit("--resume").run() == 0
    assert state(tmp_path / "work" / "out") == state(results["new"])
