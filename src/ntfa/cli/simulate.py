"""`ntfa simulate`: write a simulated study and its truth, one participant at a time."""

from __future__ import annotations

import argparse

from tqdm import tqdm

from ntfa.simulation import Simulator
from ntfa.study import StudyWriter


def run(args: argparse.Namespace) -> None:
    """Simulate and write."""
    simulator = Simulator.create(
        args.like,
        random_state=args.seed,
        n_participants=args.participants,
        n_stimuli=args.stimuli,
        n_frames=args.frames,
        n_voxels=args.voxels,
        n_factors=args.factors,
        n_runs=args.runs,
    )
    write_simulation(simulator, args.out, {"simulated": True, "like": args.like, "seed": args.seed}, args)
    print(f"Simulated study '{args.like}' written to {args.out}; what is true of it is in truth_*.tsv there.")


def write_simulation(simulator: Simulator, out: str, notes: dict[str, object], args: argparse.Namespace) -> None:
    """Write a simulation to a folder, as a study with its truth beside it."""
    with StudyWriter(
        out,
        simulator.truth.coordinates,
        simulator.trials,
        mask_img=simulator.mask_img,
        notes=notes,
        overwrite=args.overwrite,
    ) as writer:
        for participant in tqdm(writer.participants, unit="participant", disable=None if not args.quiet else True):
            writer.add(participant, simulator.frames(participant))
        simulator.truth.save(writer.working_folder)
