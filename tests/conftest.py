"""Seeded simulated studies, and every kind of model, for the tests of estimators and commands."""

import os

os.environ.setdefault("MPLBACKEND", "Agg")
# Read when torch is imported: threads that wait by spinning take a minute for two steps where all cores are busy.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import base64
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from ntfa import HTFA, NTFA, TFA, TLSA, Study, simulate
from ntfa.estimators.base import TopographicModel
from ntfa.simulation import Simulation

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts background jobs so, and commands that tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Results are compared to the bit, also with those of other processes, so all use one thread.
torch.set_num_threads(1)


@dataclass(frozen=True)
class Kind:
    """A model and the settings that make it this kind."""

    name: str
    estimator: type[TopographicModel]
    settings: dict[str, Any] = field(default_factory=dict)

    def make(self, **settings: Any) -> TopographicModel:
        """Make an unfitted model, small and seeded unless told otherwise."""
        return self.estimator(**{"n_factors": 3, "max_epochs": 12, "random_state": 0, **self.settings, **settings})


MODELS = {
    "ntfa": (NTFA, {}),
    "htfa-trial": (HTFA, {"block": "trial"}),
    "htfa-participant": (HTFA, {"block": "participant"}),
    "tfa": (TFA, {"block": "participant"}),
    "tlsa": (TLSA, {}),
}
KINDS = [
    Kind(f"{name}-{inference}", estimator, {**settings, "inference": inference})
    for name, (estimator, settings) in MODELS.items()
    for inference in ("collapsed", "mean-field")
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every model under every inference."""
    return request.param


@pytest.fixture(params=[kind for kind in KINDS if "collapsed" in kind.name], ids=lambda kind: kind.name)
def collapsed_kind(request: pytest.FixtureRequest) -> Kind:
    """Every model, for what does not depend on inference."""
    return request.param


@pytest.fixture(scope="session")
def simulation() -> Simulation:
    """A small noisy study: 6 participants in 3 groups, 4 stimuli of 2 tasks, 24 trials of 5 frames, 300 voxels."""
    return simulate("synthetic", n_participants=6, n_stimuli=4, n_frames=5, n_voxels=300, random_state=0)


@pytest.fixture(scope="session")
def study(simulation: Simulation) -> Study:
    return simulation.study


@pytest.fixture(scope="session")
def clear_simulation() -> Simulation:
    """The same design with ten times less noise and finer voxels, so that a fit must come near the truth."""
    return simulate("synthetic", n_participants=6, n_stimuli=4, n_frames=5, n_voxels=600, noise=0.1, random_state=0)


@pytest.fixture(scope="session")
def fitted(study: Study) -> Callable[[Kind], TopographicModel]:
    """Models fitted to `study`, each once for all tests; do not change them."""
    cache: dict[str, TopographicModel] = {}

    def get(kind: Kind) -> TopographicModel:
        if kind.name not in cache:
            cache[kind.name] = kind.make().fit(study)
        return cache[kind.name]

    return get


@pytest.fixture(scope="session")
def clearly_fitted(clear_simulation: Simulation) -> Callable[[Kind], TopographicModel]:
    """Models fitted to the clear study until they are near the truth; do not change them."""
    cache: dict[str, TopographicModel] = {}

    def get(kind: Kind) -> TopographicModel:
        if kind.name not in cache:
            cache[kind.name] = kind.make(max_epochs=150).fit(clear_simulation.study)
        return cache[kind.name]

    return get


@pytest.fixture(scope="session")
def uneven_study(study: Study) -> Study:
    """Trials of 1 to 5 frames, participants with 1 to 4 trials, rows in no order, an index of names."""
    rng = np.random.default_rng(0)
    trials = study.trials.drop(study.trials.index[[0, 1, 2, 5, 9, 10]])
    trials = trials.assign(stop=trials["start"] + rng.integers(1, 6, len(trials)))
    trials = trials.sample(frac=1, random_state=0)
    trials.index = [f"trial {chr(97 + i)}" for i in range(len(trials))]
    return Study.from_arrays(study.frames, trials, study.coordinates)


@pytest.fixture(scope="session")
def study_folder(study: Study, tmp_path_factory: pytest.TempPathFactory) -> str:
    """`study` saved; do not write into it."""
    folder = tmp_path_factory.mktemp("saved") / "study"
    study.save(folder)
    return str(folder)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands write empty pictures, which otherwise take longer than small fits."""
    monkeypatch.setattr(
        "ntfa.report.build.write_report", lambda model, study, path, *rest, **more: path.write_text("<h1>")
    )


# The smallest PNG there is.
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")


@pytest.fixture(autouse=True)
def _quick_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the brains out of reports, which take longer than the smallest fits, but for tests marked `pictures`."""
    if request.node.get_closest_marker("pictures") is None:
        for name in ("plot_factors", "plot_noise", "plot_prediction"):
            monkeypatch.setattr(f"ntfa.report.figures.{name}", lambda *args, **kwargs: None)
        monkeypatch.setattr("ntfa.report.figures.as_png", lambda *args, **kwargs: PNG)
        monkeypatch.setattr("ntfa.report.figures.as_svg", lambda *args, **kwargs: b"<svg/>")
