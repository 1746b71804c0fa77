"""Bars that compare methods: decoding and held-out likelihood, with what is uncertain about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ntfa.errors import ModelError
from ntfa.plots.colouring import natural
from ntfa.plots.style import colours, own_or_new, shown

REACH = 1.96
# Width of a letter of a tick's label, about.
LETTER_INCHES = 0.068
NULLS = ("null", "zero", "mean")
HATCHES = ("", "//", "..", "xx")


def plot_auc(table: pd.DataFrame, *, chance: float = 0.5, title: str = "", ax: Axes | None = None) -> Axes:
    """Draw areas under the curve as bars: a cluster a category, a bar a set of features, with confidence intervals.

    Parameters
    ----------
    table : DataFrame
        `features, category, auc`, and the interval as `ci_low, ci_high` (or `low, high`); a row a bar.
    chance : float
        Where to draw the line of chance.
    """
    _require(table, ["features", "category", "auc"], "plot_auc")
    ends = ("ci_low", "ci_high") if "ci_low" in table else ("low", "high")
    _require(table, ends, "plot_auc")
    _require_once(table, ["features", "category"])
    kinds, clusters = _present(table["features"]), sorted(set(table["category"]), key=natural)
    ax = own_or_new(ax, (min(max(1.6 + 0.28 * len(kinds) * len(clusters), 4.5), 14), 3.6))
    width = 0.8 / len(kinds)
    for i, (kind, colour) in enumerate(zip(kinds, colours(len(kinds)), strict=True)):
        rows = table[table["features"] == kind].set_index("category").reindex(clusters)
        heights = rows["auc"].to_numpy(dtype=np.float64)
        reach = np.abs(rows[list(ends)].to_numpy(dtype=np.float64).T - heights)
        places = np.arange(len(clusters)) + (i - (len(kinds) - 1) / 2) * width
        _bars(ax, places, heights, reach, width, colour, HATCHES[i // 8 % len(HATCHES)], kind)
    ax.axhline(chance, color="0.3", lw=0.9, ls="--", zorder=3)
    lowest = np.nanmin(table[ends[0]].fillna(table["auc"]).to_numpy(dtype=np.float64))
    ax.set_ylim(min(0.4, chance - 0.1, lowest - 0.02) if lowest >= 0 else lowest, 1.02)
    ax.set_xlim(-0.6, len(clusters) - 0.4)
    _name_ticks(ax, clusters)
    ax.set(ylabel="area under the curve")
    ax.set_title(title, parse_math=False)
    _legend(ax, kinds)
    return ax


def plot_log_predictive(
    table: pd.DataFrame,
    *,
    n_data: int | None = None,
    reference: str | None = None,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw log predictive densities of held-out data as differences from a reference, with their standard errors.

    Parameters
    ----------
    table : DataFrame
        `method, log_predictive, standard_error` (nats), and `estimator` if there are several; a row a bar.
        Whiskers are 1.96 standard errors long to either side.
    n_data : int, optional
        Number of held-out values, to show nats per observation; by default from the table's column `n_data` or
        `per_datum`; without either, total nats are shown.
    reference : method, optional
        What to subtract, by the same estimator if the table has it; by default a method called null, zero or mean, or
        else the best by the first estimator.
    """
    _require(table, ["method", "log_predictive", "standard_error"], "plot_log_predictive")
    table = table.assign(estimator=table.get("estimator", ""))
    _require_once(table, ["method", "estimator"])
    table, per_datum = _scaled(table, n_data)
    methods, kinds = _present(table["method"]), _present(table["estimator"])
    zero = _reference(table, reference)
    ax = own_or_new(ax, (min(max(2 + 0.45 * len(table), 4.5), 12), 3.6))
    width = 0.8 / int(table.groupby("method", sort=False).size().max())
    for kind, colour in zip(kinds, colours(len(kinds)), strict=True):
        rows = table[table["estimator"] == kind]
        heights = rows["log_predictive"].to_numpy(dtype=np.float64) - _value(table, zero, kind)
        reach = REACH * rows["standard_error"].to_numpy(dtype=np.float64)
        _bars(ax, _places(table, rows, methods, width), heights, reach, width, colour, "", kind)
    ax.axhline(0, color="0.3", lw=0.8, zorder=3)
    ax.set_xlim(-0.6, len(methods) - 0.4)
    _name_ticks(ax, methods)
    ax.set_ylabel(
        f"log predictive over {shown(zero)}\n(nats{' per observation' if per_datum else ''})", parse_math=False
    )
    ax.set_title(title, parse_math=False)
    if len(kinds) > 1:
        _legend(ax, kinds)
    return ax


