"""Models that the parts of a comparison will ask for, fitted before these are run, several at a time; halves too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import pandas as pd

from ntfa.comparison import connectivity, features, generalisation
from ntfa.comparison.fits import FITTED_TO, NAMES, PAPER, Fits
from ntfa.comparison.halves import HALVINGS, Half, halves_of, look_at_half
from ntfa.comparison.notes import NotPossible
from ntfa.comparison.processes import call, n_at_once, run_all
from ntfa.errors import Interrupted, NTFAError, StudyError
from ntfa.progress import stage

logger = logging.getLogger("ntfa")

Key = tuple[str, str]
"""A method, and what it is fitted to."""


def fit_ahead(fits: Fits, parts: Sequence[str]) -> None:
    """Fit what some parts need and is not there, if it pays to have several fits at a time.

    Models first, those that take longest before others, and then the many short fits to halves: whichever process has
    nothing to do takes the next.
    """
    missing = [key for key in needed(fits, parts) if not fits.folder_of(*key).exists()]
    chains, halves = _chains(missing), _halves(fits) if "reproducibility" in parts else []
    at_once = n_at_once(fits.settings, fits.study) if len(chains) + len(halves) > 1 else 1
    if at_once == 1:
        return
    for method, name in missing:
        logger.info("Fitting %s to %s", NAMES[method], FITTED_TO[name])
    alone = fits.elsewhere()
    jobs = [*((_fit, alone, chain) for chain in chains), *((_look, alone, half) for half in halves)]
    with stage(f"Comparing: {len(missing)} models, {len(halves)} halves of the study, {at_once} at a time"):
        found = run_all(call, jobs, at_once)[len(chains) :]
    fits.halves.update({half.name: seen for half, seen in zip(halves, found, strict=True) if seen is not None})


def _halves(fits: Fits) -> list[Half]:
    """Halves of the study that reproducibility will look at, in the ways that the design allows."""
    found = []
    for way in HALVINGS:
        with suppress(StudyError):
            found += halves_of(fits, way)
    return found


def needed(fits: Fits, parts: Sequence[str]) -> list[Key]:
    """Models that parts need, those that take longest first; none for parts that the design does not allow."""
    wanted = {key for part in parts for key in NEEDED[part](fits)}
    return sorted(wanted, key=lambda key: (LONGEST_FIRST.index(key[0]), key[1]))


LONGEST_FIRST = ("htfa", "ntfa", PAPER, "tfa", "tlsa")


def _on_train(fits: Fits, methods: Sequence[str]) -> list[Key]:
    try:
        _ = fits.split
    except NotPossible:
        return []
    return [(method, "train") for method in methods]


def _without_stimuli(fits: Fits, methods: Sequence[str]) -> list[Key]:
    if fits.settings.refit_per_fold:
        return []
    return [(method, "unlabelled" if method == "ntfa" else "all") for method in methods]


def _for_connectivity(fits: Fits) -> list[Key]:
    frames = fits.study.trials["stop"] - fits.study.trials["start"]
    possible = frames.min() >= connectivity.FEWEST_FRAMES and fits.settings.n_factors > 1
    return _without_stimuli(fits, connectivity.METHODS) if possible else []


NEEDED: dict[str, Callable[[Fits], list[Key]]] = {
    "generalisation": lambda fits: _on_train(fits, generalisation.METHODS),
    "embeddings": lambda fits: [("ntfa", "all")],
    "predictions": lambda fits: _on_train(fits, generalisation.METHODS),
    "mvpa": lambda fits: _without_stimuli(fits, features.TOPOGRAPHIC),
    "connectivity": _for_connectivity,
    "reproducibility": lambda fits: _on_train(fits, ["ntfa"]),
}


def _chains(keys: Sequence[Key]) -> list[list[Key]]:
    """Keys that go to one process one after another: whether the paper's NTFA is a fit of its own, NTFA's decides."""
    papers = [key for key in keys if key[0] == PAPER]
    chains = [[key, *(paper for paper in papers if key == ("ntfa", paper[1]))] for key in keys if key[0] != PAPER]
    chained = {key for chain in chains for key in chain}
    return chains + [[paper] for paper in papers if paper not in chained]


def _fit(fits: Fits, chain: Sequence[Key]) -> None:
    """Fit models and leave them in the folder; the part that needs one that cannot be fitted will say why."""
    for method, name in chain:
        try:
            fits.of(method, name)
        except Interrupted:
            raise
        except NTFAError as error:
            logger.debug("%s could not be fitted to %s: %s", NAMES[method], FITTED_TO[name], error)


def _look(fits: Fits, half: Half) -> dict[str, pd.DataFrame] | None:
    """Distances by every method in a half; None if one cannot be fitted, of which the part will say why."""
    try:
        return look_at_half(fits, half)
    except Interrupted:
        raise
    except NTFAError as error:
        logger.debug("%s could not be looked at: %s", half.name, error)
        return None
