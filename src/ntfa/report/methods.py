"""The methods paragraph of a fit, to paste into a paper: one function per sentence, from facts recorded with the fit.

A sentence is a function of facts; it returns nothing where there is nothing to say. What a model assumes is said in one
function for each, in `GENERATIVE`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.choosing import Choice
from ntfa.estimators.newcomers import count_in_words
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.saving import summary
from ntfa.fitting.schedules import CoarseToFine, OneCycle, PaperSchedule, Schedule
from ntfa.models.loadings import LoadingFactors
from ntfa.report.preparation import joined, preparation_paragraph, quoted
from ntfa.report.words import surfaces_in_words
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
    choice : NTFA's response model, dimensions of both embeddings, and why; None for other models
    plateau : gain of the bound below which the fit stopped, None for the schedule's own
    detail : whose maps of residual detail were estimated: nobody's, the group's, or also each participant's
    cortex : what is to be said of vertices of the cortical surface, if there are any
    n_spoiled : volumes that counted less
    """

    model: str
    params: Mapping[str, Any]
    seed: int
    numbers: Mapping[str, Any]
    versions: Mapping[str, Any]
    provenance: Provenance | None = None
    n_pooled: int | None = None
    calibration: pd.DataFrame | None = None
    choice: Choice | None = None
    plateau: float | None = None
    detail: str = "none"
    cortex: str = ""
    n_spoiled: int = 0

    @property
    def kind(self) -> str:
        """The model, and which response model of NTFA."""
        return self.model if self.choice is None else f"{self.model}, {self.choice.response}"

    @classmethod
    def of(cls, model: TopographicModel, versions: Mapping[str, Any]) -> Facts:
        """Collect the facts of a fitted model."""
        fitted, module = model._fitted, model._fitted.module
        fit = (type(model).__name__, model.fitted_params, model.seed_, summary(model), versions)
        n_spoiled = 0 if fitted.frames is None else int((fitted.frames["weight"] < 1).sum())
        known = cls(*fit, fitted.provenance, fitted.n_pooled, plateau=module.plateau, n_spoiled=n_spoiled)
        known = replace(known, cortex=" ".join(surfaces_in_words(model)))
        if not isinstance(model, NTFA):
            return known
        detail = "none"
        if isinstance(module, LoadingFactors) and module.detail_group is not None:
            detail = "group" if module.detail_own is None else "individual"
        return replace(known, calibration=model.calibration_.dropna(), choice=model._choice, detail=detail)


def methods(facts: Facts) -> list[str]:
    """Write the paragraphs of a methods section: preparation, where it is known, and analysis."""
    before = [] if facts.provenance is None else [preparation_paragraph(facts.provenance)]
    return [*before, " ".join(filter(None, (sentence(facts) for sentence in SENTENCES)))]


NAMES = {
    "NTFA": "neural topographic factor analysis (NTFA; Sennesh et al., 2020)",
    "HTFA": "hierarchical topographic factor analysis (HTFA; Manning et al., 2018)",
    "TFA": "topographic factor analysis (TFA; Manning et al., 2014)",
    "TLSA": "topographic latent source analysis (TLSA; Gershman et al., 2011)",
}


def software_sentence(facts: Facts) -> str:
    """Name the model, and what fitted it to what."""
    numbers = facts.numbers
    volumes, lacking = numbers["n_frames"], numbers.get("n_participants_lacking_voxels")
    missing = ""
    if lacking:
        who = "One participant was" if lacking == 1 else f"{lacking:,} participants were"
        missing = f" {who} not measured at all of these; values at such voxels were treated as missing."
    return (
        f"Data were analysed with {NAMES[facts.model]}, implemented in ntfa {facts.versions.get('ntfa')} with PyTorch "
        f"{facts.versions.get('torch')} (Paszke et al., 2019). The model was fitted to {numbers['n_trials']:,} trials "
        f"({volumes:,} volumes) of {numbers['n_participants']:,} participants and {numbers['n_stimuli']:,} stimuli, at "
        f"{numbers['n_voxels']:,} voxels.{missing}"
    )


