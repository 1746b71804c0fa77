"""Tables of embeddings of any size, and figures closed after every test."""

from collections.abc import Callable, Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from ntfa import NTFA, Study

Table = Callable[..., pd.DataFrame]


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def table() -> Table:
    """Make embeddings of n labels in so many dimensions."""

    def make(n: int, dim: int = 2, sd: float = 0.1, labels: list[str] | None = None) -> pd.DataFrame:
        rng = np.random.default_rng(0)
        names = [f"z{i + 1}" for i in range(dim)]
        made = pd.DataFrame(rng.normal(size=(n, dim)), columns=names, index=labels or [f"sub-{i}" for i in range(n)])
        if sd:
            made[[f"{name}_sd" for name in names]] = sd * rng.uniform(0.5, 2, size=(n, dim))
        return made

    return make


@pytest.fixture(scope="session")
def brain_model(study: Study) -> NTFA:
    """A model of a study in MNI space; do not change it."""
    return NTFA(n_factors=3, max_epochs=12, random_state=0).fit(study)


@pytest.fixture(scope="session")
def bare_study(study: Study) -> Study:
    """The same study without a mask."""
    return Study.from_arrays(study.frames, study.trials, study.coordinates)


@pytest.fixture(scope="session")
def bare_model(bare_study: Study) -> NTFA:
    """A model of a study that has no images; do not change it."""
    return NTFA(n_factors=3, max_epochs=5, random_state=0).fit(bare_study)
