"""A very small study to compare methods on, and comparisons without pictures, which take longer than all else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ntfa import simulate
from ntfa.comparison import Settings, connectivity, embeddings, generalisation, mvpa, predictions, reproducibility
from ntfa.estimators import choosing
from ntfa.estimators.base import TopographicModel
from ntfa.simulation import Simulation

SETTINGS = Settings(
    n_factors=3, embedding_dim=2, max_epochs=6, n_samples=4, n_halvings=1, device="cpu", n_jobs=1, quiet=True
)


@pytest.fixture(scope="session")
def settings() -> Settings:
    """Few steps of few factors."""
    return SETTINGS


@pytest.fixture(scope="session")
def tiny() -> Simulation:
    """4 participants, 4 stimuli of 2 tasks, 2 runs, 32 trials of 6 frames, 200 voxels."""
    return simulate("synthetic", n_participants=4, n_stimuli=4, n_frames=6, n_voxels=200, n_runs=2, random_state=0)


def _empty_pictures(drawn: Any, path: Path) -> None:
    for suffix in (".png", ".svg"):
        path.with_suffix(suffix).touch()


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write empty pictures and draw none."""
    for module in (embeddings, generalisation, mvpa, predictions, reproducibility):
        monkeypatch.setattr(module, "save_figure", _empty_pictures)
    for module, name in (
        (embeddings, "plot_embeddings"),
        (generalisation, "plot_log_predictive"),
        (mvpa, "plot_auc"),
        (predictions, "draw_signals"),
        (reproducibility, "plot_intervals"),
    ):
        monkeypatch.setattr(module, name, lambda *args, **kwargs: Figure())
    assert not hasattr(connectivity, "save_figure")


@pytest.fixture
def fits_made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Name of every model that is fitted from now on, and number of trials; without fits that choose a response."""
    made: list[tuple[str, int]] = []
    fit, trial_errors = TopographicModel.fit, choosing.trial_errors

    def noted(self: TopographicModel, study: Any, **options: Any) -> TopographicModel:
        made.append((type(self).__name__, study.n_trials))
        return fit(self, study, **options)

    def unnoted(*args: Any) -> Any:
        n_made = len(made)
        errors = trial_errors(*args)
        del made[n_made:]
        return errors

    monkeypatch.setattr(choosing, "trial_errors", unnoted)
    monkeypatch.setattr(TopographicModel, "fit", noted)
    return made
