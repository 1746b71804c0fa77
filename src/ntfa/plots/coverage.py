"""Where in the brain participants lack data."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ntfa.errors import StudyError
from ntfa.estimators.base import TopographicModel
from ntfa.plots.brains import space_of
from ntfa.plots.maps import draw_maps
from ntfa.plots.style import SEQUENTIAL
from ntfa.study import Study
from ntfa.study.coverage import shares


def plot_coverage(source: Study | TopographicModel, *, view: str = "glass", figure: Figure | None = None) -> Figure:
    """Draw the share of the participants who lack each voxel.

    Parameters
    ----------
    source : Study or fitted model
    view : {"glass", "slices"}
        The largest share seen through a glass brain, or on slices through the voxel with the largest.
    figure : Figure, optional
        An empty figure to draw in.
    """
    if isinstance(source, Study):
        coverage, n_participants, n_voxels = source.coverage, len(source.participants), source.n_voxels
    else:
        fitted = source._require_fitted()
        coverage, n_participants = fitted.coverage, len(fitted.labels.participants)
        n_voxels = len(fitted.coordinates)
    if not coverage:
        raise StudyError("nobody lacks a voxel: there is no coverage to draw")
    lacking = 100 * (1 - shares(coverage, n_participants, n_voxels))
    return draw_maps(
        {"participants who lack a voxel (%)": lacking},
        space_of(source),
        view=view,
        scale=(0.0, float(np.ceil(lacking.max()))),
        cmap=SEQUENTIAL,
        unit="%",
        figure=figure,
    )
