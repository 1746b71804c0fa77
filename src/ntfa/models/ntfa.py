"""Neural topographic factor analysis (NTFA; Sennesh, Khan et al., NeurIPS 2020).
z^P_p ~ N(0, I),  z^S_s ~ N(0, I)                embeddings of participants and stimuli
x_p, rho_p ~ N(eta^F(z^P_p))                     centres and log-widths of participant p's factors
W_nt ~ N(eta^W(z^P_p, z^S_s))                    weights of frame t of trial n, in which p saw s
Y_nt ~ N(W_nt F(x_p, rho_p), sigma_Y^2)          the frame
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ntfa.inference.bounds import Draw
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior
from ntfa.inference.normal import Normal, NormalPosterior, RandomSource, positive, unconstrained
from ntfa.inference.start import Start
from ntfa.models.embedding import settled_signs
from ntfa.models.module import TopographicModule, standard_normal
from ntfa.models.moving import Moves
from ntfa.models.networks import features_of, perceptron, start_output
from ntfa.models.spread import Embedded, UncertaintyBuffers, WeightSpread

DRAWS_FOR_EXPECTATION, DRAWS_FOR_INTERVALS = 64, 512


class NeuralFactors(TopographicModule):
    """Generative model and posterior of NTFA.

    z_participant [P, D], z_stimulus [S, D'], centers [P, K, 3] and log_widths [P, K] are posteriors;
    factor_network is eta^F, weight_network is eta^W.
    """

    factors_can_move = True
    sharded_parameters = TopographicModule.sharded_parameters | {"z_participant": "participant"}

    def __init__(
        self, n_participants: int, n_stimuli: int, n_factors: int, embedding_dim: int, stimulus_dim: int | None = None
    ) -> None:
        super().__init__(n_participants, n_factors)
        k, d = n_factors, embedding_dim
        of_stimuli = d if stimulus_dim is None else stimulus_dim
        both = d + of_stimuli
        self.z_participant = NormalPosterior(0.1 * torch.randn(n_participants, d), sd=0.1)
        self.z_stimulus = NormalPosterior(0.1 * torch.randn(n_stimuli, of_stimuli), sd=0.1)
        self.factor_network = perceptron([d, 2 * d, 4 * d, 8 * k])
        self.weight_network = perceptron([both, 2 * both, 4 * both, 2 * k])
        self.uncertainty = UncertaintyBuffers(n_participants, n_stimuli, k, (d, of_stimuli), 4 * both + 1)

    def factors_given(self, z_participant: Tensor) -> tuple[Normal, Normal]:
        """eta^F: priors of centres [P, K, 3] and log-widths [P, K], given embeddings [P, D]."""
        mean, raw_sd = self.factor_network(z_participant).unflatten(-1, (-1, 4, 2)).unbind(-1)
        center, log_width = mean.split((3, 1), -1)
        center_sd, log_width_sd = positive(raw_sd).split((3, 1), -1)
        return Normal(center, center_sd), Normal(log_width.squeeze(-1), log_width_sd.squeeze(-1))

    def weights_given(self, z_participant: Tensor, z_stimulus: Tensor, cells: Cells) -> WeightPrior:
        """eta^W: prior of the weights [C, K] of each cell, given embeddings [P, D] and [S, D']."""
        return self.weights_of(torch.cat([z_participant[cells.participant], z_stimulus[cells.stimulus]], -1))

    def weights_of(self, pairs: Tensor) -> WeightPrior:
        """eta^W: prior of weights [..., K], given embeddings of participant and stimulus, [..., D + D']."""
        mean, raw_sd = self.weight_network(pairs).unflatten(-1, (-1, 2)).unbind(-1)
        return WeightPrior(mean, positive(raw_sd))

    def draw(self, cells: Cells, noise: RandomSource) -> Draw:
        """Draw every latent variable from its posterior."""
        z_participant = self.z_participant.draw("embeddings", standard_normal(self.z_participant.mean), noise)
        z_stimulus = self.z_stimulus.draw("embeddings", standard_normal(self.z_stimulus.mean), noise)
        priors = self.factors_given(z_participant.value)
        factors, centers, log_widths = self._draw_factors(cells, priors, noise)
        weights = self.weights_given(z_participant.value, z_stimulus.value, cells)
        return Draw([z_participant, z_stimulus, *factors], centers, log_widths, weights, self.noise_sd)

    def draw_shared(self, noise: RandomSource) -> Tensor:
        """Draw the stimuli's embeddings, which all participants share."""
        return self.z_stimulus.normal.sample_grown(noise, self.fitted_sizes[1])

    def draw_unshared(self, cells: Cells, shared: Tensor, noise: RandomSource, from_prior: bool) -> Draw:
        """Draw the participants' embeddings, and their factors from eta^F or from their posterior."""
        z_participant = self.z_participant.normal.sample_grown(noise, self.fitted_sizes[0])
        priors = self.factors_given(z_participant[cells.owner])
        centers, log_widths = self._new_factors(cells, priors, noise, from_prior)
        return Draw([], centers, log_widths, self.weights_given(z_participant, shared, cells), self.noise_sd)

    def expected(self, cells: Cells) -> Draw:
        """Factors at their posterior mean, weights' prior averaged over the embeddings' posteriors.

        And over all stimuli of the fit, each as likely as any, for cells whose stimulus is not known (-1).
        """
        noise, possible = RandomSource(0), self._possible(cells)
        z_participant, n_fitted = self.z_participant.normal, self.fitted_sizes[0]
        priors = [
            self.weights_given(z_participant.sample_grown(noise, n_fitted), self.draw_shared(noise), of_stimulus)
            for _ in range(-(-DRAWS_FOR_EXPECTATION // len(possible)))
            for of_stimulus in possible
        ]
        means = torch.stack([prior.mean for prior in priors])
        mean = means.mean(0)
        sd = torch.stack([prior.sd.square() for prior in priors]).mean(0).sqrt()
        # All frames of a cell share embeddings and stimulus: what is uncertain about their mean is one effect for all.
        weights = WeightPrior(mean, sd, effect_sd=(means - mean).square().mean(0).sqrt())
        return Draw([], self.centers.mean[cells.owner], self.log_widths.mean[cells.owner], weights, self.noise_sd)

    @property
    def fitted_sizes(self) -> tuple[int, int]:
        """How many participants and stimuli were in the fit; those added since come after them."""
        return self.n_fitted or (len(self.z_participant.mean), len(self.z_stimulus.mean))

    def expect_tensors(self, tensors: Mapping[str, Tensor], n_voxels: int) -> None:
        """Make room for densities where a saved module has them."""
        if "density" in tensors:
            self.density = self.z_participant.mean.new_zeros(len(self.z_participant.mean))

    def covariances(self) -> tuple[Tensor, Tensor]:
        """Covariances of the embeddings, [P, D, D] and [S, D, D]: worked out after the fit, or q's if that was not."""
        if self.uncertainty.is_known:
            return self.uncertainty.participants, self.uncertainty.stimuli
        of_participants, of_stimuli = (torch.diag_embed(z.normal.sd**2) for z in (self.z_participant, self.z_stimulus))
        return of_participants, of_stimuli

    def embedded(self) -> tuple[Embedded, Embedded]:
        """Embeddings of participants and of stimuli, with what is uncertain about them."""
        means = (self.z_participant.mean.detach(), self.z_stimulus.mean.detach())
        is_joint = self.uncertainty.is_known
        participants, stimuli = (
            Embedded(mean, covariances.detach(), is_joint)
            for mean, covariances in zip(means, self.covariances(), strict=True)
        )
        return participants, stimuli

    @property
    def calibration(self) -> Tensor:
        """What halves showed of participants and of stimuli, [2, 3]; see `UncertaintyBuffers`."""
        return self.uncertainty.summary

    def white_variance(self, participant: int, stimulus: int, n_frames: int | None, seen: bool = True) -> Tensor | None:
        """Variance of a predicted image that is the same and independent at all voxels; None if there is none."""
        return None if n_frames is None else self.noise_sd.detach().square() / n_frames

    def factor_sds(self) -> tuple[Tensor, Tensor]:
        """Sds of centres [P, K, 3] and log-widths [P, K], likewise."""
        if self.uncertainty.is_known:
            return self.uncertainty.centers_sd, self.uncertainty.log_widths_sd
        return self.centers.normal.sd, self.log_widths.normal.sd

    @torch.no_grad()
    def weights_spread(self, participant: int, stimulus: int, n_frames: int | None) -> WeightSpread:
        """Mean weights of a pair, and how uncertain they are; or, of `n_frames` frames, how uncertain their average."""
        noise, draws = RandomSource(0), []
        for z, covariances, place in zip(
            (self.z_participant, self.z_stimulus), self.covariances(), (participant, stimulus), strict=True
        ):
            root = torch.linalg.cholesky(covariances[place])
            draws.append(z.mean[place] + noise.randn_like(root.new_empty(DRAWS_FOR_INTERVALS, len(root))) @ root.mT)
        weights = self.weights_of(torch.cat(draws, -1))
        pair = torch.cat([self.z_participant.mean[participant], self.z_stimulus.mean[stimulus]])
        features = features_of(self.weight_network, pair[None])[0]
        learned = features @ self.uncertainty.feature_spread @ features * self.uncertainty.weights_variance
        covariance = torch.atleast_2d(torch.cov(weights.mean.mT)) + torch.diag(learned)
        if n_frames is not None:
            covariance = covariance + torch.diag(weights.sd.square().mean(0) / n_frames)
        return WeightSpread(weights.mean.mean(0), covariance)

    def _possible(self, cells: Cells) -> list[Cells]:
        """Return the cells once for every stimulus that those without one may have shown."""
        unknown = cells.stimulus < 0
        if not bool(unknown.any()):
            return [cells]
        n_stimuli = self.fitted_sizes[1]
        return [replace(cells, stimulus=torch.where(unknown, s, cells.stimulus)) for s in range(n_stimuli)]

    @torch.no_grad()
    def start_at(self, start: Start, cells: Cells) -> None:
        """Start networks at the initial factors and weights, embeddings at what tells those weights apart.

        Factors that were not found from the data say little of the weights; embeddings then stay near zero.
        """
        super().start_at(start, cells)
        factors = torch.cat([start.centers, start.log_widths.unsqueeze(-1)], -1)
        sd = unconstrained(torch.full_like(factors, 0.02))
        start_output(self.factor_network, torch.stack([factors, sd], -1), spread=0.1)
        weights = torch.stack([start.cell_weights.mean(0), unconstrained(start.weights_sd)], -1)
        start_output(self.weight_network, weights, spread=1.0)
        if not start.from_data:
            return
        responses = _response_table(start.cell_weights, cells, len(self.z_participant.mean), len(self.z_stimulus.mean))
        _start_embedding(self.z_participant, responses.flatten(1))
        _start_embedding(self.z_stimulus, responses.transpose(0, 1).flatten(1))

    def by_factor(self, name: str, tensor: Tensor) -> Tensor | None:
        """View a parameter factors first: places and widths, and what the networks' last layers make of each factor."""
        for network, n_outputs in (("factor_network", 8), ("weight_network", 2)):
            if name.startswith(f"{network}.{len(getattr(self, network)) - 1}."):
                return tensor.unflatten(0, (-1, n_outputs))
        return super().by_factor(name, tensor)

    @torch.no_grad()
    def move(self, moves: Moves) -> None:
        """Put factors elsewhere; what networks say of them is the same for all embeddings until the fit goes on."""
        super().move(moves)
        k = self.centers.mean.shape[1]
        of_factors, of_weights = self.factor_network[-1], self.weight_network[-1]
        assert isinstance(of_factors, nn.Linear)
        assert isinstance(of_weights, nn.Linear)
        places = torch.cat([moves.centers, moves.log_widths.unsqueeze(-1)], -1)
        moves.put(of_factors.bias.unflatten(0, (k, 4, 2))[..., 0], places)
        moves.put(of_weights.bias.unflatten(0, (k, 2)), torch.stack([moves.mean, unconstrained(moves.sd)], -1))
        for last in (of_factors, of_weights):
            moves.clear(last.weight.unflatten(0, (k, -1)))

    @torch.no_grad()
    def expect_factor(self, factor: int, mean: Tensor, sd: Tensor) -> None:
        """Let eta^F say the same of a factor for all embeddings, until the fit goes on."""
        last = self.factor_network[-1]
        assert isinstance(last, nn.Linear)
        last.bias.unflatten(0, (-1, 4, 2))[factor] = torch.stack([mean, unconstrained(sd)], -1)
        last.weight.unflatten(0, (-1, 8))[factor] = 0

    def network_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of eta^F and eta^W."""
        yield from self.factor_network.parameters()
        yield from self.weight_network.parameters()


def _response_table(cell_weights: Tensor, cells: Cells, n_participants: int, n_stimuli: int) -> Tensor:
    """Mean weights of every participant to every stimulus [P, S, K]; unseen pairs filled in additively."""
    table = cell_weights.new_full((n_participants, n_stimuli, cell_weights.shape[1]), torch.nan)
    table[cells.participant, cells.stimulus] = cell_weights
    overall = table.nanmean((0, 1), keepdim=True)
    additive = table.nanmean(1, keepdim=True) + table.nanmean(0, keepdim=True) - overall
    return torch.where(table.isnan(), additive, table)


def _start_embedding(posterior: NormalPosterior, responses: Tensor) -> None:
    """Principal components of the responses (a row each), the first scaled to unit variance like the prior."""
    centred = (responses - responses.mean(0)).cpu()
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    n_used = min(posterior.mean.shape[1], len(values))
    scale = len(responses) ** 0.5 / values[0].clamp(min=1e-12)
    components = left[:, :n_used] * values[:n_used] * scale
    # A singular vector's sign is arbitrary, and differs between machines unless it is settled here.
    components *= settled_signs(components)
    posterior.mean[:, :n_used] = components.to(posterior.mean.device)