def cortex_sentence(facts: Facts) -> str:
    """Say where vertices of cortex were, and how distances between them were measured."""
    return facts.cortex


def model_sentence(facts: Facts) -> str:
    """Describe the generative model; each model has a function of its own."""
    shape = (
        f"It described each volume as a weighted sum of {facts.numbers['n_factors']} spatial factors, each a Gaussian "
        "radial basis function with a centre and a width."
    )
    return f"{shape} {GENERATIVE[facts.kind](facts)}"


def _networks(facts: Facts) -> str:
    return (
        f"Each participant had an embedding in {_dimensions(facts, 0)}, each stimulus in {_dimensions(facts, 1)}, with "
        "standard normal priors. A multilayer perceptron mapped the embedding of a participant to the distribution of "
        "the centres and widths of their factors; a second one mapped the embeddings of participant and stimulus to "
        "the mean and standard deviation of the factor weights, which varied from volume to volume."
    )


def _loadings(facts: Facts) -> str:
    return (
        "Centres and widths of the factors were the same for all participants. Each stimulus had an embedding in "
        f"{_dimensions(facts, 1)}, with a standard normal prior; mean factor weights were linear in this embedding, "
        "with loadings of each participant that were normally distributed around those of the group. Around their "
        "mean, weights varied from volume to volume, with an estimated covariance between factors. Participants were "
        f"embedded in {_dimensions(facts, 0)}, the leading principal axes of the differences between their responses."
        f"{DETAIL[facts.detail]}"
    )


_MAPS = (
    " Responses to stimuli that the factors did not explain were estimated after the fit, voxel by voxel, by ridge "
    "regression on the embedding of the stimuli, with variances of maximal marginal likelihood,"
)
DETAIL = {
    "none": "",
    "group": f"{_MAPS} for the group.",
    "individual": f"{_MAPS} for the group and for each participant.",
}


def _dimensions(facts: Facts, place: int) -> str:
    assert facts.choice is not None
    dim = (facts.choice.participant_dim, facts.choice.stimulus_dim)[place]
    return f"{dim} dimension{'' if dim == 1 else 's'}"


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
        f"template. The weights of a trial were linear in its regressors ({quoted(columns)}), with loadings of each "
        "participant that were normally distributed around those of the group."
    )


GENERATIVE: dict[str, Callable[[Facts], str]] = {
    "NTFA, network": _networks,
    "NTFA, loadings": _loadings,
    "HTFA": _htfa,
    "TFA": _tfa,
    "TLSA": _tlsa,
}


def choice_sentence(facts: Facts) -> str:
    """Say what of the model was chosen by the data, and how."""
    if facts.choice is None:
        return ""
    said, errors = [], re.findall(r"\d+\.\d+", facts.choice.reason)
    if facts.choice.sizing:
        tried = [row["n_factors"] for row in facts.choice.sizing["tried"]]
        said.append(
            f"The number of factors was chosen by cross-validation, as the smallest of 1 to {max(tried)} whose error "
            "of images of participant-stimulus pairs that were left out was within one standard error of the smallest "
            "error, or exceeded it by at most 1% of the variance explained."
        )
    if facts.params.get("response") == "auto" and len(errors) == 2:
        said.append(
            "The response model was selected by the error of images of participant-stimulus pairs that were left out "
            f"of a reduced version of the study (squared error relative to predicting zero: {errors[0]} with "
            f"individual loadings, {errors[1]} with networks)."
        )
    if facts.choice.response == "loadings" and facts.params["embedding_dim"] == "auto":
        said.append(
            "The number of dimensions of participants was determined by parallel analysis (Horn, 1965; at least two)"
            + (", that of stimuli by cross-validation." if _could_be_left_out(facts) else ".")
        )
    return " ".join(said)


def _could_be_left_out(facts: Facts) -> bool:
    """Whether there were pairs enough to choose dimensions by some that were left out."""
    assert facts.choice is not None
    enough = min(facts.numbers["n_participants"], facts.numbers["n_stimuli"]) >= 3
    return enough and "could be left out" not in facts.choice.reason


