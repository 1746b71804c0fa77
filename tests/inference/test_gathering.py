"""Gradients of gathered values against those of plain indexing, and their own gradients."""

import pytest
import torch

from ntfa.inference.gathering import to_blocks, to_frames

ROWS = (torch.tensor([[4], [0]]), torch.tensor([[1, 5, 3], [2, 6, 7]]))
OF_FRAME = torch.tensor([1, 2, 3, 2, 0, 2, 3, 3])
MEMBERS, PLACE = torch.tensor([[0, 2, 3], [1, 4, 4]]), torch.tensor([0, 3, 1, 2])


def plainly_spread(values: torch.Tensor) -> torch.Tensor:
    return values[OF_FRAME]


def plainly_padded(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([values, torch.zeros(1, *values.shape[1:]).to(values)])[MEMBERS]


CASES = {
    "to frames": (lambda values: to_frames(values, OF_FRAME, ROWS), plainly_spread),
    "to blocks": (lambda values: to_blocks(values, MEMBERS, PLACE), plainly_padded),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_indexing(case: str) -> None:
    gathered, plain = CASES[case]
    values = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    torch.testing.assert_close(gathered(values), plain(values), rtol=0, atol=0)
    pulled = torch.randn(gathered(values).shape, dtype=torch.float64)
    grad, expected = (torch.autograd.grad((f(values) * pulled).sum(), values)[0] for f in (gathered, plain))
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("case", CASES)
def test_gradients_have_gradients(case: str) -> None:
    gathered, _ = CASES[case]
    values = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradgradcheck(lambda x: gathered(x).square(), values)
