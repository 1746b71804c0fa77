"""Fits several models to a study, in as many processes as torchrun started: fits.py STUDY OUT."""

import sys
from pathlib import Path

import torch
from torch import distributed as dist

from ntfa import HTFA, NTFA, TFA, Study
from ntfa.estimators.base import TopographicModel

SETTINGS = {"n_factors": 3, "max_epochs": 8, "random_state": 0, "device": "cpu"}
MODELS: dict[str, TopographicModel] = {
    "ntfa": NTFA(**SETTINGS, uncertainty="laplace"),
    "ntfa-coarse": NTFA(**SETTINGS, uncertainty="mean-field", coarse="always"),
    "ntfa-particles": NTFA(**SETTINGS, uncertainty="mean-field", n_particles=2),
    "ntfa-mean-field": NTFA(**SETTINGS, uncertainty="mean-field", inference="mean-field"),
    "htfa": HTFA(block="trial", **SETTINGS),
    "tfa": TFA(**SETTINGS),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    study = Study.open(sys.argv[1])
    for name, model in MODELS.items():
        model.fit(study)
        if dist.get_rank() == 0:
            model.save(Path(sys.argv[2]) / name)
    dist.destroy_process_group()
