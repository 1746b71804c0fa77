"""The methods paragraph of a fit, to paste into a paper: one function per sentence, from facts recorded with the fit.

A sentence is a function of facts; it returns nothing where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.saving import summary
from ntfa.fitting.dimensions import FEW_STIMULI
from ntfa.fitting.schedules import CoarseToFine, OneCycle, PaperSchedule
from ntfa.report.preparation import PREPARATION, joined, listed
from ntfa.study.provenance import Provenance
from ntfa.uncertainty.differences import LEVEL


@dataclass(frozen=True)
class Facts:
    """What is known of a fit.

    model : "NTFA", "HTFA", "TFA" or "TLSA"
    params, seed : settings, and the seed that was used
    numbers : as `ntfa.estimators.saving.summary` gives them
    versions : of ntfa and what it depends on
    provenance : how the study was made from images, None if that is not known
    n_pooled : columns that voxels were pooled into at first, None if they were not
    calibration : NTFA's `calibration_`, without rows of what could not be calibrated
    response : NTFA's `response_`, "loadings" or "network"; None for other models
    reason : why that response was taken
    embedding_dims : dimensions of the embeddings of participants and of stimuli
    tolerance : rise of the bound, in nats per observation, below which cooling starts
    """

    model: str
    params: Mapping[str, Any]
    seed: int
    numbers: Mapping[str, Any]
    versions: Mapping[str, Any]
    provenance: Provenance | None = None
    n_pooled: int | None = None
    calibration: pd.DataFrame | None = None
    response: str | None = None
    reason: str = ""
    embedding_dims: tuple[int, int] | None = None
    tolerance: float = OneCycle.tolerance

    @classmethod
    def of(cls, model: TopographicModel, versions: Mapping[str, Any]) -> Facts:
        """Collect the facts of a fitted model."""
        fitted = model._fitted
        name, params, plateau = type(model).__name__, model.fitted_params, fitted.module.plateau
        common = cls(name, params, model.seed_, summary(model), versions, fitted.provenance, fitted.n_pooled)
        if plateau is not None:
            common = replace(common, tolerance=plateau)
        if not isinstance(model, NTFA):
            return common
        choice = model._choice
        return replace(
            common,
            calibration=model.calibration_.dropna(),
            response=choice.response,
            reason=choice.reason,
            embedding_dims=(choice.participant_dim or 0, choice.stimulus_dim),
        )


def methods(facts: Facts) -> list[str]:
    """Write the paragraphs of a methods section: preparation, where it is known, and analysis."""
    preparation: list[str] = []
    if facts.provenance is not None:
        preparation = [sentence(facts.provenance) for sentence in PREPARATION]
    analysis = [sentence(facts) for sentence in ANALYSIS]
    return [" ".join(filter(None, part)) for part in (preparation, analysis) if any(part)]


# Analysis --------------------------------------------------------------------------------------------------------

NAMES = {
    "NTFA": "neural topographic factor analysis (NTFA; Sennesh et al., 2020)",
    "HTFA": "hierarchical topographic factor analysis (HTFA; Manning et al., 2018)",
    "TFA": "topographic factor analysis (TFA; Manning et al., 2014)",
    "TLSA": "topographic latent source analysis (TLSA; Gershman et al., 2011)",
}


def software_sentence(facts: Facts) -> str:
    """Name the model, and what fitted it to what."""
    numbers = facts.numbers
    volumes = numbers["n_data"] // numbers["n_voxels"]
    return (
        f"Data were analysed with {NAMES[facts.model]}, implemented in ntfa {facts.versions.get('ntfa')} with PyTorch "
        f"{facts.versions.get('torch')} (Paszke et al., 2019). The model was fitted to {numbers['n_trials']:,} trials "
        f"({volumes:,} volumes) of {numbers['n_participants']:,} participants and {numbers['n_stimuli']:,} stimuli, at "
        f"{numbers['n_voxels']:,} voxels."
    )


def model_sentence(facts: Facts) -> str:
    """Describe the generative model; each model has a function of its own."""
    shape = (
        f"It described each volume as a weighted sum of {facts.numbers['n_factors']} spatial factors, each a Gaussian "
        "radial basis function with a centre and a width."
    )
    return f"{shape} {GENERATIVE[facts.model](facts)}"


def _ntfa(facts: Facts) -> str:
    return _loadings(facts) if facts.response == "loadings" else _networks(facts)


def _networks(facts: Facts) -> str:
    people, stimuli = facts.embedding_dims or (0, 0)
    embeddings = (
        f"Each participant and each stimulus had an embedding in {_dimensions(people)}, with a standard normal prior."
        if people == stimuli
        else f"Each participant had an embedding in {_dimensions(people)}, and each stimulus one in "
        f"{_dimensions(stimuli)}, with standard normal priors."
    )
    return (
        f"{embeddings} A multilayer perceptron mapped the embedding of a participant to the distribution of the "
        "centres and widths of their factors; a second one mapped the embeddings of participant and stimulus to the "
        f"mean and standard deviation of the factor weights, which varied from volume to volume.{_chosen(facts)}"
    )


def _loadings(facts: Facts) -> str:
    people, stimuli = facts.embedding_dims or (0, 0)
    return (
        "All participants shared the centres and widths of the factors. Each stimulus had an embedding in "
        f"{_dimensions(stimuli)}, with a standard normal prior. Mean factor weights were linear in the embedding, with "
        "loadings of the group and normally distributed deviations of each participant from them; weights varied "
        "around their means from volume to volume, with an estimated covariance between factors. Responses that the "
        "factors left unexplained were added to predicted images as maps of the group and of each participant, linear "
        "in the same embeddings. Participants were embedded by the first principal axes of their deviations, "
        f"{people} in number, such that distances were those between responses to all stimuli.{_chosen(facts)}"
    )


def _dimensions(number: int) -> str:
    return f"{number} dimension{'' if number == 1 else 's'}"


def _chosen(facts: Facts) -> str:
    """Say what was left to the data, and how they decided."""
    said = f" This form of the model was chosen automatically ({facts.reason})." * (
        facts.params.get("response") == "auto"
    )
    enough = facts.numbers["n_stimuli"] >= FEW_STIMULI and facts.numbers["n_participants"] >= 3
    if facts.response == "loadings" and facts.params["embedding_dim"] == "auto" and enough:
        said += (
            " The number of dimensions was chosen for stimuli by predicting left-out pairs of participant and "
            "stimulus, and for participants by parallel analysis."
        )
    return said


def _htfa(facts: Facts) -> str:
    return (
        f"The centres and widths of the factors of each {facts.params['block']} were normally distributed around those "
        "of a group template, with variances that were estimated. Weights had a level for each trial, drawn from a "
        "group distribution, and varied around it from volume to volume; the stimulus did not enter the model."
    )


def _tfa(facts: Facts) -> str:
    return (
        f"Factors were estimated for each {facts.params['block']} separately. Weights had a level for each trial, and "
        "varied around it from volume to volume; the stimulus did not enter the model."
    )


def _tlsa(facts: Facts) -> str:
    design = facts.params["design"]
    columns = [design] if isinstance(design, str) else list(design)
    return (
        "The centres and widths of the factors of each participant were normally distributed around those of a group "
        f"template. The weights of a trial were linear in its regressors ({listed(columns)}), with loadings of each "
        "participant that were normally distributed around those of the group."
    )


GENERATIVE: dict[str, Callable[[Facts], str]] = {"NTFA": _ntfa, "HTFA": _htfa, "TFA": _tfa, "TLSA": _tlsa}


def noise_sentence(facts: Facts) -> str:
    """Say whose noise has a level; models of earlier versions have one for all, and no such parameter."""
    if facts.params.get("noise", "same") == "same":
        return "Measurement noise was Gaussian, with one standard deviation for all voxels."
    return (
        "Measurement noise was Gaussian, with a standard deviation for each voxel, in proportion to that of its values "
        "around the means of participants and stimuli."
    )


def inference_sentence(facts: Facts) -> str:
    """Say which posterior was sought, and by which bound."""
    own = "Individual loadings and factor weights" if facts.response == "loadings" else "Factor weights"
    what = "Loadings" if facts.model == "TLSA" else own
    particles = facts.params["n_particles"]
    bound = (
        "the evidence lower bound"
        if particles == 1
        else f"the importance-weighted bound with {particles:,} particles (Burda et al., 2016)"
    )
    if facts.params["inference"] == "collapsed":
        how = f"{what} were marginalised analytically, and the other latent variables had independent Gaussian"
    else:
        each = "participant, regressor and factor" if facts.model == "TLSA" else "volume and factor"
        how = f"All latent variables, including the {what.lower()} of each {each}, had independent Gaussian"
    return f"{how} posteriors, which were found by maximising {bound}."


def optimisation_sentence(facts: Facts) -> str:
    """Say how the bound was maximised, and where that started."""
    schedule = _one_cycle(facts) if facts.params["schedule"] == "one-cycle" else _plateau(facts)
    n_restarts = facts.params["n_restarts"]
    again = f", and of {n_restarts:,} fits from different starts the one with the highest bound was kept"
    return (
        f"The bound was maximised with Adam (Kingma & Ba, 2015), each step using all data{schedule}. {_start(facts)} "
        f"(seed {facts.seed}){again if n_restarts > 1 else ''}."
    )


def _start(facts: Facts) -> str:
    if facts.params["init"] != "pursuit":
        return "Factors were initialised by K-means clustering of voxel positions"
    images = {"NTFA": "each participant and stimulus", "TLSA": "each participant and row of the design"}
    embeddings = "embeddings of stimuli" if facts.response == "loadings" else "embeddings"
    also = f", and {embeddings} by principal components of the resulting weights" if facts.model == "NTFA" else ""
    return f"Factors were initialised by matching pursuit on mean images of {images.get(facts.model, 'trials')}{also}"


def _rates(facts: Facts, variational: float, network: float) -> str:
    if facts.model != "NTFA":
        return f"learning rate {variational:g}"
    if facts.response == "loadings":
        return f"learning rates {network:g} for centres and widths of factors and {variational:g} for all else"
    return f"learning rates {variational:g} for variational parameters and {network:g} for networks"


def _one_cycle(facts: Facts) -> str:
    usual = OneCycle(facts.params["max_epochs"])
    pooled = ""
    if facts.n_pooled is not None:
        fine = min(CoarseToFine.fine, usual.max_epochs // 2)
        pooled = f"; all but the last {fine} steps used averages of neighbouring voxels ({facts.n_pooled:,} positions)"
    return (
        f" ({_rates(facts, usual.variational_rate, usual.network_rate)}; warm-up, then constant until the mean bound "
        f"of {usual.window} steps was less than {facts.tolerance:f} nats per observation above that of the "
        f"{usual.window} before, then cosine decay{pooled})"
    )


def _plateau(facts: Facts) -> str:
    usual = PaperSchedule(1)
    rates = _rates(facts, usual.variational_rate, usual.network_rate)
    return f" ({rates}, halved after {usual.patience} steps without progress)"


def outcome_sentence(facts: Facts) -> str:
    """Say how the fit ended."""
    numbers = facts.numbers
    ended = "converged" if numbers["converged"] else "was stopped before convergence"
    return (
        f"The fit {ended} after {numbers['n_steps']:,} steps (at most {facts.params['max_epochs']:,}), at a bound of "
        f"{numbers['bound_per_datum']:.5f} nats per observation (a voxel in a volume); the estimated standard "
        f"deviation of the noise was {numbers['noise_sd']:.4g} {_unit(facts)}."
    )


def _unit(facts: Facts) -> str:
    standardised = "none" if facts.provenance is None else facts.provenance.standardize
    units = {"rest": "times that of a voxel at baseline", "run": "times that of a voxel over a run"}
    return units.get(standardised, "in units of the data")


def uncertainty_sentence(facts: Facts) -> str:
    """Say where the uncertainty of the embeddings comes from, and what it was used for."""
    if facts.model != "NTFA":
        return ""
    kind = facts.params.get("uncertainty", "mean-field")
    if facts.response == "loadings":
        said = (
            "Covariances of the embeddings of participants are those of the posterior of their loadings given factors "
            "and embeddings of stimuli; variances of the latter are those of the variational posterior."
        )
    elif kind == "mean-field":
        said = "Variances of the embeddings are those of the variational posterior."
    else:
        said = "Covariances of the embeddings were computed by a Laplace approximation at the fit."
    if kind == "calibrated":
        said += _calibration(facts.calibration)
    return (
        f"{said} Two participants, or two stimuli, were considered different if the {LEVEL:.0%} credible region of the "
        "difference between their embeddings excluded zero."
    )


def _calibration(found: pd.DataFrame | None) -> str:
    """Say what was calibrated, and of what that could not be done."""
    if found is None or found.empty:
        return " Too few participants and stimuli had repeated trials to calibrate these by split halves."
    halved = [f"{int(row['n_halved']):,} {kind}" for kind, row in found.iterrows()]
    shares = [f"{row['reliability']:.2f} for {kind}" for kind, row in found.iterrows()]
    missing = [kind for kind in ("participants", "stimuli") if kind not in found.index]
    rest = f" Too few {missing[0]} had repeated trials for this." if missing else ""
    return (
        " They were calibrated by split halves: the model was fitted again with the trials of each participant and "
        f"each stimulus divided in two ({joined(halved)}), and covariances were enlarged to account for the "
        "differences between the embeddings of the two halves. The reliability, the share of the variance between "
        f"embeddings that was not noise, was {joined(shares)}.{rest}"
    )


ANALYSIS: Sequence[Callable[[Facts], str]] = (
    software_sentence,
    model_sentence,
    noise_sentence,
    inference_sentence,
    optimisation_sentence,
    outcome_sentence,
    uncertainty_sentence,
)
