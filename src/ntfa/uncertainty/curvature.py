"""How well the frames determine what is a participant's own, and a stimulus' own: NTFA's curvature at its fit.

Of every participant, embedding z, centres x and log-widths rho are taken together, given what participants share:

    precision of (x, rho, z) = information of the frames about (x, rho, eta^W(z, z^S))    ntfa.uncertainty.information
                             + information of x, rho ~ N(eta^F(z)) about (x, rho, z)  +  I for z ~ N(0, I)

so that its inverse has the full covariance of z, with everything else of the participant integrated out. A stimulus'
embedding is taken given the participants'. What the networks themselves do not know is added for factors and predicted
weights, by the leverage of the last layers; for embeddings, `ntfa.uncertainty.calibration` sees to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ntfa.inference.cells import Cells
from ntfa.models.networks import features_of
from ntfa.models.ntfa import NeuralFactors
from ntfa.models.spread import Uncertainty
from ntfa.uncertainty.information import CellInformation, cell_information, tangent_gram

BYTES_AT_ONCE = 2**25
"""Memory of one matrix per cell, of which a handful are held, for the cells that are taken together."""


@torch.no_grad()
def laplace(
    module: NeuralFactors,
    cells: Cells,
    coordinates: Tensor,
    weights: Tensor | None = None,
    lacked: Tensor | None = None,
) -> Uncertainty:
    """Return the inverse of the expected information at the posterior means.

    coordinates, weights : voxels [V, 3] in standardised units, and how much each counts, [V], one if not given
    lacked : which participant has no data of which voxel, [P, V], if there are such
    """
    z_participant, z_stimulus = module.z_participant.mean.detach(), module.z_stimulus.mean.detach()
    n_dim, n_factors = z_participant.shape[1], module.log_widths.mean.shape[1]
    priors = _FactorSlopes.at(module, z_participant)
    slopes = _WeightSlopes.at(module, z_participant, z_stimulus, cells)
    of_stimuli = torch.eye(z_stimulus.shape[1]).to(z_stimulus).repeat(len(z_stimulus), 1, 1)
    own, of_factors = slice(4 * n_factors, None), slice(4 * n_factors)
    covariances, spread, variances = [], [], []
    for p, (center, log_width) in enumerate(zip(module.centers.mean, module.log_widths.mean, strict=True)):
        precision, about_factors = priors.precision(p), torch.eye(4 * n_factors).to(center)
        seen = slice(None) if lacked is None else ~lacked[p]
        gram = tangent_gram(center, log_width, coordinates[seen], None if weights is None else weights[seen])
        for c in torch.nonzero(cells.participant == p).flatten().split(cells_at_once(n_factors)):
            n_frames = cells.mass[c].to(center)[:, None, None]
            found = cell_information(gram, slopes.mean[c], slopes.log_sd[c].exp(), module.noise_sd, n_frames)
            precision += slopes.of_participant(c, found, n_dim)
            about_factors += found.geometry.sum(0)
            variances.append(torch.linalg.inv(found.mean).diagonal(dim1=1, dim2=2))
            of_stimuli.index_add_(0, cells.stimulus[c], slopes.of_stimulus(c, found, n_dim))
        joint = torch.linalg.inv(precision)
        shared = priors.network_variance(p, torch.linalg.inv(about_factors).diagonal())
        covariances.append(joint[own, own].clone())
        spread.append(joint.diagonal()[of_factors] + shared)
    sd = torch.stack(spread).sqrt().unflatten(1, (4, n_factors))
    return Uncertainty(
        torch.stack(covariances),
        torch.linalg.inv(of_stimuli),
        sd[:, :3].mT,
        sd[:, 3],
        torch.cat(variances).median(0).values,
        torch.linalg.pinv(slopes.features.T @ slopes.features, rtol=1e-8, hermitian=True),
    )


def cells_at_once(n_factors: int) -> int:
    """How many cells are taken together: as many as some matrices [5 K, 5 K] of each fit into."""
    return max(1, BYTES_AT_ONCE // (8 * (5 * n_factors) ** 2))


@dataclass(frozen=True)
class _FactorSlopes:
    """Log sd of eta^F [P, 4 K] (x of all factors, then y, z and log-width), and slopes by z [P, 4 K, D].

    leverage : [P]
        Share of what the data say of a participant that its last layer would follow, were it fitted by least squares.
    """

    leverage: Tensor
    log_sd: Tensor
    mean_slope: Tensor
    log_sd_slope: Tensor

    @classmethod
    def at(cls, module: NeuralFactors, z: Tensor) -> _FactorSlopes:
        def outputs(z: Tensor) -> Tensor:
            centers, log_widths = module.factors_given(z)
            mean, sd = (torch.cat([c.mT.flatten(1), w], 1) for c, w in zip(centers, log_widths, strict=True))
            return torch.stack([mean, sd.log()], 1)

        values, slopes = _with_slopes(outputs, z)
        features = features_of(module.factor_network, z)
        leverage = (features * torch.linalg.pinv(features, rtol=1e-6).mT).sum(1)
        return cls(leverage, values[:, 1], slopes[:, 0], slopes[:, 1])

    def network_variance(self, p: int, of_data: Tensor) -> Tensor:
        """Variance [4 K] that a participant's factors have because eta^F itself was learned.

        With variance s of the prior and v of what the data say, b = v / (v + s) is the pull of the prior, whose mean
        was learned from participants with variance s + v each.
        """
        spread = torch.exp(2 * self.log_sd[p])
        pull = of_data / (of_data + spread)
        return pull.square() * self.leverage[p] * (spread + of_data)

    def precision(self, p: int) -> Tensor:
        """What the priors say of (x, rho, z) of one participant, [4 K + D, 4 K + D]."""
        tight, slope, log_sd_slope = torch.exp(-2 * self.log_sd[p]), self.mean_slope[p], self.log_sd_slope[p]
        across = -tight[:, None] * slope
        one = torch.eye(slope.shape[1]).to(slope)
        of_z = one + slope.T @ (tight[:, None] * slope) + 2 * log_sd_slope.T @ log_sd_slope
        return _joined(torch.diag(tight), across, of_z)


@dataclass(frozen=True)
class _WeightSlopes:
    """Mean and log sd of eta^W [C, K], their slopes by both embeddings [C, K, 2 D], and the last layer's inputs."""

    features: Tensor
    mean: Tensor
    log_sd: Tensor
    mean_slope: Tensor
    log_sd_slope: Tensor

    @classmethod
    def at(cls, module: NeuralFactors, z_participant: Tensor, z_stimulus: Tensor, cells: Cells) -> _WeightSlopes:
        def outputs(pairs: Tensor) -> Tensor:
            prior = module.weights_of(pairs)
            return torch.stack([prior.mean, prior.sd.log()], 1)

        pairs = torch.cat([z_participant[cells.participant], z_stimulus[cells.stimulus]], -1)
        values, slopes = _with_slopes(outputs, pairs)
        return cls(features_of(module.weight_network, pairs), values[:, 0], values[:, 1], slopes[:, 0], slopes[:, 1])

    def of_participant(self, c: Tensor, found: CellInformation, n_dim: int) -> Tensor:
        """What some cells of a participant say together of its (x, rho, z)."""
        mean, log_sd = self.mean_slope[c, :, :n_dim], self.log_sd_slope[c, :, :n_dim]
        across = found.geometry_mean @ mean + found.geometry_log_sd @ log_sd
        of_z = mean.mT @ found.mean @ mean + log_sd.mT @ found.log_sd @ log_sd
        return _joined(found.geometry.sum(0), across.sum(0), of_z.sum(0))

    def of_stimulus(self, c: Tensor, found: CellInformation, n_dim: int) -> Tensor:
        """What each of some cells says of its stimulus' embedding, [n, D, D]."""
        mean, log_sd = self.mean_slope[c, :, n_dim:], self.log_sd_slope[c, :, n_dim:]
        return mean.mT @ found.mean @ mean + log_sd.mT @ found.log_sd @ log_sd


def _joined(first: Tensor, across: Tensor, last: Tensor) -> Tensor:
    return torch.cat([torch.cat([first, across], 1), torch.cat([across.T, last], 1)])


@torch.enable_grad()
def _with_slopes(function: Callable[[Tensor], Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Values of a function of each row [n, D], and their derivatives by its numbers, in a last dimension."""
    rows = rows.detach().requires_grad_()
    values = function(rows)
    # The gradient of v . values is linear in v, and its derivative by v is what goes forward along a number of the row.
    v = torch.zeros_like(values, requires_grad=True)
    # Of their sum, not of `values` with a gradient `v`: to check that one, PyTorch imports its compiler, for a second.
    (pulled,) = torch.autograd.grad((values * v).sum(), rows, create_graph=True)
    slopes = [torch.autograd.grad(column.sum(), v, retain_graph=True)[0] for column in pulled.unbind(-1)]
    return values.detach(), torch.stack(slopes, -1)
