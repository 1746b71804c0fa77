"""Make `report.html` from a fitted model."""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure

from ntfa.analyses.labels import label_table
from ntfa.models.base import TopographicModel
from ntfa.models.saving import summary, versions
from ntfa.plots import COLOURS, plot_bound, plot_embeddings, plot_factors
from ntfa.study import Study


def write_report(
    model: TopographicModel, study: Study, path: Path, notes: Sequence[str] = (), command: Sequence[str] = ()
) -> None:
    """Write a report of a model and the study it was fitted to; `notes` go into the summary in plain words."""
    environment = Environment(loader=PackageLoader("ntfa", "report"), autoescape=True)
    page = environment.get_template("report.html").render(
        model=type(model).__name__,
        sentences=[*in_words(model), *notes],
        embeddings=_inline(embeddings_figure(model, study)) if hasattr(model, "participants_") else None,
        factors=_inline(_factors_figure(model)),
        bound=_inline(_bound_figure(model)),
        factor_rows=_factor_rows(model),
        parameters={**model.fitted_params, "seed": model.seed_},
        numbers=summary(model),
        versions=versions(),
        command=shlex.join(command),
    )
    path.write_text(page, encoding="utf-8")


def in_words(model: TopographicModel) -> list[str]:
    """Say what was fitted, to what, and whether it converged."""
    numbers = summary(model)
    ended = "converged" if numbers["converged"] else "stopped at the most steps allowed, before it converged,"
    return [
        f"{numbers['model']} with {numbers['n_factors']} factors was fitted to {numbers['n_trials']:,} trials of "
        f"{numbers['n_participants']:,} participants and {numbers['n_stimuli']:,} stimuli, "
        f"{numbers['n_voxels']:,} voxels.",
        f"The fit {ended} after {numbers['n_steps']:,} steps and {numbers['seconds']:.1f} s, at a bound of "
        f"{numbers['bound_per_datum']:.5f} nats a datum; a voxel's noise has a standard deviation of "
        f"{numbers['noise_sd']:.4g}.",
    ]


def embeddings_figure(model: TopographicModel, study: Study) -> Figure:
    """Participants and stimuli side by side, coloured by the first label that tells groups apart."""
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    axes = figure.subplots(1, 2)
    for ax, kind, table in zip(axes, ("participant", "stimulus"), ("participants_", "stimuli_"), strict=True):
        embeddings: pd.DataFrame = getattr(model, table)
        plot_embeddings(embeddings, _groups(study, kind), title=table.strip("_").capitalize(), ax=ax)
    return figure


def _groups(study: Study, kind: str) -> pd.Series | None:
    """Pick the label with fewest, but several, values; none if there are too many to tell apart by colour."""
    labels = label_table(study, kind)
    counts = labels.nunique()
    usable = counts[(counts > 1) & (counts < len(labels)) & (counts <= len(COLOURS))]
    return labels[usable.idxmin()] if len(usable) else None


def _factors_figure(model: TopographicModel) -> Figure:
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    plot_factors(model.factors_, model.coordinates_, axes=figure.subplots(1, 3))
    return figure


def _bound_figure(model: TopographicModel) -> Figure:
    figure = Figure(figsize=(7, 3), layout="constrained")
    plot_bound(model.history_, model.n_data_, ax=figure.subplots())
    return figure


def _factor_rows(model: TopographicModel) -> list[Any]:
    mean = model.factors_.groupby("factor")[["x", "y", "z", "width"]].mean().reset_index()
    return mean.to_dict("records")


def _inline(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
