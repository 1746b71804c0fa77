"""Which colour and mark each row of a table gets, by group or by value, and how a reader is told."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from matplotlib.lines import Line2D

from ntfa.errors import ModelError
from ntfa.plots.style import COLOURS, MISSING, SEQUENTIAL, shown
from ntfa.study import Study

CROSSES = ("+", "x", "o")
DOTS = ("o", "^", "s")
MOST_GROUPS = len(COLOURS) * len(CROSSES)


@dataclass(frozen=True)
class Key:
    """A group's entry in the legend."""

    name: str
    colour: str
    mark: int = 0


IN_THE_FIT = Key("in the fit", MISSING)
"""Of those that newcomers were added to."""


@dataclass(frozen=True)
class Colouring:
    """A key for every row, and what explains them: a legend of keys, a colour scale, or a note."""

    rows: list[Key]
    keys: list[Key]
    scale: ScalarMappable | None = None
    name: str = ""
    note: str = ""


def colouring(index: pd.Index, groups: pd.Series | None) -> Colouring:
    """Colour rows by groups, or by value where there are many different numbers; grey where nothing is known."""
    plain = Key("", COLOURS[0])
    if groups is None:
        return Colouring([plain] * len(index), [])
    if not groups.index.is_unique:
        raise ModelError("groups has a label twice: give one group or value for each label")
    if not groups.index.isin(index).any():
        raise ModelError(
            f"groups is indexed by {shown(list(groups.index[:3]), 60)}, none of which is an embedding's label"
        )
    groups = groups.reindex(index)
    if is_continuous(groups):
        return _by_value(groups)
    present = _in_order(groups)
    if len(present) > MOST_GROUPS:
        return Colouring([plain] * len(index), [], note=f"{len(present)} groups, too many to tell apart by colour")
    keys = {group: Key(shown(group), COLOURS[i % 8], i // 8) for i, group in enumerate(present)}
    missing = Key("missing", MISSING)
    rows = [missing if pd.isna(group) else keys[group] for group in groups]
    return Colouring(rows, [*keys.values(), *([missing] if groups.isna().any() else [])], name=_name(groups))


def by_standing(embeddings: pd.DataFrame) -> Colouring:
    """Colour who was added to a fit, apart from those outside of what it has seen; the fit's own are grey."""
    sessions = embeddings.attrs.get("session_of", {})
    fit, new, again = IN_THE_FIT, Key("added", COLOURS[1]), Key("another session", COLOURS[0])
    outside = Key("added, outside", COLOURS[3], 1)
    rows = [
        fit if not added else outside if is_outside else again if label in sessions else new
        for label, added, is_outside in zip(embeddings.index, embeddings["added"], embeddings["outside"], strict=True)
    ]
    return Colouring(rows, [key for key in (fit, new, again, outside) if key in rows])


def is_continuous(values: pd.Series) -> bool:
    """Whether values are numbers on a scale: fractions, or more of them than there are colours."""
    if isinstance(values.dtype, pd.CategoricalDtype) or not pd.api.types.is_numeric_dtype(values):
        return False
    known = values.dropna()
    if pd.api.types.is_bool_dtype(values) or known.empty:
        return False
    whole = bool((known.astype(float) % 1 == 0).all())
    return known.nunique() > len(COLOURS) or not whole


def label_column(study: Study, kind: str, column: str) -> pd.Series:
    """One column of the trials table by participant or stimulus; numbers that differ between trials are averaged."""
    if column not in study.trials:
        labels = ", ".join(map(repr, study.trials.columns))
        raise ModelError(f"the study's trials have no column {column!r}; they have {labels}")
    grouped = study.trials.groupby(kind)[column]
    if (grouped.nunique() <= 1).all():
        return grouped.first()
    numeric = pd.api.types.is_numeric_dtype(study.trials[column])
    if not numeric or pd.api.types.is_bool_dtype(study.trials[column]):
        raise ModelError(f"{column!r} differs between trials of one {kind}, so it cannot colour {kind} embeddings")
    return grouped.mean()


def marker(key: Key, point_estimates: bool) -> dict[str, object]:
    """Style of a group's mark, for `Axes.plot`: crosses, or dots for point estimates."""
    if point_estimates:
        return {"marker": DOTS[key.mark], "ms": 5, "mew": 0.0}
    return {"marker": CROSSES[key.mark], "ms": 8 - 2 * (key.mark > 0), "mew": 1.6, "fillstyle": "none"}


def explain(ax: Axes, coloured: Colouring, point_estimates: bool) -> None:
    """Add the legend or the colour scale."""
    if coloured.scale is not None:
        bar = ax.figure.colorbar(coloured.scale, ax=ax, shrink=0.7)
        bar.set_label(coloured.name, parse_math=False)
    elif coloured.keys:
        _legend(ax, coloured, point_estimates)


def _legend(ax: Axes, coloured: Colouring, point_estimates: bool) -> None:
    handles = [Line2D([], [], ls="", color=key.colour, **marker(key, point_estimates)) for key in coloured.keys]  # type: ignore[arg-type]
    # Beside the data if the figure makes room for it; matplotlib finds a place among them otherwise.
    beside = ax.figure.get_layout_engine() is not None
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {"loc": "best"}
    # Names are set afterwards: matplotlib would leave out those that begin with an underscore.
    legend = ax.legend(handles, ["name"] * len(handles), frameon=False, fontsize=8, title=coloured.name, **place)
    legend.get_title().set_parse_math(False)
    legend.get_title().set_fontsize(8)
    for text, key in zip(legend.get_texts(), coloured.keys, strict=True):
        text.set_parse_math(False)
        text.set_text(key.name)


def _by_value(values: pd.Series) -> Colouring:
    numbers = values.astype(float).to_numpy()
    finite = np.isfinite(numbers)
    scale = ScalarMappable(Normalize(numbers[finite].min(), numbers[finite].max()), SEQUENTIAL)
    rows = [
        Key("", to_hex(tuple(colour))) if known else Key("missing", MISSING)
        for colour, known in zip(scale.to_rgba(numbers), finite, strict=True)
    ]
    note = "" if finite.all() else f"grey: {int((~finite).sum())} missing"
    return Colouring(rows, [], scale, _name(values), note)


def _in_order(groups: pd.Series) -> list[object]:
    if isinstance(groups.dtype, pd.CategoricalDtype):
        return [group for group in groups.cat.categories if (groups == group).any()]
    present = groups.dropna().unique().tolist()
    if pd.api.types.is_numeric_dtype(groups):
        return sorted(present)
    return sorted(present, key=natural)


def natural(label: object) -> list[tuple[int, str]]:
    """Sort key under which "group 2" comes before "group 10"."""
    parts = re.split(r"([0-9]+)", str(label))
    return [(int(part), "") if part.isdigit() and i % 2 else (-1, part) for i, part in enumerate(parts)]


def _name(groups: pd.Series) -> str:
    return "" if groups.name is None else shown(groups.name)
