"""Fitted models of any size, made up: a report asks nothing of how a fit came about."""

from collections.abc import Callable, Iterator
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from ntfa import NTFA, Study


class Page(HTMLParser):
    """A page taken apart: its tags with their attributes, its text without that of scripts, and the JSON block."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = self.data = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = dict(attrs).get("type") or tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.text += data
        elif self._inside == "application/json":
            self.data += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def sections(self) -> list[str | None]:
        return [attributes["id"] for attributes in self.all("section") if "id" in attributes]


@pytest.fixture
def page() -> type[Page]:
    return Page


@pytest.fixture(scope="session")
def made_up_study() -> Callable[..., Study]:
    """Random frames of so many participants and stimuli; every participant sees some, one frame each."""

    def make(n_participants: int, n_stimuli: int, n_voxels: int = 120) -> Study:
        random = np.random.default_rng(0)
        rows = []
        for p in range(n_participants):
            shown = [s for s in range(n_stimuli) if s % n_participants == p or s == p % n_stimuli or n_stimuli <= 4]
            for i, s in enumerate(shown):
                names = {"participant": f"sub-{p + 1:03}", "stimulus": f"stim-{s + 1:03}"}
                labels = {"group": "even" if p % 2 else "odd", "age": 20 + p / 2, "category": f"kind {s % 3}"}
                rows.append({**names, "start": i, "stop": i + 1, **labels})
        trials = pd.DataFrame(rows)
        lengths = trials.groupby("participant")["stop"].max().clip(lower=2)
        frames = {p: random.normal(size=(n, n_voxels)).astype(np.float32) for p, n in lengths.items()}
        return Study.from_arrays(frames, trials, random.uniform(-50, 50, size=(n_voxels, 3)))

    return make


@pytest.fixture(scope="session")
def made_up_model() -> Callable[..., NTFA]:
    """Make a model as a fit might leave it, with random embeddings and factors."""

    def make(study: Study, n_factors: int = 3, dim: int = 2) -> NTFA:
        model = NTFA(n_factors=n_factors, embedding_dim=dim, max_epochs=1, init="kmeans", random_state=0).fit(study)
        module, random = model._fitted.module, torch.Generator().manual_seed(1)
        with torch.no_grad():
            for posterior in (module.z_participant, module.z_stimulus):
                posterior.mean.copy_(torch.randn(posterior.mean.shape, generator=random))
            module.centers.mean.add_(0.1 * torch.randn(module.centers.mean.shape, generator=random))
        model._set_fitted_attributes(model._fitted)
        return model

    return make


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def model(study: Study) -> NTFA:
    return NTFA(n_factors=3, max_epochs=12, random_state=0).fit(study)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the static figures, which take longer than everything else."""
    monkeypatch.setattr("ntfa.report.build.model_pictures", lambda model, labels: [])
    monkeypatch.setattr("ntfa.report.evidence.data_pictures", lambda *rest: [])
