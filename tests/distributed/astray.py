"""Fits a model of which a participant's factors go astray, in all processes there are: astray.py KIND STUDY OUT."""

import sys
from unittest.mock import patch

import torch
from torch import distributed as dist

import ntfa.fitting.training
from ntfa import HTFA, TFA, Study
from ntfa.fitting.astray import row_of
from ntfa.fitting.relocation import relocate
from ntfa.fitting.schedules import Relocation
from ntfa.fitting.training import Trainer

WHO = 3


KINDS = {"HTFA": HTFA, "TFA": TFA}


def fit(kind: str, study: Study) -> tuple[HTFA | TFA, list[int]]:
    """Put a factor of one participant on another one, or for TFA all of them off the brain, at the first look.

    Return the model, and how many were moved at every look.
    """
    moved: list[int] = []

    def after_going_astray(trainer: Trainer, **_: bool) -> Relocation:
        row, centers = row_of(trainer, WHO), trainer.model.centers.mean.data
        if not moved and row is not None:
            if kind == "HTFA":
                centers[row, 1] = centers[row, 0]
            else:
                centers[row] = 9.0
        found = relocate(trainer)
        moved.append(found.n_moved)
        return found

    model = KINDS[kind](n_factors=3, max_epochs=160, random_state=0, device="cpu")
    with patch.object(ntfa.fitting.training, "relocate", after_going_astray):
        model.fit(study)
    return model, moved


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found, _ = fit(sys.argv[1], Study.open(sys.argv[2]))
    if dist.get_rank() == 0:
        found.save(sys.argv[3])
    dist.destroy_process_group()
