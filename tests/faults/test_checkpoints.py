"""A damaged checkpoint is noticed, wherever the damage is, and the one before it is used."""

import logging
import random
import re
from pathlib import Path

import pytest
import torch
from helpers import naming
from killing import names

import ntfa.fitting.checkpoint
from ntfa import NTFA, Study
from ntfa.errors import ModelError
from ntfa.estimators.base import TopographicModel
from ntfa.fitting.checkpoint import Checkpoint, _opened, _sealed
from ntfa.fitting.divergence import BackOff, Good
from ntfa.fitting.sharing import Sharing
from ntfa.fitting.training import History
from ntfa.inference.bounds import Bound


@pytest.fixture(scope="module")
def content() -> bytes:
    tensors = {"a": torch.arange(40, dtype=torch.float64), "b": torch.zeros(3, 2), "noise": torch.ones(9).byte()}
    return _sealed(tensors, {"identity": '{"a": "b"}', "stopped": ""})


def test_a_sealed_file_opens(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    tensors, metadata = _opened(path)
    assert torch.equal(tensors["a"], torch.arange(40, dtype=torch.float64))
    assert metadata["identity"] == '{"a": "b"}'


def test_a_bit_flipped_at_any_byte_is_noticed(content: bytes, tmp_path: Path) -> None:
    path, rng = tmp_path / "file", random.Random(0)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match=naming(path)):
            _opened(path)


def test_a_file_cut_at_any_byte_or_longer_is_noticed(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for damaged in [content[:size] for size in range(len(content))] + [content + b"\0", content + content]:
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match=naming(path)):
            _opened(path)


def model(**settings: object) -> TopographicModel:
    return NTFA(**{"n_factors": 3, "max_epochs": 12, "random_state": 0, "uncertainty": "laplace"} | settings)


@pytest.fixture
def folder(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of a fit that died at step 8, of steps 7 and 6."""

    class Died(Exception):
        pass

    def die(self: Checkpoint, trainer: object) -> None:
        write(self, trainer)
        if len(trainer.history.bounds) == 7:
            raise Died

    write = Checkpoint.write
    with monkeypatch.context() as patch:
        patch.setattr(ntfa.fitting.checkpoint, "SECONDS_BETWEEN", 0)
        patch.setattr(Checkpoint, "write", die)
        with pytest.raises(Died):
            model().fit(study, checkpoint=tmp_path / "kept")
    return tmp_path / "kept"


DAMAGE = {
    "flipped": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "cut": lambda content: content[:-1],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_previous_checkpoint_is_used_and_that_is_said(
    study: Study, folder: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = folder / "restart-0.safetensors"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with caplog.at_level(logging.WARNING, "ntfa"):
        resumed = model().fit(study, checkpoint=folder)
    assert re.search(rf"{re.escape(str(path))}: .*step 6\b", caplog.text)
    assert resumed.factors_.equals(model().fit(study).factors_)


def test_killed_between_the_two_moves_of_a_checkpoint(
    study: Study, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "restart-0.safetensors").unlink()
    (folder / "restart-0.next.safetensors").write_bytes(b"half")
    # The level is set here because commands that other tests run in this process leave theirs.
    with caplog.at_level(logging.WARNING, "ntfa"):
        resumed = model().fit(study, checkpoint=folder)
    assert caplog.text == ""
    assert resumed.factors_.equals(model().fit(study).factors_)
    assert names(folder) == ["choice.json", "restart-0.previous.safetensors", "restart-0.safetensors"]


def test_both_damaged_is_refused(study: Study, folder: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match=naming("restart-0.safetensors")):
        model().fit(study, checkpoint=folder)


def test_the_previous_checkpoint_of_another_fit_is_refused(study: Study, folder: Path) -> None:
    (folder / "restart-0.safetensors").unlink()
    with pytest.raises(ModelError, match=naming("restart-0.previous.safetensors")):
        model(random_state=1).fit(study, checkpoint=folder)


class FakeTrainer:
    """Just what a checkpoint uses of a trainer."""

    def __init__(self) -> None:
        self.history, self.state = History(), {"x": torch.zeros(2)}
        self.processes = Sharing().processes

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.state

    def gathered(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return tensors

    own = gathered

    def restore(self, tensors: dict[str, torch.Tensor], history: History) -> None:
        self.state, self.history = tensors, history


def test_all_of_a_history_comes_back(tmp_path: Path) -> None:
    one, other = FakeTrainer(), FakeTrainer()
    one.history = History([0.5, 1.5], [Bound(-1.0, -0.5), Bound(-0.9, -0.4, 0.1, 0.2, 0.3)], "converged")
    one.history.back_offs = [BackOff(5, 1, 0.3), BackOff(9, 2, 0.09)]
    one.history.good = Good(1, {"x": torch.ones(2)})
    checkpoint = Checkpoint(tmp_path / "file.safetensors", {"a": 1})
    checkpoint.write(one)
    assert checkpoint.restore(other)
    assert other.state.keys() == {"x"}
    assert torch.equal(other.history.good.tensors["x"], torch.ones(2))
    assert other.history.good.step == 1
    other.history.good = one.history.good
    assert other.history == one.history


def test_a_checkpoint_that_cannot_be_written_is_said_once_and_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint, trainer = Checkpoint(tmp_path / "folder" / "file.safetensors", {"a": 1}), FakeTrainer()
    monkeypatch.setattr(ntfa.fitting.checkpoint, "SECONDS_BETWEEN", -1)
    (tmp_path / "folder").write_text("in the way")
    for _ in range(3):
        checkpoint.after_step(trainer)
    assert caplog.text.count("could not be written") == 1
    (tmp_path / "folder").unlink()
    checkpoint.after_step(trainer)
    assert caplog.text.count("can be written again") == 1
    assert checkpoint.restore(trainer)
