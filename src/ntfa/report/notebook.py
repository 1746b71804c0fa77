"""What a model shows of itself in a notebook: a small summary, and embeddings to point at."""

from __future__ import annotations

from typing import Any

from ntfa.analyses.labels import label_table
from ntfa.contract import StudyEstimator
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.saving import summary
from ntfa.plots.embeddings import TABLES, embedding_table_of
from ntfa.report.data import as_block, page_data
from ntfa.report.evidence import Evidence
from ntfa.report.expected import expected_of
from ntfa.report.page import Report, fill, render
from ntfa.report.regions import as_atlas
from ntfa.report.verdict import verdict
from ntfa.study import Study

# Findings that take recorded data, which a model alone does not have.
OF_DATA = ("Unseen pairs", "Data")
# Until its script has found how high it is, the frame of a figure has room for one picture.
FRAME_HEIGHT = 620


def summary_card(model: TopographicModel) -> str:
    """Return a small piece of HTML: what is set, and of a fitted model to what it was fitted and what came out."""
    fitted = model.__sklearn_is_fitted__()
    return fill(
        "card.html",
        model=type(model).__name__,
        fitted=fitted,
        numbers=summary(model) if fitted else {},
        findings=[one for one in verdict(model, Evidence(), None) if one.about not in OF_DATA] if fitted else [],
        settings=_settings(model, model.fitted_params if fitted else model.get_params()),
        has_embeddings=hasattr(model, "participants_"),
    )


def _settings(model: StudyEstimator, params: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Name, value, and whether it was set to something else than the default."""
    defaults = type(model)().get_params()
    return [(name, repr(value), value != defaults.get(name)) for name, value in params.items()]


def show_embeddings(
    model: TopographicModel, study: Study | None = None, kind: str | None = None, atlas: Any = None
) -> Report:
    """Make a page of embeddings alone, as the report shows them.

    Parameters
    ----------
    study : Study, optional
        Gives labels to colour by.
    kind : {"participant", "stimulus"}, optional
        Which embeddings to show; by default both.
    atlas : Atlas, image, or pair of image and labels, optional
        Names the regions of factors.
    """
    kinds = list(TABLES) if kind is None else [kind]
    for one in kinds:
        embedding_table_of(model, one)
    labels = {} if study is None else {one: label_table(study, one) for one in TABLES}
    data = page_data(model, expected_of(model), labels, None, as_atlas(atlas))
    page = render("embeddings.html", title=f"{type(model).__name__} embeddings", kinds=kinds, data=as_block(data))
    return Report(page.html, height=FRAME_HEIGHT)
