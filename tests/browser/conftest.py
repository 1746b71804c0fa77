"""A browser, and fitted models of any size to show in it; all tests here are skipped where there is none."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ntfa import NTFA, Study
from ntfa.cli import main

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser tests")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there: no browser tests")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser") / "demo"
    assert main(["demo", str(out), "--quiet"]) == 0
    return out


@pytest.fixture(scope="session")
def made_up() -> Callable[[int], Study]:
    """Two participants who share three stimuli, and see half of the others each."""

    def make(n_stimuli: int) -> Study:
        random, rows = np.random.default_rng(0), []
        for p in range(2):
            shown = [s for s in range(n_stimuli) if s < 3 or s % 2 == p]
            for i, s in enumerate(shown):
                rows.append({"participant": f"sub-{p}", "stimulus": f"stim-{s:03}", "start": i, "stop": i + 1})
        frames = {f"sub-{p}": random.normal(size=(n_stimuli, 60)) for p in range(2)}
        return Study.from_arrays(frames, pd.DataFrame(rows), random.uniform(-40, 40, (60, 3)))

    return make


@pytest.fixture(scope="session")
def crowd(made_up: Callable[[int], Study]) -> Callable[[int], NTFA]:
    """Fit a model of so many stimuli, once."""

    @cache
    def fit(n: int) -> NTFA:
        return NTFA(n_factors=2, max_epochs=1, init="kmeans", random_state=0, uncertainty="laplace").fit(made_up(n))

    return fit
