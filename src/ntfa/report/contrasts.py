"""A contrast as an answer: sentences for the paper, tables, pictures and images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ntfa.analyses.peaks import find_peaks
from ntfa.estimators.contrasts import LEAST_PEOPLE, Contrast
from ntfa.plots.contrasts import plot_contrast, plot_contrast_factors
from ntfa.report.answers import Answer

IMAGES = ("difference", "sd", "z", "thresholded")


def contrast_answer(contrast: Contrast, a: str, b: str, *, name: str = "", command: Sequence[str] = ()) -> Answer:
    """Put a contrast into words and pictures.

    Parameters
    ----------
    a, b : str
        What the two sets of pairs are called, such as "stimulus=pain".
    name : str
        Of the folder; by default made of what the sets are called, and of whom it is about.
    """
    about = "population" if contrast.population else "these people"
    peaks = find_peaks(contrast.coordinates, contrast.difference, contrast.z, contrast.significant, contrast.atlas)
    title = f"{a} less {b}"
    figures = {
        "thresholded": (plot_contrast(contrast, title=title), "Voxels that differ; red: more in the first set."),
        "difference": (plot_contrast(contrast, "difference", title=title), "Difference of the mean predicted maps."),
    }
    factors = plot_contrast_factors(contrast).get_figure()
    assert isinstance(factors, Figure)
    figures["factors"] = (factors, "Factors whose mean weights differ most clearly; blue: at the rate asked for.")
    images = {} if contrast.mask_img is None else {which: contrast.img(which) for which in IMAGES}
    return Answer(
        name=name or f"contrast {a} less {b}{' population' if contrast.population else ''}",
        title=f"Contrast, {title} (about {'the population' if contrast.population else about})",
        sentences=sentences(contrast, a, b, peaks),
        cautions=cautions(contrast),
        tables=_tables(contrast, peaks),
        figures=figures,
        images=images,
        command=command,
    )


def _tables(contrast: Contrast, peaks: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, str]]:
    tables = {"factors": (contrast.factors, "Factors, those whose mean weights differ most clearly first; mm.")}
    if len(peaks):
        tables["peaks"] = (peaks, "Peaks of the significant voxels, and how many of these are nearest to each; mm.")
    sizes = [
        {"set": name, "participants": len({who for who, _ in pairs}), "stimuli": len({what for _, what in pairs})}
        | {"pairs": len(pairs)}
        for name, pairs in (("first", contrast.pairs_a), ("second", contrast.pairs_b))
    ]
    tables["sets"] = (pd.DataFrame(sizes), "What was compared.")
    return tables


def sentences(contrast: Contrast, a: str, b: str, peaks: pd.DataFrame) -> list[str]:
    """Say what came out, the most important first."""
    n, total = int(contrast.significant.sum()), len(contrast.z)
    alone = len({who for who, _ in [*contrast.pairs_a, *contrast.pairs_b]}) == 1
    whom = "in this person" if alone else "in these people"
    whom = "in the population that these people come from" if contrast.population else whom
    rate = f"false discovery rate {100 * contrast.alpha:g}%"
    if not n:
        first = f"Predicted responses differed between {a} and {b} in no voxel {whom} ({rate}, {total:,} voxels)."
    else:
        higher = int((contrast.significant & (contrast.z > 0)).sum())
        first = (
            f"Predicted responses differed between {a} and {b} in {n:,} of {total:,} voxels {whom} ({rate}, |z| >= "
            f"{contrast.threshold:.2f}); they were larger for {a} in {higher:,} and for {b} in {n - higher:,}."
        )
    found = [first]
    if len(peaks):
        found.append(f"The difference was largest at {_peak_words(peaks)}.")
    clear = contrast.factors[contrast.factors["p_adjusted"] <= contrast.alpha]
    found.append(
        f"Mean weights of {len(clear)} of {len(contrast.factors)} factors differed ({rate}); "
        f"sets: {_size(contrast.pairs_a)}, and {_size(contrast.pairs_b)}."
    )
    return found


def _peak_words(peaks: pd.DataFrame) -> str:
    strongest = peaks.iloc[np.argsort(-peaks["difference"].abs().to_numpy(), kind="stable")[:3]]
    words = []
    for _, row in strongest.iterrows():
        region = f"{row['region']}, " if "region" in row and row["region"] != "none" else ""
        words.append(f"({row['x']:.0f}, {row['y']:.0f}, {row['z']:.0f}) mm ({region}z = {row['z_value']:.1f})")
    return ", ".join(words)


def _size(pairs: list[tuple[str, str]]) -> str:
    people, stimuli = len({who for who, _ in pairs}), len({what for _, what in pairs})
    return (
        f"{people} {'person' if people == 1 else 'people'} with {stimuli} {'stimulus' if stimuli == 1 else 'stimuli'}"
    )


def cautions(contrast: Contrast) -> list[str]:
    """Say what the reader must know before believing it."""
    people = min(len({who for who, _ in pairs}) for pairs in (contrast.pairs_a, contrast.pairs_b))
    found = []
    if not contrast.population:
        text = "This is about these people: how others from the same population would differ is not part of its sd."
        found.append(text + (" For that, ask with --population." if people >= LEAST_PEOPLE else ""))
    found.append(
        "Maps are the model's, which shares what people and stimuli have in common; a response that no factor and no "
        "dimension of the embeddings holds is not seen in them."
    )
    return found
