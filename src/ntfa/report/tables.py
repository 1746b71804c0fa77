"""Tables of the report as files beside it, for those who want numbers rather than a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ntfa.estimators.base import TopographicModel
from ntfa.estimators.saving import summary
from ntfa.estimators.settings import plain
from ntfa.report.coverage import coverage_rows
from ntfa.report.expected import Expected
from ntfa.report.pairs import pair_table
from ntfa.report.regions import factor_regions
from ntfa.study.atlas import Atlas

TABLES_FOLDER = "tables"
# Labels beyond which there is no table of all pairs, which would be larger than all else.
MOST_LABELS = 1000


def factor_table(expected: Expected, atlas: Atlas | None = None) -> pd.DataFrame:
    """Factors averaged over participants: places and widths, mm, mean weights where the model has them, and regions."""
    table = pd.DataFrame(np.round(expected.mean_factors, 1), columns=["x (mm)", "y (mm)", "z (mm)", "width (mm)"])
    table.insert(0, "factor", range(1, len(table) + 1))
    if expected.weights is not None:
        table["mean weight"] = [float(f"{value:.3g}") for value in expected.weights.mean((0, 1))]
    regions = factor_regions(expected, atlas)
    if regions is not None:
        table.insert(1, "region", regions)
    return table


def write_tables(folder: Path, model: TopographicModel, expected: Expected, atlas: Atlas | None = None) -> None:
    """Write every table of the report that is no file of its own already."""
    folder.mkdir(exist_ok=True)
    tables = {"factors": factor_table(expected, atlas), "settings": settings_table(model)}
    if model._require_fitted().coverage:
        tables["coverage"] = coverage_rows(model)
    for name in ("participants", "stimuli"):
        embeddings = getattr(model, f"{name}_", None)
        if embeddings is not None and 1 < len(embeddings) <= MOST_LABELS:
            tables[f"pairs_{name}"] = pair_table(embeddings)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.tsv", sep="\t", index=False, na_rep="n/a", float_format="%.6g")


def settings_table(model: TopographicModel) -> pd.DataFrame:
    """Settings of the fit and what it came to, one row per name."""
    settings = {name: plain(value) for name, value in model.fitted_params.items()}
    rows = {**settings, "seed": model.seed_, **summary(model)}
    return pd.DataFrame({"name": list(rows), "value": [str(value) for value in rows.values()]})


def without_home(text: str) -> str:
    """Write somebody's home folder as shells do: whose it is is nobody's business who reads a report."""
    home = str(Path.home())
    return text.replace(f"{home}/", "~/") if len(home) > 1 else text
