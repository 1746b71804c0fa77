"""Pictures of a fitted model; every function draws where it is told, or makes a figure, and returns what it drew on."""

from ntfa.plots.bars import plot_auc, plot_log_predictive
from ntfa.plots.bound import plot_bound
from ntfa.plots.choice import plot_choice, plot_tried
from ntfa.plots.connectivity import plot_connectivity, plot_connectome
from ntfa.plots.contrasts import plot_contrast, plot_contrast_factors
from ntfa.plots.coverage import plot_coverage
from ntfa.plots.embeddings import plot_embeddings
from ntfa.plots.factors import plot_factors
from ntfa.plots.frames import plot_frames
from ntfa.plots.images import plot_prediction
from ntfa.plots.intervals import plot_intervals
from ntfa.plots.noise import plot_noise
from ntfa.plots.style import COLOURS
from ntfa.plots.traits import plot_trait
from ntfa.plots.weights import plot_weights

__all__ = [
    "COLOURS",
    "plot_auc",
    "plot_bound",
    "plot_choice",
    "plot_connectivity",
    "plot_connectome",
    "plot_contrast",
    "plot_contrast_factors",
    "plot_coverage",
    "plot_embeddings",
    "plot_factors",
    "plot_frames",
    "plot_intervals",
    "plot_log_predictive",
    "plot_noise",
    "plot_prediction",
    "plot_trait",
    "plot_tried",
    "plot_weights",
]
