"""The report's static figures: they stay when there is no script and on paper, and can be cut out."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ntfa.estimators.base import TopographicModel
from ntfa.plots import (
    COLOURS,
    plot_bound,
    plot_choice,
    plot_coverage,
    plot_embeddings,
    plot_factors,
    plot_frames,
    plot_noise,
    plot_prediction,
)
from ntfa.plots.brains import space_of
from ntfa.plots.frames import most_spoiled
from ntfa.study import Study
from ntfa.study.motion import COLUMN, HIGH_MM

DPI, FINE_DPI = 110, 150
# Exponentials that the map of residuals may take: some ten seconds.
MOST_WORK = 1.5e9
KINDS = {"participant": ("participants_", "Participants"), "stimulus": ("stimuli_", "Stimuli")}


@dataclass(frozen=True)
class Picture:
    """A figure as the page holds it.

    name : its file's name, without the suffix
    section : where it belongs: "embeddings", "factors", "coverage", "convergence", "predictions" or "quality"
    svg : the same to scale and to edit, if it was drawn here
    """

    name: str
    section: str
    caption: str
    png: bytes
    svg: bytes | None = None

    @classmethod
    def of(cls, figure: Figure, name: str, section: str, caption: str, dpi: int = DPI) -> Picture:
        """Draw a figure, as pixels and as vectors."""
        png = as_png(figure, dpi)
        # Where axes go is known now, and takes a third of the time of drawing them.
        figure.set_layout_engine("none")
        return cls(name, section, caption, png, as_svg(figure))

    @property
    def source(self) -> str:
        """The image as a data URI."""
        return inline(self.png)


def inline(png: bytes) -> str:
    """Turn a PNG into a data URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def model_pictures(model: TopographicModel, labels: Mapping[str, pd.DataFrame]) -> list[Picture]:
    """Draw what the model alone tells: embeddings, factors, the bound."""
    pictures = []
    if hasattr(model, "participants_"):
        text = "Crosses mark posterior means; ellipses hold 50% and 95% of the posterior."
        pictures.append(Picture.of(embeddings_figure(model, labels), "embeddings", "embeddings", text, FINE_DPI))
    with _new_figure((9, 3.2)) as figure:
        plot_factors(model, figure=figure)
        text = "Factors averaged over participants: circles at the radius where a factor has fallen to 1/e of its peak."
        if space_of(model).greyordinates is not None:
            text = f"Factors averaged over participants, as far as they are above 1/e of their peak. {drawn_on(model)}"
        pictures.append(Picture.of(figure, "factors", "factors", text))
    with _new_figure((7, 3), layout="constrained") as figure:
        plot_bound(model, ax=figure.subplots())
        text = "The bound over the fit; it should be flat at the end."
        pictures.append(Picture.of(figure, "bound", "convergence", text))
    if model._require_fitted().coverage:
        with _new_figure((8.5, 2.65)) as figure:
            plot_coverage(model, figure=figure)
            text = "Share of the participants who lack a voxel."
            pictures.append(Picture.of(figure, "coverage", "coverage", text))
    if hasattr(model, "tried_"):
        with _new_figure((7, 3), layout="constrained") as figure:
            plot_choice(model, ax=figure.subplots())
            text = "Error of images of pairs left out of a reduced version of the study, by number of factors."
            pictures.append(Picture.of(figure, "n-factors", "convergence", text))
    frames = getattr(model, "frames_", None)
    if frames is not None and (frames["weight"] < 1).any():
        with _new_figure((9, 0.7 + 1.25 * len(most_spoiled(frames))), layout="constrained") as figure:
            plot_frames(model, figure=figure)
            text = "How much each frame counted in the fit, in participants with the most spoiled frames (marked)."
            if COLUMN in frames:
                text += f" The line is framewise displacement, dotted at {HIGH_MM:g} mm."
            pictures.append(Picture.of(figure, "frames", "quality", text))
    return pictures


