"""Predicted images next to what was recorded."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ntfa.estimators.base import TopographicModel
from ntfa.plots.brains import space_of
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
    lengths = (trials.trials["stop"] - trials.trials["start"]).to_numpy(dtype=np.float64)
    observed = lengths / lengths.sum() @ trials.mean_images()
    predicted = model.predict([(participant, stimulus)])[0]
    limit = float(np.percentile(np.abs([observed, predicted]), STRONGEST)) or 1.0
    return draw_maps(
        {f"observed (mean of {trials.n_trial_frames} frames)": observed, "predicted": predicted},
        space_of(study),
        view=view,
        scale=(-limit, limit),
        cmap=DIVERGING,
        unit="signal",
        title=f"{shown(participant)}, {shown(stimulus)}",
        figure=figure,
    )
