import pytest
import torch
from helpers import naming
from torch import nn

from ntfa.fitting.sharing import Sharing
from ntfa.inference.normal import NormalPosterior, RandomSource
from ntfa.inference.processes import ALONE, Share, divide


@pytest.mark.parametrize(
    ("loads", "n_parts", "expected"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([10, 1, 1, 1], 2, [1, 3]),
        ([1, 1, 1, 10], 2, [3, 1]),
        ([1, 1, 1, 10], 3, [2, 1, 1]),
        ([5], 1, [1]),
        ([0, 0, 0], 3, [1, 1, 1]),
        ([9, 0, 0], 3, [1, 1, 1]),
    ],
)
def test_loads_are_divided_evenly_in_order_and_nobody_goes_without(loads, n_parts, expected):
    parts = divide(loads, n_parts)
    assert [i for part in parts for i in part] == list(range(len(loads)))
    assert [len(part) for part in parts] == expected
    assert all(parts)


def test_fewer_items_than_parts_cannot_be_divided():
    with pytest.raises(ValueError, match=naming(2, 3)):
        divide([1, 1], 3)


def test_a_process_alone_is_a_group():
    tensor = torch.arange(3.0)
    assert ALONE.total(tensor) is tensor
    assert ALONE.gather(tensor) is tensor
    assert ALONE.any(True)
    assert not ALONE.any(False)
    assert ALONE.is_first


def test_rows_get_the_same_noise_however_they_are_shared():
    whole = RandomSource(3).randn_like(torch.zeros(5, 2))
    parts = [
        RandomSource(3).randn_like(torch.zeros(stop - start, 2), Share(start, stop, 5))
        for start, stop in ((0, 2), (2, 5))
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_a_share_of_a_module_has_its_rows_and_others_are_counted_once():
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = NormalPosterior(torch.arange(10.0).reshape(5, 2), sd=0.1)
            self.shared = NormalPosterior(torch.zeros(4, 2), sd=0.1)
            self.level = nn.Parameter(torch.arange(5.0))
            self.network = nn.Linear(2, 3)

    class Second(type(ALONE)):
        rank, size = 1, 2

    module = Module()
    share = Share(2, 5, 5)
    Sharing(Second(), {"own": share, "level": share}).take(module)
    assert module.own.mean[:, 0].tolist() == [4, 6, 8]
    assert module.level.tolist() == [2, 3, 4]
    assert module.shared.mean.shape == (4, 2)
    assert module.own.share == share
    assert (module.own.counted, module.shared.counted) == (True, False)
    prior = NormalPosterior(torch.ones(4, 2), sd=1.0).normal
    uncounted = module.shared.draw("embeddings", prior, RandomSource(0))
    assert float(uncounted.kl()) == 0
    assert float(uncounted.log_ratio()) == 0
