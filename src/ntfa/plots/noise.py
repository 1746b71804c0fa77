"""Where in the brain a fitted model leaves most unexplained."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ntfa.analyses.residuals import residual_sd
from ntfa.estimators.base import TopographicModel
from ntfa.plots.brains import space_of
from ntfa.plots.maps import draw_maps
from ntfa.plots.style import SEQUENTIAL
from ntfa.study import Study


def plot_noise(model: TopographicModel, study: Study, *, view: str = "slices", figure: Figure | None = None) -> Figure:
    """Draw the residual standard deviation of every voxel (`ntfa.analyses.residuals.residual_sd`).

    Parameters
    ----------
    view : {"slices", "glass"}
        On slices through the voxel with the largest, or the largest seen through a glass brain.
    figure : Figure, optional
        An empty figure to draw in.
    """
    sd = residual_sd(model, study)
    low, high = np.percentile(sd, [1, 99])
    if high - low < 1e-6 * high or high == 0:
        low, high = 0.0, float(high) or 1.0
    name = f"residual sd of a voxel (the model's noise: {model.noise_:.3g})"
    return draw_maps(
        {name: sd},
        space_of(study),
        view=view,
        scale=(float(low), float(high)),
        cmap=SEQUENTIAL,
        unit="sd",
        figure=figure,
    )
