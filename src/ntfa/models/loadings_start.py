"""Where individual loadings start: least squares on the weights that pursuit's factors give."""

from __future__ import annotations

import torch
from torch import Tensor

from ntfa.inference.cells import Cells
from ntfa.inference.start import Start
from ntfa.models.embedding import settled_signs

ROUNDS = 20
"""In turns, of means of participants and of stimuli; with all pairs recorded the first is exact."""
SMALLEST_EIGENVALUE = 1e-3
"""Of the weights' initial covariance, as a share of the mean one: it starts well away from singular."""


def small_ridge(gram: Tensor) -> Tensor:
    """A little of the diagonal, that makes F F^T of coinciding factors regular."""
    return 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)


def stimulus_means(cell_weights: Tensor, cells: Cells, n_participants: int, n_stimuli: int) -> Tensor:
    """Mean weights of every stimulus as if all participants had seen it, [S, K].

    Least squares of participant plus stimulus: where participants saw different stimuli, or halves of them, plain means
    would tell who saw a stimulus rather than what it does.
    """
    own = cell_weights.new_zeros(n_participants, cell_weights.shape[1])
    for _ in range(ROUNDS):
        means = _means_of(cell_weights - own[cells.participant], cells.stimulus, n_stimuli)
        own = _means_of(cell_weights - means[cells.stimulus], cells.participant, n_participants)
        own = own - own.mean(0)
    return means


def _means_of(rows: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Mean of the rows of each group; zero of one that has none."""
    total = rows.new_zeros(n_groups, rows.shape[1]).index_add(0, group, rows)
    return total / torch.bincount(group, minlength=n_groups).to(total).clamp(min=1).unsqueeze(-1)


def principal_scores(rows: Tensor, n_dim: int) -> Tensor:
    """Leading principal components of rows, each of unit variance, signs settled; [n, D]."""
    centred = (rows - rows.mean(0)).cpu()
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    scores = rows.new_zeros(len(rows), n_dim)
    n_used = min(n_dim, int((values > 1e-9 * values[0].clamp(min=1e-30)).sum()))
    found = left[:, :n_used] * len(rows) ** 0.5
    # A singular vector's sign is arbitrary, and differs between machines unless it is settled here.
    found = found * settled_signs(found)
    scores[:, :n_used] = found.to(rows)
    return scores


def ridge_loadings(features: Tensor, deviation: Tensor, cells: Cells, n_participants: int) -> Tensor:
    """Regress each participant's deviations [C, K] on features [C, r], half shrunk; [P, r, K]."""
    n, r = cells.mass, features.shape[1]
    squared = features.new_zeros(n_participants, r, r)
    squared.index_add_(0, cells.participant, torch.einsum("c,cr,cs->crs", n, features, features))
    cross = features.new_zeros(n_participants, r, deviation.shape[1])
    cross.index_add_(0, cells.participant, torch.einsum("c,cr,ck->crk", n, features, deviation))
    shrink = 0.5 * squared.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-12)
    one = torch.eye(r, dtype=features.dtype, device=features.device)
    return torch.linalg.solve(squared + shrink[:, None, None] * one, cross)


def initial_covariance(start: Start, deviation: Tensor) -> Tensor:
    """Covariance of weights around their mean: within cells, or of cells where no cell has two frames."""
    within = start.weights_covariance
    if float(within.diagonal().sum()) <= 1e-9 * float(deviation.square().mean(0).sum()):
        within = deviation.mT @ deviation / len(deviation)
    sampling = start.noise_sd**2 * torch.linalg.inv(start.gram + small_ridge(start.gram))
    values, axes = torch.linalg.eigh((within - sampling).cpu())
    floor = SMALLEST_EIGENVALUE * float(within.diagonal().mean()) + 1e-8
    return ((axes * values.clamp(min=floor)) @ axes.mT).to(within)


def unit_cholesky(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit lower triangular L and sd with L diag(sd^2) L^T = covariance."""
    root = torch.linalg.cholesky(covariance)
    sd = root.diagonal()
    return root / sd, sd.clone()
