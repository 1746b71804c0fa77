"""The same seed gives the same result: with more threads, whatever was drawn before, on a GPU.

That it does so twice in a row, and that another seed gives another result, is in tests/estimators/test_contract.py.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ntfa.fitting.training
from ntfa import NTFA, Study

EMBEDDINGS = ("participants_", "stimuli_")
SETTINGS = {"max_epochs": 4, "random_state": 0, "uncertainty": "laplace"}


@pytest.fixture(scope="module")
def wide_study() -> Study:
    """So many voxels that PyTorch shares its products out among threads."""
    rng = np.random.default_rng(0)
    frames = {who: rng.standard_normal((20, 5000), np.float32) for who in ("a", "b", "c")}
    trials = pd.DataFrame(
        [(who, stimulus, 10 * i, 10 * i + 10) for who in frames for i, stimulus in enumerate(("cat", "dog"))],
        columns=["participant", "stimulus", "start", "stop"],
    )
    return Study.from_arrays(frames, trials, rng.uniform(-60, 60, (5000, 3)))


def assert_same_bits(one: NTFA, two: NTFA) -> None:
    pd.testing.assert_series_equal(one.history_["bound"], two.history_["bound"], check_exact=True)
    for table in (*EMBEDDINGS, "factors_"):
        pd.testing.assert_frame_equal(getattr(one, table), getattr(two, table), check_exact=True)


def assert_close(one: NTFA, two: NTFA, embeddings: float, bound: float) -> None:
    np.testing.assert_allclose(two.history_["bound"], one.history_["bound"], rtol=bound)
    for table in EMBEDDINGS:
        np.testing.assert_allclose(getattr(two, table), getattr(one, table), rtol=0, atol=embeddings)


@pytest.mark.parametrize(("inference", "bound"), [("collapsed", 1e-9), ("mean-field", 1e-7)])
def test_one_thread_or_two(inference: str, bound: float, wide_study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are used here although the study is small, which a fit would do with one otherwise."""
    monkeypatch.setattr(ntfa.fitting.training, "FEW_DATA", 0)
    used: list[int] = []
    step = ntfa.fitting.training.Trainer.step

    def noting(trainer: ntfa.fitting.training.Trainer, factor: float) -> Any:
        used.append(torch.get_num_threads())
        return step(trainer, factor)

    monkeypatch.setattr(ntfa.fitting.training.Trainer, "step", noting)
    models = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        try:
            models.append(NTFA(30, inference=inference, device="cpu", **SETTINGS).fit(wide_study))
        finally:
            torch.set_num_threads(1)
    assert set(used) == {1, 2}
    assert_close(*models, embeddings=1e-6, bound=bound)


def test_random_numbers_drawn_before_do_not_matter(study: Study) -> None:
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        models.append(NTFA(3, device="cpu", **SETTINGS).fit(study))
    assert_same_bits(*models)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_agrees_with_itself_to_the_bit_and_with_a_cpu_nearly(wide_study: Study) -> None:
    cpu, gpu, again = (NTFA(30, device=device, **SETTINGS).fit(wide_study) for device in ("cpu", "cuda", "cuda"))
    assert_same_bits(gpu, again)
    assert_close(cpu, gpu, embeddings=1e-4, bound=1e-8)
