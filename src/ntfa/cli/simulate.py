"""`ntfa simulate`: write a simulated study and its truth, one participant at a time."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from ntfa.cli.stopping import writing_alone
from ntfa.errors import StudyError
from ntfa.simulation import Simulator
from ntfa.simulation.bids import REST, write_bids
from ntfa.simulation.presets import SETTINGS
from ntfa.study import StudyWriter


def run(args: argparse.Namespace) -> None:
    """Simulate and write."""
    with writing_alone(Path(args.out)):
        _run(args)


def _run(args: argparse.Namespace) -> None:
    if args.t_r is not None and not args.bids:
        raise StudyError("--t-r applies to --bids only")
    simulator = Simulator.create(
        args.like,
        random_state=args.seed,
        n_participants=args.participants,
        n_stimuli=args.stimuli,
        n_frames=args.frames,
        n_voxels=args.voxels,
        n_factors=args.factors,
        n_runs=args.runs,
        settings={name: getattr(args, name) for name in SETTINGS},
    )
    if args.bids:
        _write_bids(simulator, args)
        return
    notes = {"simulated": True, "like": args.like, "seed": args.seed}
    if simulator.realism is not None:
        notes["settings"] = asdict(simulator.realism)
    write_simulation(simulator, args.out, notes, args)
    print(f"Simulated study '{args.like}' written to {args.out}; its ground truth is in truth_*.tsv there.")


def _write_bids(simulator: Simulator, args: argparse.Namespace) -> None:
    t_r = 2.0 if args.t_r is None else args.t_r
    write_bids(simulator, args.out, t_r=t_r, overwrite=args.overwrite, quiet=args.quiet)
    out, results = (shlex.quote(f"{Path(args.out)}{end}") for end in ("", "-results"))
    options = (
        f"--task {simulator.like} --rest {REST} --category-column category --n-factors {len(simulator.truth.centers)}"
    )
    print(f"Simulated BIDS dataset '{args.like}' written to {args.out}; its ground truth is in derivatives/truth.")
    print(f"Try: ntfa bids {out} {results} group {options}")


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
