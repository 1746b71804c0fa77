"""Held-out trials: log predictive densities, parameter counts, and errors of predicted images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ntfa.analyses.intervals import mean_interval
from ntfa.comparison.figures import save_figure
from ntfa.comparison.fits import NAMES, PAPER, Fits
from ntfa.comparison.predictions import image_correlations, summarise_correlations
from ntfa.plots import plot_log_predictive
from ntfa.simulation import Truth
from ntfa.study import Study

METHODS = ("ntfa", PAPER, "htfa", "tfa", "tlsa")
ESTIMATORS = ("collapsed", "paper")
NOT_ESTIMATED = "exact"


def generalisation(fits: Fits, folder: Path, truth: Truth | None) -> None:
    """Write `table.tsv` (one row per method and estimator), `participants.tsv`, `differences.tsv` and a figure."""
    test = fits.split[1]
    rows, parts = [], []
    for method in METHODS:
        new = _score_model(fits, method, test)
        rows += [row for row, _ in new]
        parts += [part for _, part in new]
    for name, simple in fits.image_baselines.items():
        own = simple.log_predictive_by_participant(test)
        rows.append(_row(name, NOT_ESTIMATED, sum(own.values()), 0.0, simple.n_parameters_, test))
        parts.append(_part(name, NOT_ESTIMATED, own))
    table, participants = pd.DataFrame(rows), pd.concat(parts)
    table = table.join(image_errors(fits, truth).set_index("method"), on="method")
    table.to_csv(folder / "table.tsv", sep="\t", index=False)
    participants.to_csv(folder / "participants.tsv", sep="\t", index=False)
    difference_table(participants, test).to_csv(folder / "differences.tsv", sep="\t", index=False)
    save_figure(plot_log_predictive(table), folder / "log_predictive")


def _score_model(fits: Fits, method: str, test: Study) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    model, name = fits.on_train(method), NAMES[method]
    found = []
    for estimator in ESTIMATORS:
        result = model.log_predictive(test, estimator, fits.settings.n_samples)
        row = _row(name, estimator, result.value, result.standard_error, model.n_parameters_, test)
        row |= {"converged": model.converged_, "seconds": float(model.history_["seconds"].iloc[-1])}
        found.append((row, _part(name, estimator, result.by_participant)))
    return found


def _row(method: str, estimator: str, value: float, error: float, n_parameters: int, test: Study) -> dict[str, Any]:
    return {
        "method": method,
        "estimator": estimator,
        "log_predictive": value,
        "standard_error": error,
        "per_datum": value / test.n_data,
        "n_parameters": n_parameters,
    }


def _part(method: str, estimator: str, own: Any) -> pd.DataFrame:
    table = pd.DataFrame({"participant": list(own), "log_predictive": list(own.values())})
    table.insert(0, "method", method)
    table.insert(1, "estimator", estimator)
    return table


def image_errors(fits: Fits, truth: Truth | None) -> pd.DataFrame:
    """Mean squared error, and correlation over voxels, of predicted trial-mean images of all test trials."""
    test = fits.split[1]
    observed = test.mean_images()
    predicted = {NAMES[method]: fits.on_train(method).predict(test.trials) for method in METHODS}
    predicted |= {name: simple.predict(test.trials) for name, simple in fits.image_baselines.items()}
    errors = {name: float(np.mean((observed - images) ** 2)) for name, images in predicted.items()}
    table = pd.DataFrame({"method": list(errors), "mse": list(errors.values())})
    table["mse_over_zero"] = table["mse"] / errors["zero"]
    if truth is not None:
        oracle = float(np.mean((observed - oracle_images(truth, test)) ** 2))
        table["mse_over_oracle"] = table["mse"] / oracle
    correlations = test.trials[["participant", "stimulus"]].assign(
        **{name: image_correlations(observed, images) for name, images in predicted.items()}
    )
    return table.join(summarise_correlations(correlations).set_index("method")["correlation"], on="method")


def oracle_images(truth: Truth, test: Study) -> np.ndarray:
    """Images around which the test trials were simulated, [N, V]."""
    pairs = zip(test.trials["participant"], test.trials["stimulus"], strict=True)
    return np.stack([truth.mean_image(participant, stimulus) for participant, stimulus in pairs])


def difference_table(participants: pd.DataFrame, test: Study) -> pd.DataFrame:
    """How far NTFA is above each other method, in nats per observation, with a 95% interval over participants."""
    lengths = (test.trials["stop"] - test.trials["start"]).groupby(test.trials["participant"]).sum() * test.n_voxels
    wide = participants.pivot(index="participant", columns=["method", "estimator"], values="log_predictive")
    per_datum = wide.div(lengths, axis=0)
    rows = []
    for estimator in ESTIMATORS:
        ours = per_datum["NTFA", estimator]
        methods, others = (per_datum.columns.get_level_values(level) for level in (0, 1))
        for method, other in zip(methods, others, strict=True):
            if method != "NTFA" and other in (estimator, NOT_ESTIMATED):
                difference = ours - per_datum[method, other]
                counts = {"n_better": int((difference > 0).sum()), "n": len(difference)}
                named = {"estimator": estimator, "against": method}
                rows.append(named | mean_interval(difference, "difference") | counts)
    return pd.DataFrame(rows)
