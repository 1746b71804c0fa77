"""Topographic factors with individual loadings, NTFA's response model for real data.

z^S_s ~ N(0, I),   h_s = (1, z^S_s)                          embedding of a stimulus, and the features it gives
x_k ~ N(0, I),     rho_k ~ N(rho_0, 1)                       one layout of factors for everybody
E_p[d] = lambda_d e_d L^T,   e_dk ~ N(0, tau_k^2)            how participant p's loadings deviate from the group's, A
W_nt = h_s^T (A + E_p) + u_nt L^T,   u_ntk ~ N(0, sd_k^2)    weights of frame t of trial n, in which p saw s
Y_nt ~ N(W_nt F(x, rho), sigma_Y^2)                          the frame

E_p and W are integrated out exactly (`ntfa.inference.loadings`). L is unit lower triangular, so that weights have the
full covariance L diag(sd^2) L^T. What is low-dimensional about how people differ is their embedding: with B_d the
leading directions in which the responses h_s^T E_p F of all participants to all stimuli vary,

E_p = mean + sum_d z^P_pd B_d + what is p's alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ntfa.inference.bounds import Draw
from ntfa.inference.cells import Cells
from ntfa.inference.collapsed import WeightPrior, mixture_sd, times
from ntfa.inference.detail import Detail
from ntfa.inference.loadings import IndividualWeights, LoadingsPosterior, loadings_covariance
from ntfa.inference.normal import Latent, Normal, NormalPosterior, RandomSource, positive, unconstrained
from ntfa.inference.start import Start
from ntfa.models.embedding import ReportedEmbeddings, n_reliable_axes, participant_scores, principal_axes, score_roots
from ntfa.models.loadings_start import (
    initial_covariance,
    principal_scores,
    ridge_loadings,
    small_ridge,
    stimulus_means,
    unit_cholesky,
)
from ntfa.models.module import TopographicModule, standard_normal
from ntfa.models.seen import SeenGrams
from ntfa.models.spread import Embedded, WeightSpread

# Of covariances that are in memory at once: 128 MB in float64.
CHUNK_VALUES = 1 << 24
SMALLEST_VARIANCE = 1e-8
"""Of a reported embedding, whose first axis has unit variance."""


class LoadingFactors(TopographicModule):
    """Generative model and posterior of NTFA with individual loadings.

    z_stimulus [S, D] is a posterior; group_loadings [D + 1, K] is A. Worked out after training, given all frames, and
    kept in buffers: loadings [P, D + 1, K], the posterior means of E_p; design_squared [P, D + 1] and design_right
    [P, D + 1, D + 1], which their covariances depend on; gram [K, K], F F^T over all voxels, and seen_gram, over those
    of people who lack some; the embeddings as they are reported, `embeddings`; maps of detail, detail_group [D + 1, V]
    and detail_own [P, D + 1, V] (`ntfa.inference.detail`); and misfit [3], what features leave of responses
    (`ntfa.inference.misfit`) and how large detail really is, which models of before do not have. Stimuli added since
    have maps of their own, stimulus_detail [m, V], that no feature reaches.
    """

    # The covariance of many factors goes on rising for hundreds of steps after responses have settled.
    plateau = 1e-4
    sharded_parameters: dict[str, str] = {}  # noqa: RUF012

    log_width_start: Tensor
    loadings: Tensor
    design_squared: Tensor
    design_right: Tensor
    gram: Tensor
    detail_group: Tensor | None
    detail_own: Tensor | None
    detail_variances: Tensor
    misfit: Tensor | None
    stimulus_detail: Tensor | None

    def __init__(
        self, n_participants: int, n_stimuli: int, n_factors: int, participant_dim: int, stimulus_dim: int
    ) -> None:
        super().__init__(1, n_factors)
        k, r = n_factors, stimulus_dim + 1
        self.z_stimulus = NormalPosterior(0.1 * torch.randn(n_stimuli, stimulus_dim), sd=0.1)
        self.group_loadings = nn.Parameter(torch.zeros(r, k))
        self.raw_sd = nn.Parameter(torch.zeros(k))
        self.raw_loading_sd = nn.Parameter(torch.zeros(k))
        self.log_feature_scale = nn.Parameter(torch.zeros(r))
        self.lower = nn.Parameter(torch.zeros(k, k))
        self.register_buffer("log_width_start", torch.zeros(()))
        self.register_buffer("loadings", torch.zeros(n_participants, r, k))
        self.register_buffer("design_squared", torch.zeros(n_participants, r))
        self.register_buffer("design_right", torch.eye(r).repeat(n_participants, 1, 1))
        self.register_buffer("gram", torch.eye(k))
        self.seen_gram = SeenGrams()
        self.register_buffer("detail_group", None)
        self.register_buffer("detail_own", None)
        self.register_buffer("detail_variances", torch.zeros(3))
        self.register_buffer("misfit", torch.zeros(3))
        self.register_buffer("stimulus_detail", None)
        self.embeddings = ReportedEmbeddings(n_participants, n_stimuli, participant_dim, stimulus_dim)

    # The generative model ----------------------------------------------------------------------------------------

    @property
    def mixing(self) -> Tensor:
        """L, [K, K]."""
        return torch.eye(len(self.lower), dtype=self.lower.dtype, device=self.lower.device) + self.lower.tril(-1)

    @property
    def sd(self) -> Tensor:
        """Sd of u, [K]."""
        return positive(self.raw_sd)

    @property
    def loading_sd(self) -> Tensor:
        """Sd of individual loadings, tau, [K]."""
        return positive(self.raw_loading_sd)

    def features(self, z_stimulus: Tensor) -> Tensor:
        """h = (1, z): [..., D] -> [..., D + 1]."""
        return torch.cat([torch.ones_like(z_stimulus[..., :1]), z_stimulus], -1)

    def scaled(self, features: Tensor) -> Tensor:
        """Features times lambda, how much loadings on each vary between participants."""
        return features * self.log_feature_scale.exp()

    def weights_given(self, z_stimulus: Tensor, cells: Cells) -> IndividualWeights:
        """Prior of the weights of each cell, given the stimuli's embeddings [S, D]."""
        features = self.features(z_stimulus)[cells.stimulus]
        mean = features @ self.group_loadings
        return IndividualWeights(mean, self.scaled(features), self.sd, self.loading_sd, self.mixing)

    def factor_priors(self) -> tuple[Normal, Normal]:
        """Priors of centres and log-widths: anywhere in the brain, around the typical width."""
        log_widths = standard_normal(self.log_widths.mean)
        return standard_normal(self.centers.mean), Normal(log_widths.mean + self.log_width_start, log_widths.sd)

    def draw(self, cells: Cells, noise: RandomSource) -> Draw:
        """Draw every latent variable but loadings and weights from its posterior."""
        z_stimulus = self.z_stimulus.draw("embeddings", standard_normal(self.z_stimulus.mean), noise)
        factors: list[Latent] = []
        if self.factors_are_kept:
            centers, log_widths = self.centers.mean.detach(), self.log_widths.mean.detach()
        else:
            factors, centers, log_widths = self._draw_factors(cells, self.factor_priors(), noise)
        individual = self.weights_given(z_stimulus.value, cells)
        weights = WeightPrior(individual.mean, individual.sd.expand_as(individual.mean), mixing=individual.mixing)
        return Draw([z_stimulus, *factors], centers, log_widths, weights, self.noise_sd, individual=individual)

    # After training ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def remember(self, posterior: LoadingsPosterior, gram: Tensor) -> None:
        """Keep what the frames say of every participant's loadings, for frames of all participants."""
        self.loadings.copy_(self.log_feature_scale.exp().unsqueeze(-1) * posterior.mean)
        self.design_squared.copy_(posterior.rotation.squared)
        self.design_right.copy_(posterior.rotation.right)
        self.gram.copy_(gram)

    @torch.no_grad()
    def report_embeddings(self, participant_dim: int | None, seed: int) -> None:
        """Work out the embeddings that are reported; of participants in as many dimensions as are reliable, if None."""
        features = self.features(self.z_stimulus.mean)
        points = participant_scores(self.loadings, features, self.gram)
        if participant_dim is None:
            participant_dim = n_reliable_axes(points, torch.Generator().manual_seed(seed))
        one = torch.eye(points.shape[1], dtype=points.dtype, device=points.device)
        participants = principal_axes(points, one, participant_dim)
        group = self.group_loadings[1:]
        own = self.log_feature_scale[1:].exp().square() * self._individual_energy()
        metric = group @ self.gram @ group.mT + torch.diag(own)
        stimuli = principal_axes(self.z_stimulus.mean, metric, self.z_stimulus.mean.shape[1])
        variance = torch.diag_embed(self.z_stimulus.normal.sd.square())
        of_stimuli = stimuli.axes.mT @ variance @ stimuli.axes
        of_participants = self.score_covariances(participants.axes, features, self.design_squared, self.design_right)
        # An axis that nothing lies along is known exactly; as a covariance that would be singular.
        of_participants, of_stimuli = (
            covariances + SMALLEST_VARIANCE * torch.eye(covariances.shape[-1]).to(covariances)
            for covariances in (of_participants, of_stimuli)
        )
        self.embeddings.remember(participants, stimuli, of_participants, of_stimuli)

    def _individual_energy(self) -> Tensor:
        """Expected energy of an image of individual loadings on a feature of unit scale."""
        in_basis = self.mixing.mT @ self.gram @ self.mixing
        return (self.loading_sd.square() * in_basis.diagonal()).sum()

    def grams(self, participants: Tensor | None = None) -> Tensor:
        """F F^T over the voxels that participants [n] have, [n, K, K] or [1, K, K]; of all participants by default."""
        who = torch.arange(len(self.loadings), device=self.gram.device) if participants is None else participants
        return self.seen_gram.of(self.gram, who).reshape(-1, *self.gram.shape)

    def score_covariances(
        self, axes: Tensor, features: Tensor, squared: Tensor, right: Tensor, participants: Tensor | None = None
    ) -> Tensor:
        """Posterior covariances [n, D, D] of scores on axes, linear in loadings, of participants with some designs."""
        prior = IndividualWeights(features[:0], features[:0], self.sd, self.loading_sd, self.mixing)
        stimuli, images = score_roots(features, self.gram)
        by_loading = stimuli @ axes.mT.unflatten(1, self.loadings.shape[1:]) @ images.mT
        in_basis = self.log_feature_scale.exp().unsqueeze(-1) * by_loading @ self.mixing
        found = []
        who = torch.arange(len(squared), device=squared.device) if participants is None else participants
        grams = self.grams(who).expand(len(squared), -1, -1)
        for own_right, own_squared, gram in zip(right, squared, grams, strict=True):
            spread = loadings_covariance(gram, prior, own_squared, self.noise_sd)
            rotated = own_right.mT @ in_basis
            found.append(torch.einsum("djk,jkl,ejl->de", rotated, spread, rotated))
        return torch.stack(found)

    @torch.no_grad()
    def remember_detail(self, detail: Detail, intensity: float) -> None:
        """Keep maps of detail, for features that are not scaled and in the units of the data."""
        scale = (self.log_feature_scale.exp() * intensity).unsqueeze(-1).to(detail.group)
        self.detail_group = detail.group * scale
        self.detail_own = None if detail.own is None else detail.own.mul_(scale)
        self.detail_variances.copy_(detail.variances)

    def expect_tensors(self, tensors: Mapping[str, Tensor], n_voxels: int) -> None:
        """Make room for maps of detail and densities where a saved module has them; none for a misfit it has not."""
        self.misfit = self.misfit if "misfit" in tensors else None
        n_participants, r, _ = self.loadings.shape
        # Where there are very many participants, those added last have no maps of their own.
        n_own = min(n_participants, len(tensors.get("detail_own", ())))
        for name, shape in (("detail_group", (r, n_voxels)), ("detail_own", (n_own, r, n_voxels))):
            if name in tensors:
                setattr(self, name, torch.zeros(shape, device=self.loadings.device))
        self.seen_gram.expect("seen_gram", tensors, self.gram, n_participants)
        if "stimulus_detail" in tensors:
            n_added = min(len(self.z_stimulus.mean), len(tensors["stimulus_detail"]))
            self.stimulus_detail = torch.zeros(n_added, n_voxels, device=self.loadings.device)
        if "density" in tensors:
            self.density = self.loadings.new_zeros(n_participants)

    @property
    def fitted_sizes(self) -> tuple[int, int]:
        """How many participants and stimuli were in the fit; those added since come after them."""
        return self.n_fitted or (len(self.loadings), len(self.z_stimulus.mean))

    def has_own_detail(self, participant: int) -> bool:
        """Whether there are maps of what a participant's images have besides factors."""
        return self.detail_own is not None and participant < len(self.detail_own)

    @torch.no_grad()
    def detail_image(self, participant: int, stimulus: int) -> Tensor | None:
        """What a pair's mean image has besides factors, [V], in the units of the data; None if nothing is known."""
        if self.detail_group is None:
            return None
        features = self.features(self.z_stimulus.mean[stimulus]).to(self.detail_group)
        image = features @ self.detail_group
        if self.detail_own is not None and self.has_own_detail(participant):
            image = image + features @ self.detail_own[participant]
        added = stimulus - self.fitted_sizes[1]
        return image if self.stimulus_detail is None or added < 0 else image + self.stimulus_detail[added]

    @torch.no_grad()
    def detail_variance(self, participant: int, stimulus: int, seen: bool = True) -> Tensor:
        """Posterior variance of `detail_image`, the same at all voxels, in standardised intensity.

        seen : whether at voxels that the participant has, or at those that they lack
        """
        group, own, noise = self.detail_variances
        squared = self.design_squared[participant]
        scores = self.scaled(self.features(self.z_stimulus.mean[stimulus])) @ self.design_right[participant]
        known = own * squared / (noise + own * squared).clamp(min=1e-30)
        left = own * (1 - known) if seen and self.has_own_detail(participant) else own
        return (scores.square() * (left + (group + own) / self.fitted_sizes[0])).sum()

    def embedded(self) -> tuple[Embedded, Embedded]:
        """Embeddings of participants and of stimuli, with what is uncertain about them."""
        found = self.embeddings
        return (
            Embedded(found.participants, found.participant_covariances),
            Embedded(found.stimuli, found.stimulus_covariances),
        )

    @property
    def calibration(self) -> Tensor:
        """What halves showed of participants and of stimuli, [2, 3]; see `ReportedEmbeddings`."""
        return self.embeddings.summary

    def factor_sds(self) -> tuple[Tensor, Tensor]:
        """Sds of centres [1, K, 3] and log-widths [1, K]."""
        return self.centers.normal.sd, self.log_widths.normal.sd

    @torch.no_grad()
    def white_variance(self, participant: int, stimulus: int, n_frames: int | None, seen: bool = True) -> Tensor | None:
        """Variance of a predicted image that is the same and independent at all voxels, seen or unseen."""
        variance = self.detail_variance(participant, stimulus, seen)
        return variance if n_frames is None else variance + self.frame_variance / n_frames

    @property
    def frame_variance(self) -> Tensor:
        """Variance of a voxel of a frame around its mean, detail taken out."""
        return self.detail_variances[2] if self.detail_group is not None else self.noise_sd.detach().square()

    def responses(self) -> Tensor:
        """Expected weights of every participant to every stimulus, [P, S, K]."""
        return self.features(self.z_stimulus.mean) @ (self.group_loadings + self.loadings)

    @torch.no_grad()
    def loading_spread(self, participant: Tensor, features: Tensor) -> Tensor:
        """Posterior covariance of h^T E_p in the basis L, [n, K, K], for participants [n] and features [n, D + 1]."""
        scores = (self.scaled(features).unsqueeze(1) @ self.design_right[participant]).squeeze(1)
        prior = IndividualWeights(features[:0], features[:0], self.sd, self.loading_sd, self.mixing)
        spread = [
            torch.einsum("j,jkl->kl", own.square(), loadings_covariance(gram, prior, squared, self.noise_sd))
            for own, squared, gram in zip(
                scores,
                self.design_squared[participant],
                self.grams(participant).expand(len(scores), -1, -1),
                strict=True,
            )
        ]
        return torch.stack(spread)

    def draw_shared(self, noise: RandomSource) -> Tensor:
        """Draw the stimuli's embeddings, which all participants share."""
        return self.z_stimulus.normal.sample_grown(noise, self.fitted_sizes[1])

    def draw_unshared(self, cells: Cells, shared: Tensor, noise: RandomSource, from_prior: bool) -> Draw:
        """Draw factors; say what is known of the weights, a participant's own loadings integrated out."""
        centers, log_widths = self.centers.normal.sample(noise), self.log_widths.normal.sample(noise)
        weights = self._known_weights(shared, cells, from_prior)
        return Draw([], centers, log_widths, weights, self.frame_variance.sqrt())

    @torch.no_grad()
    def _known_weights(self, z_stimulus: Tensor, cells: Cells, from_prior: bool = False) -> WeightPrior:
        """Weights of cells, with what is uncertain about loadings as one effect for all frames of a cell."""
        features, n_cells = self.features(z_stimulus)[cells.stimulus], len(cells.stimulus)
        mean, sd = features @ self.group_loadings, self.sd.expand(n_cells, -1)
        if from_prior:
            effect_sd = self.scaled(features).square().sum(-1, keepdim=True).sqrt() * self.loading_sd
            return WeightPrior(mean, sd, effect_sd, self.mixing)
        mean = mean + (features.unsqueeze(1) @ self.loadings[cells.participant]).squeeze(1)
        scores = (self.scaled(features).unsqueeze(1) @ self.design_right[cells.participant]).squeeze(1)
        # Of h_s^T E_p in the basis L.
        variance = times(scores.square(), self._rotated_variances()[cells.participant])
        return WeightPrior(mean, sd, variance.sqrt(), self.mixing)

    @torch.no_grad()
    def _rotated_variances(self, mixed: bool = False) -> Tensor:
        """Posterior variances of rotated loadings, [P, D + 1, K]: in the basis L, or of weights if `mixed`."""
        prior = IndividualWeights(self.gram, self.gram, self.sd, self.loading_sd, self.mixing)
        at_once = max(1, CHUNK_VALUES // (self.design_squared.shape[1] * self.gram.numel()))
        found, grams = [], self.grams()
        # One after another, where everybody has a matrix of their own.
        for p, squared in enumerate(self.design_squared.split(at_once if len(grams) == 1 else 1)):
            covariance = loadings_covariance(grams[p if len(grams) > 1 else 0], prior, squared, self.noise_sd)
            if mixed:
                covariance = self.mixing @ covariance @ self.mixing.mT
            found.append(covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0))
        return torch.cat(found)

    @torch.no_grad()
    def loading_variances(self) -> Tensor:
        """Posterior variances of everybody's loadings, [P, D + 1, K]."""
        scale = self.log_feature_scale.exp().square().unsqueeze(-1)
        return scale * (self.design_right.square() @ self._rotated_variances(mixed=True))

    def expected(self, cells: Cells) -> Draw:
        """Factors at their posterior mean, and what is known of each cell's weights.

        For cells whose stimulus is not known (-1), an average over all stimuli of the fit, each as likely as any.
        """
        z = self.z_stimulus.mean.detach()
        unknown = cells.stimulus < 0
        weights = self._known_weights(z, replace(cells, stimulus=cells.stimulus.clamp(min=0)))
        if bool(unknown.any()):
            possible = [
                self._known_weights(z, replace(cells, stimulus=torch.where(unknown, s, cells.stimulus)))
                for s in range(self.fitted_sizes[1])
            ]
            mean = torch.stack([prior.mean for prior in possible]).mean(0)
            weights = weights._replace(mean=mean, effect_sd=mixture_sd(possible, mean))
        return Draw([], self.centers.mean.detach(), self.log_widths.mean.detach(), weights, self.noise_sd.detach())

    @torch.no_grad()
    def weights_spread(self, participant: int, stimulus: int, n_frames: int | None) -> WeightSpread:
        """Mean weights of a pair, and how uncertain they are; or, of `n_frames` frames, how uncertain their average."""
        features = self.features(self.z_stimulus.mean[stimulus])
        loadings = self.group_loadings + self.loadings[participant]
        place = torch.tensor([participant], device=features.device)
        covariance = self.loading_spread(place, features.unsqueeze(0))[0]
        # The group's loadings are known from as many people as there are, each with loadings of their own.
        group = self.scaled(features).square().sum() * self.loading_sd.square() / self.fitted_sizes[0]
        covariance = covariance + torch.diag(group)
        if n_frames is not None:
            covariance = covariance + torch.diag(self.sd.square() / n_frames)
        by_embedding = loadings[1:].mT * self.z_stimulus.normal.sd[stimulus].square() @ loadings[1:]
        return WeightSpread(features @ loadings, self.mixing @ covariance @ self.mixing.mT + by_embedding)

    def weights_covariance(self) -> Tensor:
        """Covariance of weights around their mean, L diag(sd^2) L^T, [K, K]: functional connectivity of factors."""
        return (self.mixing * self.sd.square()) @ self.mixing.mT

    # Start -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def start_at(self, start: Start, cells: Cells) -> None:
        """Start at least squares: principal components of the stimuli's mean weights, and regressions on them."""
        super().start_at(start, cells)
        self.log_width_start.copy_(start.log_widths.mean())
        root = torch.linalg.cholesky(start.gram + small_ridge(start.gram))
        means = stimulus_means(start.cell_weights, cells, len(self.loadings), len(self.z_stimulus.mean))
        self.z_stimulus.mean.copy_(principal_scores(means @ root, self.z_stimulus.mean.shape[1]))
        features = self.features(self.z_stimulus.mean)
        # By normal equations: a least-squares routine's last bits depend on where its workspace lies in memory.
        group = torch.linalg.solve(
            features.mT @ features + 1e-9 * torch.eye(features.shape[1]).to(features), features.mT @ means
        )
        self.group_loadings.copy_(group)
        deviation = start.cell_weights - (features @ group)[cells.stimulus]
        own = ridge_loadings(features[cells.stimulus], deviation, cells, len(self.loadings))
        scale = own.square().mean((0, 2)).clamp(min=1e-12)
        self.log_feature_scale.copy_(0.5 * (scale / scale.mean()).log())
        covariance = initial_covariance(start, deviation)
        lower, sd = unit_cholesky(covariance)
        self.lower.copy_(lower.tril(-1))
        self.raw_sd.copy_(unconstrained(sd))
        in_basis = torch.linalg.solve_triangular(lower, own.flatten(0, 1).mT, upper=False).mT
        spread = in_basis.unflatten(0, own.shape[:2]) / self.log_feature_scale.exp().unsqueeze(-1)
        self.raw_loading_sd.copy_(unconstrained(spread.square().mean((0, 1)).sqrt().clamp(min=1e-3)))

    def network_parameters(self) -> Iterator[nn.Parameter]:
        """Places and widths, which learn at the slow rate: a response is found before they move."""
        for posterior in (self.centers, self.log_widths):
            yield posterior.mean
