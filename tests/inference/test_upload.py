from itertools import pairwise

import pytest
import torch

from ntfa.inference import upload
from ntfa.inference.upload import Upload


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rows_arrive_on_a_gpu(monkeypatch):
    monkeypatch.setattr(upload, "PIECE_BYTES", 1 << 16)
    source, wide = torch.randn(1000, 77), torch.zeros(1000, 96, device="cuda")
    Upload(77, torch.float32)(wide[:, :77], source)
    assert torch.equal(wide[:, :77].cpu(), source)
