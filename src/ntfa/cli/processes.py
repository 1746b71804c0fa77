"""Several processes of one fit, started by torchrun."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ntfa.estimators.settings import resolve_device
from ntfa.fitting.task import current_processes
from ntfa.inference.processes import Processes

logger = logging.getLogger("ntfa")


@contextmanager
def joined(args: argparse.Namespace) -> Iterator[Processes]:
    """Join the processes that torchrun started, or be alone; those after the first are silent.

    Where torchrun starts them again after one of them died, the fit goes on from its checkpoint.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield current_processes()
        return
    import torch
    from torch import distributed as dist

    on_gpu = resolve_device(args.device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    # Addresses are exchanged in a store that may outlive the processes: those of an attempt that died are of no use.
    store, rank, size = next(dist.rendezvous("env://"))
    store = dist.PrefixStore(f"ntfa/{attempt}", store)
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size)
    if attempt:
        args.resume = True
    if rank > 0:
        args.quiet = True
        logger.setLevel(logging.ERROR)
    try:
        yield current_processes()
    finally:
        dist.destroy_process_group()
