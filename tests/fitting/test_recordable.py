"""Steps of a fit that a GPU can be given as one recording: nothing in them is read off the device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ntfa
from ntfa import Study, simulate
from ntfa.fitting.training import Trainer
from ntfa.inference import jacobi

READS = ("_local_scalar_dense", "nonzero", "unique", "equal", "masked_select", "_linalg_eigh", "_linalg_svd")
"""Operations that make a GPU wait, or whose result has a size that only the GPU knows."""


class Reads(TorchDispatchMode):
    """Counts operations that cannot be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.found.update([name] * (name in READS))
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def study() -> Study:
    study = simulate("synthetic", random_state=0, n_voxels=300).study
    lacking = {label: frames.copy() for label, frames in study.frames.items()}
    lacking[study.participants[0]][:, :20] = 0
    return Study.from_arrays(lacking, study.trials, study.coordinates)


@pytest.mark.filterwarnings("ignore:.*lack voxels")
@pytest.mark.parametrize(
    ("model", "settings"),
    [("NTFA", {"response": "loadings"}), ("NTFA", {"response": "network"}), ("HTFA", {}), ("TLSA", {})],
)
def test_steps_read_nothing_off_the_device(
    study: Study, monkeypatch: pytest.MonkeyPatch, model: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr("ntfa.inference.loadings._eigh", jacobi.eigh)
    counts: list[Counter[str]] = []
    update = Trainer._update

    def counted(trainer: Trainer, *args: Any) -> torch.Tensor:
        with Reads() as reads:
            found = update(trainer, *args)
        counts.append(reads.found)
        return found

    monkeypatch.setattr(Trainer, "_update", counted)
    settings = settings | ({"uncertainty": "mean-field", "embedding_dim": 2} if model == "NTFA" else {})
    getattr(ntfa, model)(3, max_epochs=4, random_state=0, device="cpu", **settings).fit(study)
    # Whatever is worked out once has been, after the steps that are taken before one is recorded.
    assert len(counts) >= 4
    assert not sum(counts[2:], Counter())
