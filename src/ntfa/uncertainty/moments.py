"""Means and covariances of embeddings, out of the columns of their table."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ntfa.errors import ModelError

Floats = NDArray[np.float64]


def moments(embeddings: pd.DataFrame) -> tuple[Floats, Floats | None]:
    """Posterior means [n, D] and covariances [n, D, D] of `z1, z2, ..., z1_sd, ..., z1_z2_cov, ...`.

    Covariances are None for point estimates, which have no `_sd`; those not in the table are zero.
    """
    columns = sorted((c for c in embeddings if re.fullmatch(r"z\d+", str(c))), key=lambda c: int(str(c)[1:]))
    if not columns:
        raise ModelError("the embeddings have no columns z1, z2, ...; use participants_ or stimuli_ of a fitted model")
    means = embeddings[columns].to_numpy(dtype=np.float64)
    if f"{columns[0]}_sd" not in embeddings:
        return means, None
    covariances = np.zeros((*means.shape, means.shape[1]))
    for i, one in enumerate(columns):
        covariances[:, i, i] = embeddings[f"{one}_sd"].to_numpy(dtype=np.float64) ** 2
        for j, other in enumerate(columns[:i]):
            if f"{other}_{one}_cov" in embeddings:
                covariances[:, i, j] = covariances[:, j, i] = embeddings[f"{other}_{one}_cov"]
    return means, covariances
