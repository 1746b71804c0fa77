"""Principal components of a few long rows, through the small matrix of their inner products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = Sequence[NDArray[np.floating]]

CHUNK_VALUES = 2**22

# Inner products are exact to about 1e-16 of the largest: a component below this share of all variance is rounding.
SMALLEST_SHARE = 1e-12


@dataclass(frozen=True, eq=False)
class Principal:
    """Principal components of n rows.

    Attributes
    ----------
    scores : array of shape (n, n_components)
        Where each row lies along each component; 0 along components that n rows cannot have.
    explained : array of shape (n_components,)
        Share of the rows' variance along each component.
    components : array of shape (n_components, length of a row)
        Unit vectors, or 0 where there is no such component.
    """

    scores: Array
    explained: Array
    components: Array


def principal_components(rows: Rows, n_components: int) -> Principal:
    """Find the first principal components of rows: arrays of one shape, seen as vectors.

    Needs memory for n x n inner products and the components, whatever the length of the rows. The sign of a
    component is such that its largest entry in absolute value is positive.
    """
    gram = np.zeros((len(rows), len(rows)))
    for part in _centred_parts(rows):
        gram += part @ part.T
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1][:n_components], vectors[:, ::-1][:, :n_components]
    total = float(np.trace(gram))
    real = values > SMALLEST_SHARE * total
    sizes = np.sqrt(np.where(real, values, 0.0))
    combine = vectors / np.where(real, sizes, np.inf)
    components = np.concatenate([combine.T @ part for part in _centred_parts(rows)], axis=1)
    largest = np.take_along_axis(components, np.abs(components).argmax(1)[:, None], axis=1)
    signs = np.where(largest < 0, -1.0, 1.0)
    explained = np.where(real, values, 0.0) / (total or 1.0)
    missing = (0, n_components - len(values))
    return Principal(
        np.pad(signs.T * vectors * sizes, ((0, 0), missing)),
        np.pad(explained, missing),
        np.pad(signs * components, (missing, (0, 0))),
    )


def _centred_parts(rows: Rows) -> Iterator[Array]:
    """Go along the rows in parts of some million values, less their mean over the rows: [n, a part's length]."""
    flat = [np.reshape(row, -1) for row in rows]
    step = max(1, CHUNK_VALUES // len(flat))
    for start in range(0, len(flat[0]), step):
        part = np.stack([row[start : start + step] for row in flat]).astype(np.float64)
        yield part - part.mean(0)


def score_table(scores: Array, labels: Sequence[str], name: str) -> pd.DataFrame:
    """Scores as a table, one row per label: `z1, z2, ...`."""
    return pd.DataFrame(scores, index=pd.Index(list(labels), name=name), columns=component_names(scores.shape[1]))


def explained_table(**found: Principal) -> pd.DataFrame:
    """Shares of variance, a row a component, a column for whatever was decomposed."""
    shares = {name: one.explained for name, one in found.items()}
    table = pd.DataFrame(shares)
    return table.set_axis(pd.Index(component_names(len(table)), name="component"))


def component_names(n_components: int) -> list[str]:
    """Return `z1, z2, ...`."""
    return [f"z{i + 1}" for i in range(n_components)]
