"""Predicted images next to what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ntfa.analyses.images import mean_image
from ntfa.estimators.base import TopographicModel
from ntfa.plots.brains import Space, space_of
from ntfa.plots.maps import draw_maps
from ntfa.plots.style import DIVERGING, shown
from ntfa.study import Study

# Values beyond this percentile of the absolute values have the strongest colour, so that a few do not pale the rest.
STRONGEST = 99.5


def plot_prediction(
    model: TopographicModel,
    study: Study,
    participant: str,
    stimulus: str,
    *,
    view: str = "glass",
    figure: Figure | None = None,
) -> Figure:
    """Draw the posterior-predictive mean image of a participant and a stimulus under the recorded one, alike in colour.

    Parameters
    ----------
    study : Study
        Where the recorded image is from: the mean of all trial frames of the two, best held out from the fit.
    participant, stimulus : label
    view : {"glass", "slices"}
        On a glass brain, or on slices where the two are strongest.
    figure : Figure, optional
        An empty figure to draw in.
    """
    trials = study.select(participants=participant, stimuli=stimulus)
    observed = mean_image(trials)
    predicted = model.predict([(participant, stimulus)])[0]
    images = {f"observed (mean of {trials.n_trial_frames} frames)": observed, "predicted": predicted}
    title = f"{shown(participant)}, {shown(stimulus)}"
    return draw_signals(images, space_of(study), title=title, view=view, figure=figure)


def draw_signals(
    images: Mapping[str, Any], space: Space, *, title: str, view: str = "glass", figure: Figure | None = None
) -> Figure:
    """Draw images [V] of the signal under one another, alike in colour; nothing where an image is NaN."""
    images = {name: np.nan_to_num(values) for name, values in images.items()}
    limit = float(np.percentile(np.abs(list(images.values())), STRONGEST)) or 1.0
    colours: dict[str, Any] = {"scale": (-limit, limit), "cmap": DIVERGING, "unit": "signal"}
    return draw_maps(images, space, view=view, title=title, figure=figure, **colours)
