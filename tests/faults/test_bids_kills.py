"""`ntfa bids`, killed while it prepares, assembles or fits, or running twice, ends in the result it would have had."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from helpers import assert_names
from killing import Command, appears, names, state

from ntfa.files.folders import only_writer
from ntfa.simulation import Simulator
from ntfa.simulation.bids import write_bids

OPTIONS = ["--rest", "rest", "--keep-white-matter", "--n-factors", "2", "--max-epochs", "12", "--device", "cpu"]
# Jobs of several participants may describe the dataset at the same time, so none removes what another left of that.
DESCRIBING = ".dataset_description.json.partial-"
Bids = Callable[..., Command]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    simulator = Simulator.create("synthetic", n_participants=2, n_stimuli=2, n_frames=5, n_voxels=80, n_factors=2)
    folder = tmp_path_factory.mktemp("faults") / "dataset"
    write_bids(simulator, folder)
    # Masks that differ: columns of the other participant's frames are sorted when the study is assembled.
    (path,) = folder.glob("derivatives/fmriprep/sub-02/func/*desc-brain_mask.nii.gz")
    mask = nibabel.load(path)
    inside = np.asarray(mask.dataobj).copy()
    inside[tuple(np.argwhere(inside)[5])] = 0
    nibabel.Nifti1Image(inside, mask.affine, mask.header).to_filename(path)
    return folder


@pytest.fixture
def bids(dataset: Path, tmp_path: Path) -> Bids:
    def make(*options: Any, out: str = "out", level: str = "group", **settings: Any) -> Command:
        arguments = ["bids", dataset, tmp_path / out, level, *OPTIONS, *options]
        return Command(arguments, tmp_path / "log", **settings)

    return make


@pytest.fixture(scope="module")
def whole(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    command = Command(["bids", dataset, folder / "out", "group", *OPTIONS], folder / "log")
    assert command.run() == 0, command.said
    return contents(folder / "out")


def contents(out: Path) -> dict[str, Any]:
    """Everything that was prepared, and the results, to the bit."""
    prepared = {path.name: path.read_bytes() for path in out.glob("sub-*/func/*") if path.suffix in (".npy", ".tsv")}
    return state(out / "ntfa") | prepared | {"names": [name for name in names(out) if not name.startswith(DESCRIBING)]}


MOMENTS = {
    "describing the dataset": ("ntfa.files.folders:os.fsync", 1),
    "preparing the second participant": ("ntfa.study.derivative:prepare_participant", 2),
    "writing the first participant": ("ntfa.files.folders:publish", 1),
    "sorting columns": ("ntfa.study.derivative:save_array", 3),
    "putting sorted columns in place": ("ntfa.files.folders:publish", 3),
    "assembling the study": ("ntfa.study.folder:StudyWriter.link", 2),
    "fitting": ("ntfa.fitting.training:Trainer.step", 8),
    "writing the results": ("ntfa.cli.results:write_model", 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_kill_9_and_resume_is_the_same_as_never_killed(
    bids: Bids, whole: dict[str, Any], tmp_path: Path, moment: str
) -> None:
    assert bids(die_at=MOMENTS[moment]).run() == -signal.SIGKILL
    assert not (tmp_path / "out" / "ntfa").exists()
    again = bids("--resume")
    assert again.run() == 0, again.said
    assert contents(tmp_path / "out") == whole


def test_sigterm_while_preparing(bids: Bids, whole: dict[str, Any], tmp_path: Path) -> None:
    stopped = bids(die_at=MOMENTS["preparing the second participant"], die_with=signal.SIGTERM)
    assert stopped.run() == 143
    assert_names(stopped.said, "signal 15")
    assert "Traceback" not in stopped.said
    assert names(tmp_path / "out") == ["dataset_description.json", "sub-01"]
    assert bids("--resume").run() == 0
    assert contents(tmp_path / "out") == whole


def test_a_full_disk_while_preparing_is_said_and_leaves_nothing_behind(
    bids: Bids, whole: dict[str, Any], tmp_path: Path
) -> None:
    full = bids(largest_file=3_000)
    assert full.run() == 1
    assert_names(full.said, "ntfa: error:", tmp_path / "out" / "sub-01")
    assert "Traceback" not in full.said
    assert names(tmp_path / "out") == ["dataset_description.json"]
    assert bids("--resume").run() == 0
    assert contents(tmp_path / "out") == whole


def test_participants_may_be_prepared_at_the_same_time_but_none_twice(bids: Bids, tmp_path: Path) -> None:
    """As on a cluster, a job a participant."""
    with only_writer(tmp_path / "out" / "sub-01"):
        refused = bids("--participant-label", "01", level="participant")
        assert refused.run() == 1
        assert_names(refused.said, "sub-01", os.getpid())
        assert bids("--participant-label", "02", level="participant").run() == 0
    assert bids(level="participant").run() == 0
    assert names(tmp_path / "out") == ["dataset_description.json", "sub-01", "sub-02"]


def test_output_removed_while_the_fit_runs(bids: Bids, whole: dict[str, Any], tmp_path: Path) -> None:
    command = bids(die_at=MOMENTS["fitting"], die_with=signal.SIGSTOP).start()
    appears(tmp_path / "out" / ".ntfa.checkpoint" / "restart-0.previous.safetensors")
    command.wait_until_stopped()
    shutil.rmtree(tmp_path / "out")
    command.send(signal.SIGCONT)
    assert command.wait(60) == 0, command.said
    assert state(tmp_path / "out" / "ntfa").items() <= whole.items()
    assert bids("--resume").run() == 0
    assert contents(tmp_path / "out")["factors.tsv"] == whole["factors.tsv"]
