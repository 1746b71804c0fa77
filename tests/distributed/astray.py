"""Fits a model of which a participant's factor goes astray, in as many processes as there are: astray.py STUDY OUT."""

import sys
from unittest.mock import patch

import torch
from torch import distributed as dist

import ntfa.fitting.training
from ntfa import HTFA, Study
from ntfa.fitting.astray import row_of
from ntfa.fitting.relocation import relocate
from ntfa.fitting.schedules import Relocation
from ntfa.fitting.training import Trainer

WHO = 3


def fit(study: Study) -> tuple[HTFA, list[int]]:
    """Put a factor of one participant on another one at the first look; return how many were moved at every look."""
    moved: list[int] = []

    def after_going_astray(trainer: Trainer, **_: bool) -> Relocation:
        row, centers = row_of(trainer, WHO), trainer.model.centers.mean.data
        if not moved and row is not None:
            centers[row, 1] = centers[row, 0]
        found = relocate(trainer)
        moved.append(found.n_moved)
        return found

    model = HTFA(n_factors=3, max_epochs=160, random_state=0, device="cpu")
    with patch.object(ntfa.fitting.training, "relocate", after_going_astray):
        model.fit(study)
    return model, moved


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found, _ = fit(Study.open(sys.argv[1]))
    if dist.get_rank() == 0:
        found.save(sys.argv[2])
    dist.destroy_process_group()
