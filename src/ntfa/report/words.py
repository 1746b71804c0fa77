"""A fit in plain words: what was done, what came out, how to cite it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.saving import summary
from ntfa.uncertainty.differences import LEVEL, Spread, spread

TABLES = {"participants": "participants_", "stimuli": "stimuli_"}
# A spread of the means this many times their uncertainty, and this share of pairs apart, is called clear.
CLEAR_RATIO, CLEAR_SHARE, FEW = 2.0, 0.5, 0.05

CITATIONS = {
    "NTFA": "Sennesh, E., Khan, Z., Wang, Y., Dy, J., Satpute, A. B., Hutchinson, J. B., & van de Meent, J.-W. (2020). "
    "Neural topographic factor analysis for fMRI data. Advances in Neural Information Processing Systems, 33.",
    "TFA": "Manning, J. R., Ranganath, R., Norman, K. A., & Blei, D. M. (2014). Topographic factor analysis: A "
    "Bayesian model for inferring brain networks from neural data. PLoS ONE, 9(5), e94914.",
    "HTFA": "Manning, J. R., Zhu, X., Willke, T. L., Ranganath, R., Stachenfeld, K., Hasson, U., Blei, D. M., & "
    "Norman, K. A. (2018). A probabilistic approach to discovering dynamic full-brain functional connectivity "
    "patterns. NeuroImage, 180, 243-252.",
    "TLSA": "Gershman, S. J., Blei, D. M., Pereira, F., & Norman, K. A. (2011). A topographic latent source model for "
    "fMRI data. NeuroImage, 57(1), 89-100.",
    "Adam": "Kingma, D. P., & Ba, J. (2015). Adam: A method for stochastic optimization. International Conference on "
    "Learning Representations.",
}
NAMES = {
    "NTFA": ("neural topographic factor analysis", "Sennesh et al., 2020"),
    "HTFA": ("hierarchical topographic factor analysis", "Manning et al., 2018"),
    "TFA": ("topographic factor analysis", "Manning et al., 2014"),
    "TLSA": ("topographic latent source analysis", "Gershman et al., 2011"),
}


def fit_in_words(model: TopographicModel) -> list[str]:
    """Say what was fitted, to what, and whether it converged."""
    numbers = summary(model)
    ended = "converged" if numbers["converged"] else "stopped at the most steps allowed, before it converged,"
    return [
        f"{numbers['model']} with {numbers['n_factors']} factors was fitted to {numbers['n_trials']:,} trials of "
        f"{numbers['n_participants']:,} participants and {numbers['n_stimuli']:,} stimuli, "
        f"{numbers['n_voxels']:,} voxels.",
        f"The fit {ended} after {numbers['n_steps']:,} steps and {numbers['seconds']:.1f} s, at a bound of "
        f"{numbers['bound_per_datum']:.5f} nats a datum; a voxel's noise has a standard deviation of "
        f"{numbers['noise_sd']:.4g}.",
    ]


def separation_in_words(model: TopographicModel) -> list[str]:
    """Say whether participants and stimuli lie further apart than they are uncertain; nothing without embeddings."""
    tables = {kind: getattr(model, attribute, None) for kind, attribute in TABLES.items()}
    sentences = [_separation(kind, table) for kind, table in tables.items() if table is not None]
    return sentences + (_how_certain(model) if isinstance(model, NTFA) else [])


def _how_certain(model: NTFA) -> list[str]:
    """Say where the uncertainty is from, and how much of what separates is noise."""
    if model.fitted_params.get("uncertainty") != "calibrated":
        return [
            "These uncertainties are the fit's own, which are too small, often several times: identical participants "
            'would seem to differ. Fit with uncertainty="calibrated" before drawing conclusions from them.'
        ]
    known = model.calibration_.dropna()
    said = [
        f"{share:.0%} of the variance between {kind} is more than noise, by halves of the trials of each"
        for kind, share in known["reliability"].items()
    ]
    doubtful = [str(kind) for kind in TABLES if kind not in known.index]
    sentences = [f"{'; '.join(said)}: two that are identical would differ in about 5% of cases."] if said else []
    for kind in doubtful:
        sentences.append(
            f"There were too few {kind} with trials enough to be halved, so that their uncertainty is the fit's own, "
            "which is too small."
        )
    return sentences


def _separation(kind: str, table: pd.DataFrame) -> str:
    if len(table) < 2:
        return f"There is only one of the {kind}, so nothing can be said of how {kind} differ."
    found = spread(table)
    return (
        f"{_verdict(kind, found)}: {found.n_apart:,} of {found.n_pairs:,} pairs ({found.share_apart:.0%}) differ at a "
        f"credible level of {LEVEL:.0%}, and the spread of their means is {found.ratio:.1f} times their mean posterior "
        "standard deviation."
    )


def _verdict(kind: str, found: Spread) -> str:
    if found.share_apart >= CLEAR_SHARE and found.ratio >= CLEAR_RATIO:
        return f"The {kind} separate clearly more than their uncertainty"
    if found.share_apart < FEW:
        return f"The {kind} do not separate more than their uncertainty"
    return f"Some of the {kind} separate more than their uncertainty"


def what_to_look_at(model: TopographicModel, *, with_quality: bool) -> list[str]:
    """Say what deserves a look next, in order."""
    advice = []
    if not model.converged_:
        advice.append(
            "The fit had not converged: see the curve under Convergence, and fit with more --max-epochs before "
            "reading much into the rest."
        )
    if hasattr(model, "participants_"):
        advice.append(
            "Colour the embeddings by each label you know (group, category, scanner, site): a label of no interest "
            "that explains the picture is a warning."
        )
    advice.append("Check that factors lie in the brain and that few sit at its edge, where motion shows.")
    if with_quality:
        advice.append("See under Data quality whether a participant who stands apart also lost many frames.")
    return advice


def methods(model: TopographicModel, versions: Mapping[str, Any]) -> str:
    """Write a paragraph for the methods section of a paper, with its numbers and citations."""
    numbers, params, name = summary(model), model.fitted_params, type(model).__name__
    long_name, citation = NAMES[name]
    ended = "converged" if numbers["converged"] else "was stopped before convergence"
    collapsed = params["inference"] == "collapsed"
    weights = (
        "Factor weights were integrated out analytically"
        if collapsed
        else "All latent variables, factor weights included, had fully factorised Gaussian posteriors"
    )
    return (
        f"Data were analysed with {long_name} ({name}; {citation}) as implemented in ntfa {versions['ntfa']} on "
        f"PyTorch {versions['torch']}. The data comprised {numbers['n_trials']:,} trials of "
        f"{numbers['n_participants']:,} participants and {numbers['n_stimuli']:,} stimuli at "
        f"{numbers['n_voxels']:,} voxels ({numbers['n_data']:,} values). "
        f"The model had {numbers['n_factors']} radial basis factors{_particulars(name, params)} and "
        f"{_noise(params)}. {weights}, and {'the other' if collapsed else 'their'} posteriors were found by "
        f"maximising {_bound(params)} with Adam (Kingma & Ba, 2015) under the {params['schedule']} schedule, from "
        f"factors started by {_start(params)} (seed {model.seed_}{_restarts(params)}). The fit {ended} after "
        f"{numbers['n_steps']:,} steps (at most {params['max_epochs']:,}) at a bound of "
        f"{numbers['bound_per_datum']:.5f} nats a datum, with an estimated noise standard deviation of "
        f"{numbers['noise_sd']:.4g}.{_uncertainty(name, params)}"
    )


def references(model: TopographicModel) -> list[str]:
    """Citations for the methods paragraph: the model's, those it grew out of, and the optimiser's."""
    own = type(model).__name__
    wanted = {"NTFA": ("NTFA", "HTFA", "TFA", "TLSA"), "HTFA": ("HTFA", "TFA")}.get(own, (own,))
    return sorted([*(CITATIONS[name] for name in wanted), CITATIONS["Adam"]])


def _particulars(name: str, params: Mapping[str, Any]) -> str:
    if name == "NTFA":
        return (
            ", whose positions, widths and weights neural networks predicted from "
            f"{params['embedding_dim']}-dimensional embeddings of participants and stimuli"
        )
    if name == "TLSA":
        design = params["design"]
        columns = design if isinstance(design, str) else ", ".join(design)
        return f" for each participant around a group template, with loadings on the design ({columns})"
    around = " around a shared template" if name == "HTFA" else ""
    return f" for each {params['block']}{around}"


def _noise(params: Mapping[str, Any]) -> str:
    """Say whose noise has a level; models of earlier versions have one for all and no such parameter."""
    if params.get("noise", "same") == "same":
        return "one noise level for all voxels"
    return (
        "a noise level for each voxel, in proportion to how much it varied around the means of participants and stimuli"
    )


def _bound(params: Mapping[str, Any]) -> str:
    n_particles = params["n_particles"]
    return (
        "the evidence lower bound" if n_particles == 1 else f"an importance-weighted bound of {n_particles} particles"
    )


def _start(params: Mapping[str, Any]) -> str:
    return "matching pursuit on trial averages" if params["init"] == "pursuit" else "K-means on voxel positions"


def _restarts(params: Mapping[str, Any]) -> str:
    return f", best of {params['n_restarts']} starts" if params["n_restarts"] > 1 else ""


def _uncertainty(name: str, params: Mapping[str, Any]) -> str:
    if name != "NTFA":
        return ""
    return UNCERTAINTY[params.get("uncertainty", "mean-field")] + (
        " Two participants or stimuli were said to differ at the largest credible level whose ellipsoid of the "
        "difference between their embeddings excluded zero."
    )


UNCERTAINTY = {
    "calibrated": " Covariances of the embeddings were those of a Laplace approximation, enlarged to what a second "
    "fit, to halves of the trials of every participant and stimulus, showed noise to be.",
    "laplace": " Covariances of the embeddings were those of a Laplace approximation.",
    "mean-field": " Variances of the embeddings were those of the variational posterior.",
}
