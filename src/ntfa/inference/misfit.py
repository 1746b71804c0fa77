"""What features of stimuli leave of responses: how far cells deviate from h_s^T (A + E_p), beyond noise.

D dimensions that predict best need not hold all that is particular to a stimulus, or to a person who sees it. Weights
of cells, in the basis L, are therefore taken to deviate by

    r_s ~ N(0, rho^2 diag tau^2)         the same in everybody
    q_ps ~ N(0, omega^2 diag tau^2)      a pair's alone

which is estimated from what of the cells' averages is orthogonal to the design X_p of each participant. There, loadings
have no part. Rows are projected frames, of covariance N = s2 G + G diag(sd^2) G under the model and G diag(tau^2) G
times n omega^2 or n rho^2 more if it lacks something. In the basis in which N is one and the other diagonal, d_k,
numbers are independent, and what is common to the rows of a stimulus tells rho from omega:

    within stimuli  ~ 1 + d_k n omega^2,    stimuli's sums, along axes with eigenvalue h of what is known of them,
                    ~ h (1 + d_k n omega^2) + h^2 d_k rho^2
"""

from __future__ import annotations

import torch
from torch import Tensor

from ntfa.inference.frames import Projection
from ntfa.inference.loadings import IndividualWeights, Rotation
from ntfa.inference.processes import ALONE, Processes

RATIOS = (0.0, *(10 ** (x / 8) for x in range(-40, 17)))
"""rho^2 and omega^2 that are tried."""
SMALLEST_RATIO = 1e-6
NEARLY = 0.05
"""Share of a factor's energy by which participants may differ, because of what they lack, and count as alike."""


@torch.no_grad()
def find_misfit(
    projection: Projection,
    prior: IndividualWeights,
    rotation: Rotation,
    noise_sd: Tensor,
    n_stimuli: int,
    processes: Processes = ALONE,
) -> Tensor:
    """Estimate rho^2 and omega^2, [2], from frames of this process's participants and all others'."""
    cells, n = projection.cells, projection.cells.mass
    average = cells.weighted_total(projection.frames) / n.unsqueeze(-1)
    residual = (average - projection.expected(prior.mean)) * n.sqrt().unsqueeze(-1)
    gram, of_all = _gram_of_most(projection, processes)
    basis, d = _independent(gram, prior, noise_sd.square())
    rows = _orthogonal(cells.by_block(residual @ prior.mixing @ basis), rotation)
    shown = torch.nn.functional.one_hot(cells.stimulus, n_stimuli).to(rows)
    design = _orthogonal(cells.by_block(shown * n.sqrt().unsqueeze(-1)), rotation)
    if of_all is not None:
        rows, design, n = rows[of_all], design[of_all], n[of_all[cells.block]]
        rotation = rotation._replace(kept=rotation.kept[of_all])
    sums = processes.total(torch.einsum("bms,bmk->sk", design, rows))
    known = processes.total(torch.einsum("bms,bmt->st", design, design))
    energy = processes.total(rows.square().sum((0, 1)))
    counts = processes.total(torch.stack([n.sum(), n.new_tensor(float(len(n))), rotation.kept.sum().to(n)]))
    return _variances(sums, known, energy, d, counts)


def _gram_of_most(projection: Projection, processes: Processes) -> tuple[Tensor, Tensor | None]:
    """Return the Gram matrix of who sees factors best, and which participants [B] see them as well; None if all do.

    Rows of people who lack a part of the brain have no basis in common with the others'.
    """
    sizes = projection.gram.diagonal(dim1=-2, dim2=-1)
    share = (sizes / processes.gather(sizes).amax(0).clamp(min=1e-300)).amin(1)
    best = share.argmax().unsqueeze(0)
    rank = int(processes.gather(share[best]).argmax())
    gram = processes.gather(projection.gram[best])[rank]
    near = ((sizes / gram.diagonal().clamp(min=1e-300) - 1).abs() <= NEARLY).all(1)
    n_far = processes.total((~near).double().sum())
    return gram, None if not float(n_far) else near


def _independent(gram: Tensor, prior: IndividualWeights, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Basis [K, K] in which rows have unit variance, and d [K], that of weights of variance tau^2."""
    gram = prior.mixing.mT @ gram @ prior.mixing
    expected = noise * gram + gram * prior.sd.square() @ gram
    size = 1e-10 * expected.diagonal().mean().clamp(min=1e-300)
    root = torch.linalg.cholesky(expected + size * torch.eye(len(gram)).to(gram))
    half = torch.linalg.solve_triangular(root, gram * prior.loading_sd, upper=False)
    values, axes = torch.linalg.eigh((half @ half.mT).cpu())
    basis = torch.linalg.solve_triangular(root.mT, axes.to(gram), upper=True)
    return basis, values.clamp(min=0).to(gram)


def _orthogonal(rows: Tensor, rotation: Rotation) -> Tensor:
    return rows - rotation.left @ (rotation.left.mT @ rows)


def _variances(sums: Tensor, known: Tensor, energy: Tensor, d: Tensor, counts: Tensor) -> Tensor:
    """Choose rho^2 and omega^2 by likelihood: first omega^2 within stimuli, then rho^2 between them."""
    values, axes = torch.linalg.eigh(known.cpu())
    values, axes = values.to(known), axes.to(known)
    used = values > SMALLEST_RATIO * values[-1].clamp(min=1e-300)
    of_stimuli, h = (axes.mT @ sums)[used], values[used].unsqueeze(-1)
    n_frames, n_cells, n_explained = counts.tolist()
    n_within = n_cells - n_explained - len(h)
    within = energy - (of_stimuli.square() / h).sum(0)
    omega = energy.new_zeros(())
    if n_within > 0:
        tried = energy.new_tensor(RATIOS).unsqueeze(-1)
        omega = tried[_best(within / n_within, 1 + d * n_frames / n_cells * tried, n_within), 0]
    if not len(h):
        return torch.stack([omega * 0, omega])
    own = h * (1 + d * n_frames / n_cells * omega)
    tried = energy.new_tensor(RATIOS).reshape(-1, 1, 1)
    rho = tried[_best(of_stimuli.square().flatten(), (own + h.square() * d * tried).flatten(1), 1), 0, 0]
    return torch.stack([rho, omega])


def _best(squares: Tensor, variances: Tensor, n: float) -> int:
    """Return which of the variances [tried, m] makes mean squares [m] of n numbers each most likely."""
    return int((n * (variances.log() + squares / variances)).sum(-1).argmin())
