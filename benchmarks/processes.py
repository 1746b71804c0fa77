"""Two processes with one thread each against one process with one thread: steps a second on a study of Haxby's size.

    PYTHONPATH=src python benchmarks/processes.py [--processes 2] [--rounds 3] [--steps 5] [--quick]

6 participants x 96 trials of 8 stimuli x 12 frames x 32,233 voxels, K = 100, divided among processes that torchrun
starts, as `torchrun -m ntfa fit` does. Rounds of one process and of several take turns. Needs no imaging library.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import torch
from generated import Size, simulate
from torch import distributed as dist

from ntfa.fitting.schedules import OneCycle
from ntfa.fitting.sharing import Sharing
from ntfa.fitting.training import Trainer
from ntfa.inference.bounds import CollapsedLikelihood
from ntfa.inference.normal import RandomSource
from ntfa.inference.processes import DistributedProcesses, Share
from ntfa.models.ntfa import NeuralFactors

HAXBY, TINY = Size(6, 8, 96, 12, 32_233, 100), Size(6, 2, 4, 5, 200, 3)
OWN = ("centers", "log_widths", "z_participant")


def trainer_of(size: Size) -> Trainer:
    """Make this process's part of a fit: its participants' frames, and posteriors of theirs alone."""
    n_processes = int(os.environ.get("WORLD_SIZE", "1"))
    n_own = size.participants // n_processes
    frames = simulate(replace(size, participants=n_own), "cpu").frames
    torch.manual_seed(0)
    module = NeuralFactors(size.participants, size.stimuli, size.factors, 2).double()
    with torch.no_grad():
        places = frames.coordinates[torch.randint(frames.n_voxels, (size.factors,))]
        module.centers.mean.copy_(places.expand_as(module.centers.mean))
        module.log_widths.mean.fill_(-3.0)
    sharing = Sharing()
    if n_processes > 1:
        dist.init_process_group("gloo")
        processes = DistributedProcesses()
        share = Share(processes.rank * n_own, (processes.rank + 1) * n_own, size.participants)
        sharing = Sharing(processes, dict.fromkeys(OWN, share))
        sharing.take(module)
    return Trainer(module, CollapsedLikelihood(frames), OneCycle(100), RandomSource(0), frames, sharing=sharing)


def take_steps(size: Size, n_steps: int) -> None:
    """Print the seconds of a step, from the first process."""
    torch.set_num_threads(1)
    trainer = trainer_of(size)
    trainer.step(0.1)
    started = time.perf_counter()
    for _ in range(n_steps):
        trainer.step(0.1)
    if int(os.environ.get("RANK", "0")) == 0:
        print((time.perf_counter() - started) / n_steps)
    if dist.is_initialized():
        dist.destroy_process_group()


def seconds_of_a_step(n_processes: int, arguments: list[str]) -> float:
    """Have processes take steps; return the seconds of one."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
    command = [sys.executable, *(launcher if n_processes > 1 else []), __file__, "--steps-of-a-part", *arguments]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(done.stdout.split()[-1])


def main() -> None:
    """Print seconds and their ratio."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--quick", action="store_true", help="a tiny study: shows that it runs, says nothing of speed")
    options.add_argument("--steps-of-a-part", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.steps_of_a_part:
        take_steps(TINY if args.quick else HAXBY, args.steps)
        return
    if HAXBY.participants % args.processes:
        options.error(f"--processes must divide {HAXBY.participants}, the number of participants")
    passed = ["--steps", str(args.steps), *(["--quick"] if args.quick else [])]
    rounds = [[seconds_of_a_step(n, passed) for n in (1, args.processes)] for _ in range(args.rounds)]
    one, several = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(alone / together for alone, together in rounds)
    print(f"a step: {one:.3f} s with 1 process, {several:.3f} s with {args.processes}: {ratio:.2f}x as many steps")


if __name__ == "__main__":
    main()