def noise_sentence(facts: Facts) -> str:
    """Say whose noise has a level; models of earlier versions have one for all, and no such parameter."""
    if facts.params.get("noise", "same") == "same":
        return "Measurement noise was Gaussian, with one standard deviation for all voxels."
    return (
        "Measurement noise was Gaussian, with a standard deviation for each voxel, in proportion to that of its values "
        "around the means of participants and stimuli."
    )


def frames_sentence(facts: Facts) -> str:
    """Say which volumes counted less; models of earlier versions have no such parameter."""
    if facts.params.get("frames", "equal") == "equal":
        return ""
    volumes = facts.numbers["n_data"] // facts.numbers["n_voxels"]
    how_many = f"{facts.n_spoiled:,} of {volumes:,} volumes ({facts.n_spoiled / max(volumes, 1):.1%})"
    return (
        "Volumes whose squared distance from a typical volume of the participant was more than twice its median, and "
        "above it by more than four standard deviations of its logarithm, were weighted by the inverse square of that "
        "ratio, unless the response to their stimulus in other trials explained the distance; this concerned "
        f"{how_many if facts.n_spoiled else 'no volume'}."
    )


def inference_sentence(facts: Facts) -> str:
    """Say which posterior was sought, and by which bound."""
    named = {"TLSA": "Loadings", "NTFA, loadings": "Individual loadings and factor weights"}
    what = named.get(facts.kind, "Factor weights")
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
    embedded = {"NTFA, network": "embeddings", "NTFA, loadings": "embeddings of stimuli"}.get(facts.kind)
    also = f", and {embedded} by principal components of the resulting weights" if embedded else ""
    return f"Factors were initialised by matching pursuit on mean images of {images.get(facts.model, 'trials')}{also}"


def _rates(facts: Facts, schedule: Schedule) -> str:
    slow = {"NTFA, network": "networks", "NTFA, loadings": "centres and widths"}.get(facts.kind)
    usual, spread = schedule.variational_rate, schedule.spread_rate
    apart = [] if slow is None else [f"{schedule.network_rate:g} for {slow}"]
    apart += [] if spread == usual else [f"{spread:g} for standard deviations of factors"]
    return f"learning rates {', '.join(apart)} and {usual:g} for all else" if apart else f"learning rate {usual:g}"


def _one_cycle(facts: Facts) -> str:
    usual = OneCycle(facts.params["max_epochs"], tolerance=facts.plateau or OneCycle.tolerance)
    pooled = ""
    if facts.n_pooled is not None:
        fine = min(CoarseToFine.fine, usual.max_epochs // 2)
        pooled = f"; all but the last {fine} steps used averages of neighbouring voxels ({facts.n_pooled:,} positions)"
    return (
        f" ({_rates(facts, usual)}; warm-up, then constant until the mean bound "
        f"of {usual.window} steps was less than {usual.tolerance:f} nats per observation above that of the "
        f"{usual.window} before, then cosine decay{pooled})"
    )


def _plateau(facts: Facts) -> str:
    usual = PaperSchedule(1)
    return f" ({_rates(facts, usual)}, halved after {usual.patience} steps without progress)"


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
    if facts.kind == "NTFA, loadings":
        said = (
            "Covariances of the embeddings of participants followed from the exact posterior of their loadings given "
            "the factors, those of stimuli from the variational posterior."
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


def newcomers_sentence(facts: Facts) -> str:
    """Say who was added after the fit, and how."""
    counts = [facts.numbers.get(f"n_{kind}_added", 0) for kind in ("participants", "stimuli")]
    if not any(counts):
        return ""
    return (
        f"Afterwards, {count_in_words(*counts)} {'was' if sum(counts) == 1 else 'were'} added to the fitted model: all "
        "shared parameters and all other embeddings were kept fixed, and only the posteriors of those added were "
        "estimated."
    )


SENTENCES: Sequence[Callable[[Facts], str]] = (
    software_sentence,
    cortex_sentence,
    model_sentence,
    choice_sentence,
    noise_sentence,
    frames_sentence,
    inference_sentence,
    optimisation_sentence,
    outcome_sentence,
    uncertainty_sentence,
    newcomers_sentence,
)
