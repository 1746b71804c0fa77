"""Cells that are taken together: the same values and gradients as one by one, whatever their lengths and trust."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import cell_rows, make_frames
from test_collapsed import random_factors
from test_trust import trusting
from torch import Tensor

from ntfa.inference.alike import Alike
from ntfa.inference.collapsed import WeightPrior, cell_log_likelihood, log_likelihood
from ntfa.inference.frames import Frames

DESIGN, V, K = [[3, 1, 3, 3], [2, 3, 4, 2], [1]], 11, 3
NOISE_SD = torch.tensor(0.7, dtype=torch.float64)


def spoiled(frames: Frames) -> Frames:
    """A frame of one cell counts less: its average is worth fewer frames than others of its length."""
    trust = torch.ones(len(frames.energy), dtype=torch.float64)
    trust[cell_rows(frames.cells)[-1][0]] = 0.25
    return replace(frames, cells=replace(frames.cells, trust=trust))


STUDIES = {
    "as they are": lambda: make_frames(DESIGN, V),
    "a frame is spoiled": lambda: spoiled(make_frames(DESIGN, V)),
    "no two alike": lambda: trusting(make_frames(DESIGN, V)),
    "one cell a block": lambda: make_frames([[3], [2], [4]], V),
    "one frame a cell": lambda: make_frames([[1, 1], [1, 1, 1]], V),
}


def prior_of_blocks(frames: Frames, spreads: list[Tensor], mean: Tensor, effect: bool, together: bool) -> WeightPrior:
    sd, effect_sd = (spread[frames.cells.block] for spread in spreads)
    return WeightPrior(mean, sd, effect_sd if effect else None, is_of_block=together)


@pytest.mark.parametrize("effect", [False, True], ids=["frames alone", "with effect"])
@pytest.mark.parametrize("study", STUDIES)
def test_cells_taken_together_have_the_values_and_gradients_of_cells_one_by_one(study, effect):
    frames = STUDIES[study]()
    n_cells, n_blocks = len(frames.cells.block), len(frames.blocks)
    generator = torch.Generator().manual_seed(3)
    draws = [torch.rand(n, K, generator=generator, dtype=torch.float64) for n in (n_blocks, n_blocks, n_cells)]
    leaves = [*random_factors(n_blocks), draws[0] + 0.2, draws[1] + 0.1, draws[2], NOISE_SD.clone()]
    found = []
    for together in (False, True):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        prior = prior_of_blocks(frames, own[2:4], own[4], effect, together)
        value = log_likelihood(frames.project(*own[:2]), prior, own[5])
        slopes = torch.autograd.grad(value, own, allow_unused=True)
        found.append((value.detach(), cell_log_likelihood(frames.project(*own[:2]), prior, own[5]), slopes))
    for one_by_one, taken_together in zip(*(part[:2] for part in found), strict=True):
        torch.testing.assert_close(taken_together, one_by_one, rtol=1e-12, atol=1e-10)
    for one_by_one, taken_together in zip(found[0][2], found[1][2], strict=True):
        if one_by_one is not None:
            torch.testing.assert_close(taken_together, one_by_one, rtol=1e-10, atol=1e-10)


def test_groups_hold_the_frames_of_their_cells_in_order_of_their_number():
    cells = spoiled(make_frames(DESIGN, V)).cells
    by_block = cells.alike
    rows = cell_rows(cells)
    lengths = [len(own) for own in cell_rows(by_block.cells)]
    assert lengths == sorted(lengths) == [1, 10, 11]
    for group, own in enumerate(cell_rows(by_block.cells)):
        members = [c for c in range(len(rows)) if int(by_block.of_cell[c]) == group]
        assert sorted(own) == sorted(row for c in members for row in rows[c])
        assert {int(cells.block[c]) for c in members} == {int(by_block.cells.block[group])}
        assert int(by_block.first[group]) in members
    assert torch.equal(by_block.total(cells.count), by_block.cells.count)


def test_averages_are_together_where_they_are_worth_as_many_frames():
    cells = spoiled(make_frames(DESIGN, V)).cells
    kinds = {(int(b), float(mass)) for b, mass in zip(cells.block, cells.mass, strict=True)}
    alike = cells.averaged_alike
    assert len(alike.first) == len(kinds)
    for cell, group in enumerate(alike.of_cell.tolist()):
        first = int(alike.first[group])
        assert cells.block[first] == cells.block[cell]
        assert cells.mass[first] == cells.mass[cell]


def test_cells_of_which_no_two_are_alike_say_so():
    cells = make_frames([[3], [2]], V).cells
    assert cells.alike.are_single
    assert not Alike.of(cells, torch.zeros(2, dtype=torch.long)).are_single
