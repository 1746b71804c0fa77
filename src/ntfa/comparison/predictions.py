"""Held-out images beside what the models predict for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ntfa.analyses.images import image_correlations, typical
from ntfa.analyses.interaction import interaction
from ntfa.analyses.recorded import recorded_shares
from ntfa.comparison.figures import save_figure
from ntfa.comparison.fits import NAMES, PAPER, Fits
from ntfa.comparison.image_baselines import TELLING
from ntfa.estimators import NTFA
from ntfa.plots.brains import space_of
from ntfa.plots.images import draw_signals
from ntfa.simulation import Truth

METHODS = ("ntfa", PAPER, "htfa", "tfa", "tlsa")
SHOWN = ("NTFA", "HTFA")


def predictions(fits: Fits, folder: Path, truth: Truth | None) -> None:
    """Write `correlations.tsv` (a row a test trial), `summary.tsv`, shares and pictures of a few trials."""
    test = fits.split[1]
    observed = test.mean_images()
    predicted = {NAMES[method]: fits.on_train(method).predict(test.trials) for method in METHODS}
    simple = {name: model.predict(test.trials) for name, model in fits.image_baselines.items() if name in TELLING}
    table = test.trials[["participant", "stimulus"]].copy()
    for name, images in (predicted | simple).items():
        table[name] = image_correlations(observed, images)
    table.to_csv(folder / "correlations.tsv", sep="\t", index=False)
    summarise_correlations(table).to_csv(folder / "summary.tsv", sep="\t", index=False)
    _interaction(fits, folder)
    for place in typical(table["NTFA"].to_numpy()):
        _draw(fits, folder, place, observed, {name: predicted[name] for name in SHOWN})


def _interaction(fits: Fits, folder: Path) -> None:
    """Write `interaction.tsv`, shares of stimulus, person and both, and `additive.tsv`, how additive models do."""
    model = fits.on_train("ntfa")
    train, test = fits.split
    if not isinstance(model, NTFA) or len(train.participants) < 2 or len(train.stimuli) < 2:
        return
    found = interaction(model, train, test)
    sources = {"NTFA": found.shares, "recorded images": recorded_shares(fits.study)}
    shares = [table.assign(method=name) for name, table in sources.items() if table is not None]
    pd.concat(shares)[["method", *found.shares]].to_csv(folder / "interaction.tsv", sep="\t", index=False)
    found.pairs.to_csv(folder / "interaction_pairs.tsv", sep="\t", index=False)
    if found.held_out is not None:
        found.held_out.to_csv(folder / "additive.tsv", sep="\t", index=False)


def summarise_correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Mean correlation of each method, with its standard error over participants."""
    methods = [column for column in table if column not in ("participant", "stimulus")]
    by_participant = table.groupby("participant")[methods].mean()
    found = pd.DataFrame({"correlation": by_participant.mean(), "standard_error": by_participant.sem()})
    return found.rename_axis("method").assign(n_participants=len(by_participant), n_trials=len(table)).reset_index()


def _draw(fits: Fits, folder: Path, place: int, observed: np.ndarray, predicted: dict[str, np.ndarray]) -> None:
    test = fits.split[1]
    trial = test.trials.iloc[place]
    images = {"held-out data": observed[place]} | {name: part[place] for name, part in predicted.items()}
    figure = draw_signals(images, space_of(test), title=f"{trial['participant']}, {trial['stimulus']}")
    save_figure(figure, folder / f"trial-{place + 1}")
