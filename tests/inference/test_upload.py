from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from ntfa import Study
from ntfa.fitting.task import uploaded
from ntfa.inference import upload
from ntfa.inference.upload import Upload, as_tensor, uploaded_once


class Event:
    """Stands for an event on a GPU, which nothing has to wait for here."""

    def synchronize(self):
        pass

    def record(self):
        pass


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(upload, "_pinned", lambda rows, columns, dtype: torch.empty(rows, columns, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "Event", Event)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("n_rows", [1, 2, 3, 7])
def test_all_rows_arrive_in_pieces_that_take_turns(monkeypatch, n_rows):
    monkeypatch.setattr(upload, "PIECE_BYTES", 2 * 5 * 4)
    source, wide = torch.randn(n_rows, 5), torch.zeros(n_rows, 8)
    copy = Upload(5, torch.float32)
    used = []
    monkeypatch.setattr(Event, "synchronize", lambda self: used.append(self))
    copy(wide[:, :5], source)
    assert torch.equal(wide[:, :5], source)
    assert not wide[:, 5:].any()
    assert len(used) == -(-n_rows // 2)
    assert all(one is not other for one, other in pairwise(used))


@pytest.mark.usefixtures("without_gpu")
def test_rows_longer_than_a_piece_are_copied_one_by_one(monkeypatch):
    monkeypatch.setattr(upload, "PIECE_BYTES", 4)
    source, target = torch.randn(3, 6, dtype=torch.float64), torch.zeros(3, 6, dtype=torch.float64)
    Upload(6, torch.float64)(target, source)
    assert torch.equal(target, source)


def test_arrays_are_uploaded_once_and_only_within_the_context(monkeypatch):
    copied = []

    def copy(array, device):
        copied.append(array.shape)
        return array.clone()

    monkeypatch.setattr(upload, "_have_room", lambda device, n_bytes: n_bytes <= 100)
    monkeypatch.setattr(upload, "_on_gpu", copy)
    small, large = np.ones((2, 3)), np.ones((4, 5))
    shared = as_tensor(small)
    assert shared.data_ptr() == small.ctypes.data
    with uploaded_once(torch.device("cpu"), [small]):
        there = as_tensor(small)
        assert there.data_ptr() != small.ctypes.data
        with uploaded_once(torch.device("cpu"), [small, large]):
            assert as_tensor(small) is there
            assert as_tensor(large).data_ptr() == large.ctypes.data
        assert as_tensor(small) is there
        assert as_tensor(small.copy()) is not there
    assert as_tensor(small).data_ptr() == small.ctypes.data
    assert copied == [(2, 3)]


def test_nothing_is_uploaded_to_a_processor():
    array = np.ones((2, 3), dtype=np.float32)
    with uploaded_once(torch.device("cpu"), [array]):
        assert as_tensor(array).data_ptr() == array.ctypes.data


@pytest.fixture
def in_folder(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(who, what, 2 * i, 2 * i + 2) for who in "ab" for i, what in enumerate("st")]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
    frames = {who: rng.normal(size=(4, 6)) for who in "ab"}
    Study.from_arrays(frames, trials, 10 * rng.normal(size=(6, 3))).save(tmp_path / "study")
    return Study.open(tmp_path / "study")


def test_frames_of_a_folder_are_uploaded_once_too(monkeypatch, in_folder):
    copied = []

    def copy(array, device):
        copied.append(array.shape)
        return array.clone()

    monkeypatch.setattr(upload, "_have_room", lambda device, n_bytes: True)
    monkeypatch.setattr(upload, "_on_gpu", copy)
    with uploaded(in_folder, torch.device("cuda"), None) as study:
        for _ in range(2):
            found = [as_tensor(study.select(participants=[who]).frames[who]) for who in "ab"]
            assert all(
                not np.shares_memory(there.numpy(), study.frames[who]) for there, who in zip(found, "ab", strict=True)
            )
    assert copied == [(4, 6), (4, 6)]


@pytest.mark.parametrize(("device", "memory"), [("cpu", None), ("cuda", "1GB")])
def test_a_folder_is_not_touched_where_nothing_is_uploaded(in_folder, device, memory):
    in_folder.frames._last = None
    with uploaded(in_folder, torch.device(device), memory) as study:
        assert study is in_folder
    assert in_folder.frames._last is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rows_arrive_on_a_gpu(monkeypatch):
    monkeypatch.setattr(upload, "PIECE_BYTES", 1 << 16)
    source, wide = torch.randn(1000, 77), torch.zeros(1000, 96, device="cuda")
    Upload(77, torch.float32)(wide[:, :77], source)
    assert torch.equal(wide[:, :77].cpu(), source)
