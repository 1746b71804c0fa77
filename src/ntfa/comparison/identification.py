"""Is the image predicted for a held-out pair nearer to it than those predicted for other pairs?

The pair was held out and the others were not, so that predictions of the others hold more of what their participant, or
stimulus, shows in the data of the fit. What a person shows on average is therefore taken out of all images before
stimuli are told apart, and what a stimulus shows on average before people are. A method that predicts nothing beyond
these is at chance, whatever people and stimuli are like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ntfa.analyses.reproducibility import identify
from ntfa.study import Study

STIMULI, PEOPLE = "other stimuli, same person", "other people, same stimulus"


def identification(models: Mapping[str, Any], train: Study, test: Study) -> pd.DataFrame:
    """Identify each held-out cell among predictions for the same person's stimuli, and among people's for the stimulus.

    Parameters
    ----------
    models : dict of name to fitted model
        Each predicts images of (participant, stimulus) pairs.
    train, test : Study
        What the models were fitted to, and what they were not.

    Returns
    -------
    DataFrame
        `among`, `method`, `participant`, `stimulus`, `nearer`, `first`, `n_candidates`; one row per cell and method.
    """
    cells, known = mean_cells(test), mean_cells(train)
    rows = []
    for method, model in models.items():
        for among, by, labels in ((STIMULI, "participant", train.stimuli), (PEOPLE, "stimulus", train.participants)):
            # One participant's, or one stimulus', predictions at a time: all of them together may not fit in memory.
            for label, group in cells.groupby(by, sort=True):
                common = np.mean(list(known.loc[known[by] == label, "image"]), axis=0)
                predicted = model.predict(_pairs(by, str(label), labels))
                found = _identify(group, by, labels, predicted, common)
                rows += [{"among": among, "method": method, **row} for row in found]
    return pd.DataFrame(rows)


def mean_cells(study: Study) -> pd.DataFrame:
    """Mean image of each participant's trials of each stimulus, in a column `image`; one row per cell."""
    images = study.mean_images()
    groups = study.trials.reset_index(drop=True).groupby(["participant", "stimulus"], sort=True).indices
    cells = pd.DataFrame(list(groups), columns=["participant", "stimulus"])
    return cells.assign(image=[images[rows].mean(0) for rows in groups.values()])


def _pairs(by: str, label: str, others: Sequence[str]) -> list[tuple[str, str]]:
    return [(label, other) if by == "participant" else (other, label) for other in others]


def _identify(
    cells: pd.DataFrame, by: str, labels: Sequence[str], predicted: np.ndarray, common: np.ndarray
) -> list[dict[str, str | float | int]]:
    other = "stimulus" if by == "participant" else "participant"
    rows: list[dict[str, str | float | int]] = []
    for cell in cells.to_dict("records"):
        nearer, first = identify(cell["image"], predicted, list(labels).index(cell[other]), common)
        named = {"participant": cell["participant"], "stimulus": cell["stimulus"]}
        rows.append({**named, "nearer": nearer, "first": first, "n_candidates": len(labels)})
    return rows
