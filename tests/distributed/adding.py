"""Adds newcomers to saved models, in as many processes as torchrun started: adding.py MODELS STUDY OUT."""

import sys
from pathlib import Path

import torch
from torch import distributed as dist

from ntfa import NTFA, Study

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        added = NTFA.load(folder, "cpu").add(Study.open(sys.argv[2]))
        if dist.get_rank() == 0:
            added.save(Path(sys.argv[3]) / folder.name)
    dist.destroy_process_group()
