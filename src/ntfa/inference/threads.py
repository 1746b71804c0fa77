"""How many threads PyTorch may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

FEW_DATA = 12_000_000
"""Frames times voxels under which a second thread does not pay."""


@contextmanager
def one_thread_if(small: bool) -> Iterator[None]:
    """Keep PyTorch to one thread for a while.

    Threads that wait for each other at every one of a step's hundreds of small operations gain nothing on a small
    study, and where other processes hold the cores they cost tens of times the step.
    """
    before = torch.get_num_threads()
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
