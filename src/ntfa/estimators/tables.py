"""Posteriors as tables, with the labels of the study, in mm and in units of the data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ntfa.fitting.training import History
from ntfa.inference.frames import Units
from ntfa.inference.normal import NormalPosterior
from ntfa.models.module import TopographicModule
from ntfa.models.spread import Embedded


@torch.no_grad()
def embedding_table(embedded: Embedded, labels: Sequence[str], name: str) -> pd.DataFrame:
    """Embeddings, one row per label: `z1, z2, ..., z1_sd, z2_sd, ...`, and `z1_z2_cov, ...` where they are known."""
    mean, covariances = embedded.mean, embedded.covariances
    sd = covariances.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    columns = [f"z{i + 1}" for i in range(mean.shape[1])]
    table = dict(zip(columns, mean.T.cpu().numpy(), strict=True))
    table |= zip([f"{column}_sd" for column in columns], sd.T.cpu().numpy(), strict=True)
    for i, j in combinations(range(len(columns) if embedded.is_joint else 0), 2):
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


def owned_factor_table(module: TopographicModule, owners: Sequence[Hashable], units: Units) -> pd.DataFrame:
    """Factors of every owner, as in `factor_table`, after columns that name it: `participant`, or a trial's span."""
    factors = factor_table(module.centers, module.log_widths, units)
    if len(module.centers.mean) < len(owners):
        # One layout for everybody: each owner has it.
        factors = pd.concat([factors] * len(owners), ignore_index=True)
    keys = [owner if isinstance(owner, tuple) else (owner,) for owner in owners]
    rows = np.repeat(np.arange(len(keys)), len(factors) // len(keys))
    for i, column in enumerate(["participant", "start", "stop"][: len(keys[0])]):
        factors.insert(i, column, [keys[row][i] for row in rows])
    return factors


@torch.no_grad()
def replace_spread(factors: pd.DataFrame, centers_sd: Tensor, log_widths_sd: Tensor, units: Units) -> pd.DataFrame:
    """Put other sds, [..., K, 3] and [..., K] in standardised units, into a table of factors."""
    n_repeats = len(factors) // log_widths_sd.numel()
    place = np.tile((centers_sd * units.length).reshape(-1, 3).cpu().numpy(), (n_repeats, 1))
    others = {f"{axis}_sd": place[:, i] for i, axis in enumerate("xyz")}
    width_sd = factors["width"] * np.tile(log_widths_sd.reshape(-1).cpu().numpy(), n_repeats) / 2
    return factors.assign(**others, width_sd=width_sd)


def history_table(history: History) -> pd.DataFrame:
    """One row per step: `step, seconds, bound` and the bound's parts."""
    rows = [
        {"step": i + 1, "seconds": seconds, **asdict(bound)}
        for i, (seconds, bound) in enumerate(zip(history.seconds, history.bounds, strict=True))
    ]
    return pd.DataFrame(rows).rename(columns={"value": "bound"})
