"""Held-out images beside what the models predict for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ntfa.comparison.figures import save_figure
from ntfa.comparison.fits import NAMES, Fits
from ntfa.comparison.image_baselines import TELLING
from ntfa.plots.brains import space_of
from ntfa.plots.maps import draw_maps
from ntfa.plots.style import DIVERGING
from ntfa.simulation import Truth

METHODS = ("ntfa", "htfa", "tfa", "tlsa")
SHOWN = ("NTFA", "HTFA")
TRIALS_SHOWN = 3
STRONGEST = 99.5


def predictions(fits: Fits, folder: Path, truth: Truth | None) -> None:
    """Write `correlations.tsv` (a row a test trial), `summary.tsv` and pictures of a few trials."""
    test = fits.split[1]
    observed = test.mean_images()
    predicted = {NAMES[method]: fits.on_train(method).predict(test.trials) for method in METHODS}
    simple = {name: model.predict(test.trials) for name, model in fits.image_baselines.items() if name in TELLING}
    table = test.trials[["participant", "stimulus"]].copy()
    for name, images in (predicted | simple).items():
        table[name] = image_correlations(observed, images)
    table.to_csv(folder / "correlations.tsv", sep="\t", index=False)
    summarise_correlations(table).to_csv(folder / "summary.tsv", sep="\t", index=False)
    for place in _typical(table["NTFA"].to_numpy()):
        _draw(fits, folder, place, observed, {name: predicted[name] for name in SHOWN})


def image_correlations(observed: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Correlation over voxels of each pair of images, [n]; 0 for an image that is the same everywhere."""
    one, other = (images.astype(np.float64) - images.mean(1, keepdims=True) for images in (observed, predicted))
    size = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    product = (one * other).sum(1)
    return np.divide(product, size, out=np.zeros_like(product), where=size > 0)


def summarise_correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Mean correlation of each method, with its standard error over participants."""
    methods = [column for column in table if column not in ("participant", "stimulus")]
    by_participant = table.groupby("participant")[methods].mean()
    found = pd.DataFrame({"correlation": by_participant.mean(), "standard_error": by_participant.sem()})
    return found.rename_axis("method").assign(n_participants=len(by_participant), n_trials=len(table)).reset_index()


def _typical(correlations: np.ndarray) -> list[int]:
    """Return the trials at the quartiles of the correlation: neither the best ones nor chosen by eye."""
    order = np.argsort(-correlations)
    wanted = np.linspace(0.25, 0.75, TRIALS_SHOWN) * (len(order) - 1)
    return list(dict.fromkeys(int(order[round(place)]) for place in wanted))


def _draw(fits: Fits, folder: Path, place: int, observed: np.ndarray, predicted: dict[str, np.ndarray]) -> None:
    test = fits.split[1]
    trial = test.trials.iloc[place]
    images = {"held-out data": observed[place]} | {name: part[place] for name, part in predicted.items()}
    limit = float(np.percentile(np.abs(list(images.values())), STRONGEST)) or 1.0
    scale, title = (-limit, limit), f"{trial['participant']}, {trial['stimulus']}"
    figure = draw_maps(images, space_of(test), view="glass", scale=scale, cmap=DIVERGING, unit="signal", title=title)
    save_figure(figure, folder / f"trial-{place + 1}")