def drawn_on(model: TopographicModel) -> str:
    """Say on which surfaces pictures of cortex are drawn."""
    space = space_of(model).greyordinates
    if space is None or not space.n_vertices:
        return ""
    smoothed = any(space.surfaces.by_side[side].inflated is None for side in space.columns)
    what = "the midthickness surface, smoothed" if smoothed else "inflated surfaces"
    return f"Drawn on {what}: each hemisphere from outside and from the midline; sulci are dark."


def data_pictures(
    model: TopographicModel, study: Study | None, shown: Study | None, pairs: Sequence[tuple[str, str]]
) -> list[Picture]:
    """Draw what needs recorded data: a few predictions beside them, and the residuals.

    Parameters
    ----------
    study : Study, optional
        What the model was fitted to, for the residuals.
    shown : Study, optional
        Where `pairs` of participant and stimulus were recorded.
    """
    pictures = []
    for i, (participant, stimulus) in enumerate(pairs if shown is not None else ()):
        assert shown is not None
        with _new_figure((8.5, 5.5)) as figure:
            plot_prediction(model, shown, participant, stimulus, figure=figure)
            caption = f"{participant}, {stimulus}: recorded (above) and predicted."
            pictures.append(Picture.of(figure, f"prediction-{i + 1}", "predictions", caption))
    if study is not None and residuals_are_quick(model, study):
        with _new_figure((8.5, 2.65)) as figure:
            plot_noise(model, study, figure=figure)
            caption = "What the model leaves unexplained: residual standard deviation of every voxel."
            pictures.append(Picture.of(figure, "noise", "predictions", caption))
    return pictures


def residuals_are_quick(model: TopographicModel, study: Study) -> bool:
    """Whether a map of the residuals takes seconds rather than minutes."""
    known = not (set(study.participants) - set(model._require_fitted().labels.participants))
    return known and study.n_trials * study.n_voxels * model._fitted.n_factors <= MOST_WORK


def embeddings_figure(model: TopographicModel, labels: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw participants and stimuli side by side, coloured by the first label that tells groups apart.

    Parameters
    ----------
    labels : tables by "participant" and "stimulus", one row per label
    """
    tables = {kind: getattr(model, attribute) for kind, (attribute, _) in KINDS.items()}
    figure = Figure(figsize=(11, _height(tables)), layout="constrained")
    for ax, (kind, table) in zip(figure.subplots(1, 2), tables.items(), strict=True):
        # Who was added, if anybody was, is what such a picture is looked at for.
        groups = None if "added" in table and table["added"].any() else best_label(labels.get(kind), table.index)
        plot_embeddings(
            table.drop(columns=["added", "outside"], errors="ignore") if groups is not None else table,
            groups,
            title=KINDS[kind][1],
            ax=ax,
        )
    return figure


def _height(tables: Mapping[str, pd.DataFrame]) -> float:
    """One-dimensional embeddings are a list, and need a line each."""
    longest = max(len(table) for table in tables.values())
    ranked = "z2" not in tables["participant"]
    return float(np.clip(0.16 * longest + 1.2, 3.0, 16.0)) if ranked else 5.5 if longest <= 100 else 7.0


def best_label(labels: pd.DataFrame | None, index: pd.Index) -> pd.Series | None:
    """Pick the label with fewest, but several, values; none if there are too many to tell apart by colour."""
    if labels is None or not len(labels.columns):
        return None
    labels = labels.reindex(index)
    counts = labels.nunique()
    usable = counts[(counts > 1) & (counts < len(labels)) & (counts <= len(COLOURS))]
    return labels[usable.idxmin()] if len(usable) else None


def as_png(figure: Figure, dpi: int = DPI) -> bytes:
    """Draw a figure as a PNG, at a size for the screen."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    return drawn.getvalue()


def as_svg(figure: Figure) -> bytes:
    """Draw a figure as an SVG, with letters that can be edited and nothing that differs from one run to the next."""
    drawn = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ntfa"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


@contextmanager
def _new_figure(size: tuple[float, float], layout: str | None = None) -> Iterator[Figure]:
    # nilearn draws on pyplot's figures only.
    figure = plt.figure(figsize=size, layout=layout)
    try:
        yield figure
    finally:
        plt.close(figure)
