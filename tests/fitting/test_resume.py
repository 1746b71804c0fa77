"""A fit that was interrupted goes on to the result, to the bit, of one that was not."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import assert_names, naming
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import ntfa.fitting.checkpoint
from ntfa import HTFA, NTFA, Study
from ntfa.cli import main
from ntfa.errors import Interrupted, ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.fitting.checkpoint import Checkpoint, _sealed
from ntfa.fitting.training import Trainer

Patch = pytest.MonkeyPatch
TABLES = ("factors_", "participants_", "stimuli_", "template_", "loadings_")


def stop_at(patch: Patch, step: int, number: int = signal.SIGTERM, restart: int = 0) -> None:
    """Let the checkpoint believe that a signal came during this step of this restart."""

    def after_step(self: Checkpoint, trainer: Trainer) -> None:
        if self.path.stem == f"restart-{restart}" and len(trainer.history.bounds) == step:
            self.signals.append(number)
        original(self, trainer)

    original = Checkpoint.after_step
    patch.setattr(Checkpoint, "after_step", after_step)


def interrupt(model: TopographicModel, study: Study, folder: Path, **when: Any) -> Interrupted:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, **when)
        with pytest.raises(Interrupted) as caught:
            model.fit(study, checkpoint=folder)
    return caught.value


def assert_same(one: TopographicModel, other: TopographicModel, study: Study) -> None:
    for name in TABLES:
        assert hasattr(one, name) == hasattr(other, name)
        if hasattr(one, name):
            pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True, obj=name)
    history = [model.history_.drop(columns="seconds") for model in (one, other)]
    pd.testing.assert_frame_equal(*history, check_exact=True)
    assert (one.noise_, one.stopped_) == (other.noise_, other.stopped_)
    np.testing.assert_array_equal(one.predict(study.trials), other.predict(study.trials))


# --- from Python


@pytest.mark.parametrize("step", [1, 7, 12])
def test_an_interrupted_fit_goes_on_to_the_same_bits(
    kind: Any, study: Study, fitted: Callable[[Any], TopographicModel], tmp_path: Path, step: int
) -> None:
    stop = interrupt(kind.make(), study, tmp_path, step=step)
    assert_names(stop, f"step {step}", tmp_path)
    resumed = kind.make().fit(study, checkpoint=tmp_path)
    assert_same(resumed, fitted(kind), study)
    assert resumed.history_["seconds"].is_monotonic_increasing


@pytest.mark.parametrize("schedule", ["one-cycle", "paper"])
@pytest.mark.parametrize("inference", ["collapsed", "mean-field"])
def test_several_interruptions_of_a_fit_with_particles(
    study: Study, tmp_path: Path, inference: str, schedule: str
) -> None:
    settings = {"n_factors": 3, "inference": inference, "schedule": schedule, "n_particles": 2, "init": "kmeans"}
    make = lambda: NTFA(**settings, max_epochs=15, random_state=2, uncertainty="laplace")  # noqa: E731
    for step in (2, 3, 9):
        interrupt(make(), study, tmp_path, step=step)
    assert_same(make().fit(study, checkpoint=tmp_path), make().fit(study), study)


def test_learning_rates_go_on_cooling_where_they_were(study: Study, tmp_path: Path) -> None:
    make = lambda: NTFA(n_factors=3, max_epochs=60, random_state=0, uncertainty="laplace")  # noqa: E731
    interrupt(make(), study, tmp_path, step=45)
    assert_same(make().fit(study, checkpoint=tmp_path), make().fit(study), study)


@pytest.mark.parametrize("restart", [0, 1, 2])
def test_restarts_go_on_where_they_were(study: Study, tmp_path: Path, restart: int) -> None:
    make = lambda: NTFA(n_factors=3, n_restarts=3, max_epochs=12, random_state=0, uncertainty="laplace")  # noqa: E731
    interrupt(make(), study, tmp_path, step=5, restart=restart)
    assert len(list(tmp_path.glob("restart-*"))) == restart + 1
    assert_same(make().fit(study, checkpoint=tmp_path), make().fit(study), study)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_fit_that_died_goes_on_from_its_last_checkpoint(
    study: Study, tmp_path: Path, monkeypatch: Patch, error: type[BaseException]
) -> None:
    """Whatever it died of, and even in the middle of a step."""
    make = lambda: NTFA(n_factors=3, inference="mean-field", max_epochs=12, random_state=0, uncertainty="laplace")  # noqa: E731
    objective = Trainer.objective

    def die(self: Trainer, *args: Any) -> Any:
        result = objective(self, *args)
        if len(self.history.bounds) == 6:
            raise error
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ntfa.fitting.checkpoint, "SECONDS_BETWEEN", 0)
        patch.setattr(Trainer, "objective", die)
        with pytest.raises(error):
            make().fit(study, checkpoint=tmp_path)
    kept = load_file(tmp_path / "restart-0.safetensors")
    assert len(kept["history"]) == 6
    assert_same(make().fit(study, checkpoint=tmp_path), make().fit(study), study)


def test_a_checkpoint_is_written_now_and_then(study: Study, tmp_path: Path, monkeypatch: Patch) -> None:
    writes: list[int] = []
    write = Checkpoint.write

    def count(self: Checkpoint, trainer: Trainer) -> None:
        writes.append(len(trainer.history.bounds))
        write(self, trainer)

    monkeypatch.setattr(Checkpoint, "write", count)
    make = lambda: NTFA(n_factors=3, max_epochs=5, random_state=0, uncertainty="laplace")  # noqa: E731
    make().fit(study, checkpoint=tmp_path / "rarely")
    assert writes == [5]
    monkeypatch.setattr(ntfa.fitting.checkpoint, "SECONDS_BETWEEN", 0)
    make().fit(study, checkpoint=tmp_path / "often")
    assert writes[1:] == [1, 2, 3, 4, 5, 5]
    names = sorted(path.name for path in (tmp_path / "often").iterdir())
    assert names == ["choice.json", "restart-0.previous.safetensors", "restart-0.safetensors"]


def test_a_finished_fit_takes_no_further_step(study: Study, tmp_path: Path, monkeypatch: Patch) -> None:
    make = lambda: HTFA(n_factors=3, n_restarts=2, max_epochs=6, random_state=0)  # noqa: E731
    first = make().fit(study, checkpoint=tmp_path)
    monkeypatch.setattr(Trainer, "step", lambda *args: pytest.fail("took a step"))
    again = make().fit(study, checkpoint=tmp_path)
    assert_same(again, first, study)
    assert again.history_.equals(first.history_)


def test_signals_are_handled_as_before_after_a_fit(study: Study, tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    NTFA(n_factors=2, max_epochs=2, random_state=0).fit(study, checkpoint=tmp_path / "whole")
    assert [signal.getsignal(number) for number in numbers] == before
    interrupt(NTFA(n_factors=2, max_epochs=4, random_state=0), study, tmp_path / "half", step=2)
    assert [signal.getsignal(number) for number in numbers] == before


OTHERS = {
    "seed": {"random_state": 1},
    "factors": {"n_factors": 4},
    "inference": {"inference": "mean-field"},
    "epochs": {"max_epochs": 13},
    "init": {"init": "kmeans"},
    "schedule": {"schedule": "paper"},
    "particles": {"n_particles": 2},
    "dimensions": {"embedding_dim": 3},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_other_settings_is_refused(study: Study, tmp_path: Path, other: str) -> None:
    settings = {"n_factors": 3, "max_epochs": 12, "random_state": 0}
    interrupt(NTFA(**settings), study, tmp_path, step=3)
    before = (tmp_path / "restart-0.safetensors").read_bytes()
    with pytest.raises(ModelError, match=naming("restart-0.safetensors")) as caught:
        NTFA(**settings | OTHERS[other]).fit(study, checkpoint=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert (tmp_path / "restart-0.safetensors").read_bytes() == before


def test_a_checkpoint_of_another_model_or_study_is_refused(study: Study, tmp_path: Path) -> None:
    settings = {"n_factors": 3, "max_epochs": 12, "random_state": 0}
    interrupt(NTFA(**settings), study, tmp_path, step=3)
    with pytest.raises(ModelError, match=naming("restart-0.safetensors")):
        HTFA(**settings).fit(study, checkpoint=tmp_path)
    scaled = {participant: 2 * array for participant, array in study.frames.items()}
    others = [
        study.select(stimuli=study.stimuli[:3]),
        Study.from_arrays(scaled, study.trials, study.coordinates),
        Study.from_arrays(study.frames, study.trials, study.coordinates[::-1]),
        Study.from_arrays(study.frames, study.trials.assign(stop=study.trials["stop"] - 1), study.coordinates),
    ]
    for other in others:
        with pytest.raises(ModelError, match=naming("restart-0.safetensors")):
            NTFA(**settings).fit(other, checkpoint=tmp_path)


def test_other_verbosity_goes_on(study: Study, tmp_path: Path) -> None:
    settings = {"n_factors": 3, "max_epochs": 6, "random_state": 0}
    interrupt(NTFA(**settings), study, tmp_path, step=3)
    resumed = NTFA(**settings, verbose=1, device="cpu").fit(study, checkpoint=tmp_path)
    assert_same(resumed, NTFA(**settings).fit(study), study)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04\x95" + bytes(100)])
def test_garbage_for_a_checkpoint_is_refused(study: Study, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "restart-0.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=naming("restart-0.safetensors")) as caught:
        NTFA(n_factors=3, max_epochs=4, random_state=0).fit(study, checkpoint=tmp_path)
    assert "restart-0.safetensors" in str(caught.value)


def test_a_truncated_or_foreign_checkpoint_is_refused(study: Study, tmp_path: Path) -> None:
    make = lambda: NTFA(n_factors=3, max_epochs=6, random_state=0)  # noqa: E731
    interrupt(make(), study, tmp_path, step=3)
    path = tmp_path / "restart-0.safetensors"
    whole, tensors = path.read_bytes(), load_file(path)
    path.write_bytes(whole[:-100])
    with pytest.raises(ModelError, match=naming("restart-0.safetensors")):
        make().fit(study, checkpoint=tmp_path)
    save_file(tensors, path)
    with pytest.raises(ModelError, match="checksum"):
        make().fit(study, checkpoint=tmp_path)


def test_a_checkpoint_without_its_tensors_is_refused(study: Study, tmp_path: Path) -> None:
    make = lambda: NTFA(n_factors=3, max_epochs=6, random_state=0)  # noqa: E731
    interrupt(make(), study, tmp_path, step=3)
    path = tmp_path / "restart-0.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    del tensors["noise"]
    path.write_bytes(_sealed(tensors, metadata))
    with pytest.raises(ModelError, match=naming("restart-0.safetensors", "noise")):
        make().fit(study, checkpoint=tmp_path)


def test_a_fit_without_a_seed_cannot_be_resumed_and_says_so(study: Study, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="random_state"):
        NTFA(n_factors=3, max_epochs=6).fit(study, checkpoint=tmp_path)


# --- from the command line


ARGUMENTS = ["--response", "loadings", "--n-factors", "3", "--max-epochs", "30", "--seed", "3", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _no_pictures(no_pictures: None) -> None:
    """Reports are the business of other tests."""


@pytest.fixture(scope="module")
def uninterrupted(study_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("uninterrupted") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "ntfa.report.build.write_report", lambda model, study, path, *rest, **more: path.write_text("<h1>")
        )
        assert main(["fit", study_folder, str(out), *ARGUMENTS]) == 0
    return out


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


OF_THE_REPORT = {"figures", "labels_participants.tsv", "labels_stimuli.tsv", "predictions.tsv", "report.json"}
OF_THE_REPORT |= {"embeddings.png", "factors.nii.gz", "loadings_stimuli.tsv"}


def assert_same_output(one: Path, other: Path) -> None:
    assert {path.name for path in one.iterdir()} ^ {path.name for path in other.iterdir()} <= OF_THE_REPORT
    for name in ("embeddings_participants.tsv", "embeddings_stimuli.tsv", "factors.tsv"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    history = [pd.read_csv(folder / "history.tsv", sep="\t").drop(columns="seconds") for folder in (one, other)]
    pd.testing.assert_frame_equal(*history, check_exact=True)
    tensors = [load_file(folder / "model.safetensors") for folder in (one, other)]
    assert tensors[0].keys() == tensors[1].keys()
    for name in tensors[0]:
        np.testing.assert_array_equal(tensors[0][name].numpy(), tensors[1][name].numpy(), err_msg=name)


def stopped(command: list[str], **when: Any) -> int:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, **when)
        return main(command)


def test_restarts_of_a_command_go_on(study_folder: str, tmp_path: Path) -> None:
    command = ["fit", study_folder, str(tmp_path / "out"), *ARGUMENTS, "--max-epochs", "8", "--n-restarts", "3"]
    assert stopped(command, step=4, restart=1) == 143
    assert stopped([*command, "--resume"], step=4, restart=2, number=signal.SIGINT) == 130
    assert main([*command, "--resume"]) == 0
    assert main(["fit", study_folder, str(tmp_path / "whole"), *command[3:]]) == 0
    assert_same_output(tmp_path / "out", tmp_path / "whole")


def test_resume_without_a_checkpoint_starts(study_folder: str, tmp_path: Path, uninterrupted: Path) -> None:
    assert main(["fit", study_folder, str(tmp_path / "out"), *ARGUMENTS, "--resume"]) == 0
    assert_same_output(tmp_path / "out", uninterrupted)


def test_resume_of_a_complete_output_says_so(
    study_folder: str, uninterrupted: Path, capsys: pytest.CaptureFixture
) -> None:
    before = contents(uninterrupted)
    assert main(["fit", study_folder, str(uninterrupted), *ARGUMENTS, "--resume"]) == 0
    assert_names(capsys.readouterr().out, uninterrupted)
    assert contents(uninterrupted) == before


def test_resume_with_other_settings_is_refused(
    study_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    command = ["fit", study_folder, str(tmp_path / "out"), *ARGUMENTS]
    assert stopped(command, step=4) == 143
    capsys.readouterr()
    assert main([*command, "--seed", "4", "--resume"]) == 1
    assert_names(capsys.readouterr().err, "ntfa: error:", ".out.checkpoint")
    assert main([*command, "--model", "htfa", "--resume"]) == 1
    assert main([*command, "--resume"]) == 0


def test_garbage_for_the_checkpoint_of_a_command(
    study_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    command = ["fit", study_folder, str(tmp_path / "out"), *ARGUMENTS]
    assert stopped(command, step=4) == 143
    (tmp_path / ".out.checkpoint" / "restart-0.safetensors").write_bytes(b"garbage")
    capsys.readouterr()
    assert main([*command, "--resume"]) == 1
    message = capsys.readouterr().err
    assert "restart-0.safetensors" in message
    assert "without --resume" in message
    assert main(command) == 0


def test_starting_anew_does_not_use_an_old_checkpoint(study_folder: str, tmp_path: Path, uninterrupted: Path) -> None:
    command = ["fit", study_folder, str(tmp_path / "out"), *ARGUMENTS]
    assert stopped([*command, "--seed", "9"], step=4) == 143
    assert main(command) == 0
    assert_same_output(tmp_path / "out", uninterrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_command_to_go_on_is_not_repeated(study_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = ["fit", study_folder, str(tmp_path / "out"), *ARGUMENTS]
    assert stopped(command, step=4) == 143
    assert stopped([*command, "--resume"], step=6) == 143
    assert capsys.readouterr().err.count("--resume") == 2


def test_the_command_to_go_on_can_be_pasted(study_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = ["fit", study_folder, str(tmp_path / "my results"), *ARGUMENTS]
    assert stopped(command, step=4) == 143
    assert f"'{tmp_path / 'my results'}'" in capsys.readouterr().err


def test_an_interrupted_demo_does_not_send_one_astray(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert stopped(["demo", str(tmp_path / "out")], step=2) == 143
    assert "--resume" not in capsys.readouterr().err


def test_resume_does_not_fit_for_an_output_that_may_not_be_replaced(
    study_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    command = ["fit", study_folder, str(tmp_path / "out"), *ARGUMENTS]
    (tmp_path / "out").mkdir()
    assert stopped([*command, "--overwrite"], step=4) == 143
    assert main([*command, "--resume"]) == 1
    assert (tmp_path / ".out.checkpoint" / "restart-0.safetensors").exists()


def test_resume_never_mixes_two_models(study_folder: str, tmp_path: Path) -> None:
    command = ["fit", study_folder, str(tmp_path / "out"), *ARGUMENTS]
    (tmp_path / "out").mkdir()
    assert stopped([*command, "--overwrite"], step=4) == 143
    assert main([*command, "--resume"]) == 1
    main([*command, "--resume", "--overwrite", "--model", "htfa"])
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert not {"template.tsv", "embeddings_participants.tsv"} <= files


def test_resume_does_not_take_any_folder_for_an_output(
    study_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    main(["fit", study_folder, str(tmp_path / "photos"), *ARGUMENTS, "--resume"])
    assert "complete" not in capsys.readouterr().out
