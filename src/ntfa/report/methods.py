"""The methods paragraph of a fit, to paste into a paper: one function per sentence, from facts recorded with the fit.

A sentence is a function of facts; it returns nothing where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.saving import summary
from ntfa.fitting.schedules import CoarseToFine, OneCycle, PaperSchedule
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
    """

    model: str
    params: Mapping[str, Any]
    seed: int
    numbers: Mapping[str, Any]
    versions: Mapping[str, Any]
    provenance: Provenance | None = None
    n_pooled: int | None = None
    calibration: pd.DataFrame | None = None

    @classmethod
    def of(cls, model: TopographicModel, versions: Mapping[str, Any]) -> Facts:
        """Collect the facts of a fitted model."""
        fitted = model._fitted
        calibration = model.calibration_.dropna() if isinstance(model, NTFA) else None
        name, params = type(model).__name__, model.fitted_params
        return cls(name, params, model.seed_, summary(model), versions, fitted.provenance, fitted.n_pooled, calibration)


def methods(facts: Facts) -> list[str]:
    """Write the paragraphs of a methods section: preparation, where it is known, and analysis."""
    preparation: list[str] = []
    if facts.provenance is not None:
        preparation = [sentence(facts.provenance) for sentence in PREPARATION]
    analysis = [sentence(facts) for sentence in ANALYSIS]
    return [" ".join(filter(None, part)) for part in (preparation, analysis) if any(part)]


# Preparation -----------------------------------------------------------------------------------------------------


def source_sentence(known: Provenance) -> str:
    """Say which images went in."""
    if known.n_runs is None:
        return ""
    t_r = " to ".join(f"{value:g}" for value in sorted({*known.t_r[:1], *known.t_r[-1:]}))
    made = f"acquired with a repetition time of {t_r} s"
    if known.preprocessing is not None:
        cite = " (Esteban et al., 2019)" if known.preprocessing.lower().startswith("fmriprep") else ""
        made += f" and preprocessed with {known.preprocessing}{cite}"
    space = f" in {known.space} space" if known.space else ""
    whose = f"{known.n_participants or 0:,} participants ({known.n_runs:,} runs)"
    return f"Functional images of {whose}{space}, {made}, were analysed."


def denoising_sentence(known: Provenance) -> str:
    """Say what was done to the images before trials were cut out."""
    done, fwhm = [], known.smoothing_fwhm
    if fwhm is not None:
        done.append(f"Images were smoothed with a Gaussian kernel of {fwhm:g} mm full width at half maximum.")
    if known.confounds in CONFOUNDS:
        done.append(CONFOUNDS[known.confounds])
    if known.high_pass is not None:
        done.append(f"Time series were high-pass filtered at {known.high_pass:g} Hz (Butterworth filter).")
    if done:
        return " ".join([*done, "This was done with nilearn (Abraham et al., 2014)."])
    if known.confounds == "none":
        return "No spatial smoothing, temporal filtering or regression of confounds was applied after preprocessing."
    return ""


_MOTION = "24 motion parameters (six realignment parameters, their derivatives, and squares of both)"
_REGRESSED = f"The following were regressed out of the time series of each voxel: {_MOTION}"
_COSINES = "and cosine functions for high-pass filtering. Volumes before the signal was in steady state were discarded."
CONFOUNDS = {
    "simple": f"{_REGRESSED}, mean signals of white matter and cerebrospinal fluid, {_COSINES}",
    "scrubbing": "Volumes with a framewise displacement above 0.5 mm or standardised DVARS above 1.5, and segments of "
    f"fewer than five volumes between them, were discarded (Power et al., 2012). {_REGRESSED}, mean signals of white "
    f"matter and cerebrospinal fluid with their derivatives and squares of both, {_COSINES}",
    "compcor": f"{_REGRESSED}, all anatomical CompCor components of the combined mask of white matter and "
    f"cerebrospinal fluid (Behzadi et al., 2007), {_COSINES}",
    "given": "User-supplied confounds were regressed out of the time series of each voxel.",
}
"""What nilearn's strategies for fMRIPrep's confounds come to; a test compares them with nilearn's own settings."""


def voxels_sentence(known: Provenance) -> str:
    """Say which voxels were used, and how many were lost."""
    if known.mask is None:
        return ""
    share = known.min_coverage if known.min_coverage is not None else 1.0
    inside = {
        "given": "inside a predefined mask",
        "computed": "inside a brain mask computed from the mean images with nilearn (Abraham et al., 2014)",
        "brain masks": "inside the brain masks of " + ("all runs" if share == 1 else f"at least {share:.0%} of runs"),
    }.get(known.mask, "inside a mask")
    if known.white_matter_removed:
        inside += " and outside the white matter of the MNI152 template"
    resampled = " Images on another voxel grid than the mask were resampled to it." * (known.other_grid == "resample")
    return f"Analyses were restricted to voxels {inside}{_voxels_lost(known)}.{resampled}"


def _voxels_lost(known: Provenance) -> str:
    if known.n_voxels_in_mask is None or not known.n_voxels_lost:
        return "" if known.n_voxels_in_mask is None else f" ({known.n_voxels_in_mask:,} voxels)"
    left = known.n_voxels_in_mask - known.n_voxels_lost
    return (
        f" ({known.n_voxels_in_mask:,} voxels); {known.n_voxels_lost:,} of these had a value that was not finite, or "
        f"no variance, in at least one run and were excluded for all participants, leaving {left:,} voxels"
    )