def _bars(ax: Axes, places: Any, heights: Any, reach: Any, width: float, colour: str, hatch: str, name: Any) -> None:
    ax.bar(places, heights, 0.92 * width, color=colour, alpha=0.85, hatch=hatch, edgecolor="white", lw=0, label="bar")
    known = np.isfinite(heights) & np.isfinite(np.atleast_2d(reach)).all(0)
    if known.any():
        # Without a confidence interval there is a bar and no whisker.
        ax.errorbar(
            places[known],
            heights[known],
            np.asarray(reach)[..., known],
            fmt="none",
            ecolor="0.15",
            elinewidth=1,
            capsize=2,
        )


def _scaled(table: pd.DataFrame, n_data: int | None) -> tuple[pd.DataFrame, bool]:
    """Divide by the number of data, where it is known."""
    count: Any = n_data if n_data is not None else table.get("n_data")
    if count is None and "per_datum" in table:
        count = table["log_predictive"] / table["per_datum"]
    if count is None:
        return table, False
    columns = ["log_predictive", "standard_error"]
    return table.assign(**{column: table[column] / count for column in columns}), True


def _reference(table: pd.DataFrame, wanted: str | None) -> Any:
    methods = _present(table["method"])
    if wanted is not None:
        if wanted not in methods:
            raise ModelError(
                f"reference={wanted!r} is not a method of the table; it has {', '.join(map(str, methods))}"
            )
        return wanted
    nulls = [method for method in methods if str(method).lower() in NULLS]
    first = table[table["estimator"] == table["estimator"].iloc[0]]
    best = int(np.nanargmax(first["log_predictive"].to_numpy(dtype=np.float64)))
    return nulls[0] if nulls else first["method"].iloc[best]


def _value(table: pd.DataFrame, method: Any, estimator: Any) -> float:
    """Log predictive of a method by an estimator; by another one if there is none."""
    own = table[table["method"] == method].set_index("estimator")["log_predictive"]
    return float(own[estimator] if estimator in own else own.iloc[0])


def _places(table: pd.DataFrame, rows: pd.DataFrame, methods: list[Any], width: float) -> np.ndarray:
    """Where the bars of some rows are: those of one method side by side, around its tick."""
    within = table.groupby("method", sort=False).cumcount().to_numpy()
    of_method = table.groupby("method", sort=False)["method"].transform("size").to_numpy()
    ticks = np.array([methods.index(method) for method in table["method"]])
    chosen = (table["estimator"] == rows["estimator"].iloc[0]).to_numpy()
    places: np.ndarray = ticks + (within - (of_method - 1) / 2) * width
    return places[chosen]


def _present(column: pd.Series) -> list[Any]:
    return list(dict.fromkeys(column))


def _name_ticks(ax: Axes, names: Sequence[Any]) -> None:
    texts = [shown(name) for name in names]
    slot = ax.get_window_extent().width / ax.figure.dpi / len(texts)
    crowded = LETTER_INCHES * max(map(len, texts)) > 0.95 * slot
    ax.set_xticks(
        range(len(texts)), texts, rotation=40 if crowded else 0, ha="right" if crowded else "center", fontsize=8
    )
    for label in ax.get_xticklabels():
        label.set_parse_math(False)


def _legend(ax: Axes, names: Sequence[Any]) -> None:
    beside = ax.figure.get_layout_engine() is not None
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {"loc": "best"}
    legend = ax.legend(frameon=False, fontsize=8, **place)
    # Names are set afterwards: matplotlib would leave out those that begin with an underscore.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(shown(name))


def _require(table: pd.DataFrame, columns: Sequence[str], function: str) -> None:
    missing = [column for column in columns if column not in table]
    if missing:
        raise ModelError(f"{function} needs a table with columns {', '.join(columns)}; it has no {', '.join(missing)}")
    if table.empty:
        raise ModelError(f"{function} was given a table without rows")


def _require_once(table: pd.DataFrame, columns: list[str]) -> None:
    twice = table[table.duplicated(columns)]
    if len(twice):
        which = ", ".join(f"{column} {twice.iloc[0][column]!r}" for column in columns)
        raise ModelError(f"the table has two rows of {which}: average them, or choose some, first")
