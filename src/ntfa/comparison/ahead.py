"""Models that the parts of a comparison will ask for, fitted before these are run: several at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from ntfa.comparison import connectivity, features, generalisation
from ntfa.comparison.fits import FITTED_TO, NAMES, PAPER, Fits
from ntfa.comparison.notes import NotPossible
from ntfa.comparison.processes import n_at_once, run_all
from ntfa.errors import Interrupted, NTFAError
from ntfa.progress import stage

logger = logging.getLogger("ntfa")

Key = tuple[str, str]
"""A method, and what it is fitted to."""


def fit_ahead(fits: Fits, parts: Sequence[str]) -> None:
    """Fit what some parts need and is not there, if it pays to have several fits at a time."""
    missing = [key for key in needed(fits, parts) if not fits.folder_of(*key).exists()]
    chains = _chains(missing)
    at_once = n_at_once(fits.settings, fits.study) if len(chains) > 1 else 1
    if at_once == 1:
        return
    for method, name in missing:
        logger.info("Fitting %s to %s", NAMES[method], FITTED_TO[name])
    # What was fitted already is in the folder, and need not go to the other processes.
    alone = replace(fits, settings=replace(fits.settings, quiet=True), models={})
    with stage(f"Comparing: {len(missing)} fits, {at_once} at a time"):
        run_all(_fit, [(alone, chain) for chain in chains], at_once)


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