def trials_sentence(known: Provenance) -> str:
    """Say which volumes make a trial."""
    lasting = "the duration of the event" if known.trial_duration is None else f"{known.trial_duration:g} s"
    delay, gap = known.delay, known.merge_gap
    begin = f"{delay:g} s after its onset, to allow for the haemodynamic delay" if delay else "at its onset"
    merged = "" if gap is None else f" Events of one stimulus no more than {gap:g} s apart were merged."
    ignored = f" Events of {_listed(known.ignore)} were not analysed." if known.ignore else ""
    return f"The trial of an event comprised the volumes acquired during {lasting}, starting {begin}.{merged}{ignored}"


def standardisation_sentence(known: Provenance) -> str:
    """Say what voxels were z-scored against."""
    if known.standardize == "none":
        return "Time series were not standardised."
    if known.standardize == "run":
        return "The time series of each voxel was z-scored by its mean and standard deviation over each run."
    rest = "outside all events"
    if known.rest:
        rest = f"of the baseline condition {_listed(known.rest)} (in runs without it, {rest})"
    counted = "" if known.n_rest_volumes is None else f" ({known.n_rest_volumes:,} volumes in total)"
    trials = " The baseline was also modelled as a stimulus." if known.include_rest and known.rest else ""
    delay = f", with the same delay of {known.delay:g} s" if known.delay else ""
    return (
        "The time series of each voxel was z-scored, run by run, by the mean and standard deviation of the volumes "
        f"{rest}{delay}{counted}.{trials}"
    )


def losses_sentence(known: Provenance) -> str:
    """Say how many volumes and trials were lost, and how many are left."""
    if known.n_trials is None or known.n_volumes is None or known.n_volumes_kept is None:
        return ""
    lost = known.n_volumes - known.n_volumes_kept
    said = [f"{lost:,} of {known.n_volumes:,} volumes ({lost / max(known.n_volumes, 1):.1%}) were discarded"]
    for count, one, what in (
        (known.n_trials_dropped, "trial", "without a remaining volume {was} dropped"),
        (known.n_events_truncated, "event", "{was} truncated at the end of the run"),
        (known.n_volumes_in_two_events, "volume", "that belonged to two events {was} assigned to the later one"),
    ):
        if count:
            said.append(
                f"{count:,} {one}{'' if count == 1 else 's'} {what.format(was='was' if count == 1 else 'were')}"
            )
    return f"{_joined(said)}. This left {known.n_trial_volumes or 0:,} volumes in {known.n_trials:,} trials."


PREPARATION: Sequence[Callable[[Provenance], str]] = (
    source_sentence,
    denoising_sentence,
    voxels_sentence,
    trials_sentence,
    standardisation_sentence,
    losses_sentence,
)


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
    return f"{shape} {GENERATIVE[facts.model](facts.params)}"


def _ntfa(params: Mapping[str, Any]) -> str:
    dim = params["embedding_dim"]
    return (
        f"Each participant and each stimulus had an embedding in {dim} dimension{'' if dim == 1 else 's'}, with a "
        "standard normal prior. A multilayer perceptron mapped the embedding of a participant to the distribution of "
        "the centres and widths of their factors; a second one mapped the embeddings of participant and stimulus to "
        "the mean and standard deviation of the factor weights, which varied from volume to volume."
    )


def _htfa(params: Mapping[str, Any]) -> str:
    return (
        f"The centres and widths of the factors of each {params['block']} were normally distributed around those of a "
        "group template, with variances that were estimated. Weights had a level for each trial, drawn from a group "
        "distribution, and varied around it from volume to volume; the stimulus did not enter the model."
    )


def _tfa(params: Mapping[str, Any]) -> str:
    return (
        f"Factors were estimated for each {params['block']} separately. Weights had a level for each trial, and varied "
        "around it from volume to volume; the stimulus did not enter the model."
    )


def _tlsa(params: Mapping[str, Any]) -> str:
    design = params["design"]
    columns = [design] if isinstance(design, str) else list(design)
    return (
        "The centres and widths of the factors of each participant were normally distributed around those of a group "
        f"template. The weights of a trial were linear in its regressors ({_listed(columns)}), with loadings of each "
        "participant that were normally distributed around those of the group."
    )


GENERATIVE: dict[str, Callable[[Mapping[str, Any]], str]] = {"NTFA": _ntfa, "HTFA": _htfa, "TFA": _tfa, "TLSA": _tlsa}


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
    what = "Loadings" if facts.model == "TLSA" else "Factor weights"
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
    also = ", and embeddings by principal components of the resulting weights" if facts.model == "NTFA" else ""
    return f"Factors were initialised by matching pursuit on mean images of {images.get(facts.model, 'trials')}{also}"


def _rates(facts: Facts, variational: float, network: float) -> str:
    if facts.model != "NTFA":
        return f"learning rate {variational:g}"
    return f"learning rates {variational:g} for variational parameters and {network:g} for networks"


def _one_cycle(facts: Facts) -> str:
    usual = OneCycle(facts.params["max_epochs"])
    pooled = ""
    if facts.n_pooled is not None:
        fine = min(CoarseToFine.fine, usual.max_epochs // 2)
        pooled = f"; all but the last {fine} steps used averages of neighbouring voxels ({facts.n_pooled:,} positions)"
    return (
        f" ({_rates(facts, usual.variational_rate, usual.network_rate)}; warm-up, then constant until the mean bound "
        f"of {usual.window} steps was less than {usual.tolerance:f} nats per observation above that of the "
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
    if kind == "mean-field":
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
        f"each stimulus divided in two ({_joined(halved)}), and covariances were enlarged to account for the "
        "differences between the embeddings of the two halves. The reliability, the share of the variance between "
        f"embeddings that was not noise, was {_joined(shares)}.{rest}"
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


def _joined(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _listed(labels: Sequence[str]) -> str:
    return _joined([f'"{label}"' for label in labels])
