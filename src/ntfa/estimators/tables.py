"""Posteriors as tables, with the labels of the study, in mm and in units of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations

import pandas as pd
import torch
from torch import Tensor

from ntfa.fitting.training import History
from ntfa.inference.cells import Units
from ntfa.inference.normal import NormalPosterior


@torch.no_grad()
def embedding_table(
    posterior: NormalPosterior, labels: Sequence[str], name: str, covariances: Tensor | None = None
) -> pd.DataFrame:
    """Embeddings, one row per label: `z1, z2, ..., z1_sd, ...`, and `z1_z2_cov, ...` of covariances [n, D, D]."""
    mean, sd = posterior.normal
    if covariances is not None:
        sd = covariances.diagonal(dim1=-2, dim2=-1).sqrt()
    columns = [f"z{i + 1}" for i in range(mean.shape[1])]
    table = dict(zip(columns, mean.T.cpu().numpy(), strict=True))
    table |= zip([f"{column}_sd" for column in columns], sd.T.cpu().numpy(), strict=True)
    for i, j in combinations(range(len(columns) if covariances is not None else 0), 2):
        assert covariances is not None
        table[f"{columns[i]}_{columns[j]}_cov"] = covariances[:, i, j].cpu().numpy()
    return pd.DataFrame(table, index=pd.Index(list(labels), name=name))


@torch.no_grad()
def factor_table(centers: NormalPosterior, log_widths: NormalPosterior, units: Units) -> pd.DataFrame:
    """Factors [..., K] in mm: `factor, x, y, z, width` and their sds, last dimension fastest.

    The width is the radius at which a factor has fallen to 1/e, exp(rho / 2); its sd to first order.
    """
    place = units.millimetres(centers.mean).reshape(-1, 3).cpu().numpy()
    place_sd = (centers.normal.sd * units.length).reshape(-1, 3).cpu().numpy()
    width = (torch.exp(log_widths.mean / 2) * units.length).reshape(-1).cpu().numpy()
    width_sd = width * log_widths.normal.sd.reshape(-1).cpu().numpy() / 2
    n_factors = log_widths.mean.shape[-1]
    table = pd.DataFrame({"factor": [i % n_factors + 1 for i in range(len(width))]})
    for i, axis in enumerate("xyz"):
        table[axis] = place[:, i]
    table["width"] = width
    for i, axis in enumerate("xyz"):
        table[f"{axis}_sd"] = place_sd[:, i]
    return table.assign(width_sd=width_sd)


@torch.no_grad()
def replace_spread(factors: pd.DataFrame, centers_sd: Tensor, log_widths_sd: Tensor, units: Units) -> pd.DataFrame:
    """Put other sds, [..., K, 3] and [..., K] in standardised units, into a table of factors."""
    place = (centers_sd * units.length).reshape(-1, 3).cpu().numpy()
    others = {f"{axis}_sd": place[:, i] for i, axis in enumerate("xyz")}
    width_sd = factors["width"] * log_widths_sd.reshape(-1).cpu().numpy() / 2
    return factors.assign(**others, width_sd=width_sd)


def history_table(history: History) -> pd.DataFrame:
    """One row per step: `step, seconds, bound` and the bound's parts."""
    rows = [
        {"step": i + 1, "seconds": seconds, **asdict(bound)}
        for i, (seconds, bound) in enumerate(zip(history.seconds, history.bounds, strict=True))
    ]
    return pd.DataFrame(rows).rename(columns={"value": "bound"})
