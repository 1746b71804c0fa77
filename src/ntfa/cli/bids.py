"""`ntfa bids`: a BIDS App. `participant` prepares subjects, `group` fits a model to all of them."""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from ntfa.cli.atlas import atlas_from
from ntfa.cli.fit import model_from
from ntfa.cli.results import fit_to_folder, fitting_to, is_complete
from ntfa.cli.stopping import stopping_cleanly
from ntfa.errors import OutputError, StudyError
from ntfa.estimators.estimates import size_in_words
from ntfa.files.folders import only_writer
from ntfa.progress import stage
from ntfa.study import Study
from ntfa.study.bids import FoundRun, Selection, describe_runs, find_runs
from ntfa.study.checks import some
from ntfa.study.cutting import Preparation, cut
from ntfa.study.derivative import Masking, Outcome, assemble_to_disk, describe_dataset, prepared_quality, try_to_prepare
from ntfa.study.events import as_label, join_tables, read_events
from ntfa.study.images import open_image, repetition_time
from ntfa.study.preparing import warn_of_losses

logger = logging.getLogger("ntfa")


def run(args: argparse.Namespace) -> None:
    """Prepare, and at the group level fit."""
    with warnings_in_words(), stopping_cleanly():
        _run(args)


@contextmanager
def warnings_in_words() -> Iterator[None]:
    """Show our warnings as lines of the log, without the line of code that gave them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *where: logger.warning("%s", message)
        yield


def _run(args: argparse.Namespace) -> None:
    # Before hours of preparing, not after them.
    atlas_from(args)
    if args.n_jobs == 0:
        raise StudyError("--n-jobs 0: choose how many subjects to prepare in parallel, or -1 for the number of cores")
    how, masking = preparation_from(args), Masking(args.mask, args.min_coverage, args.keep_white_matter)
    with stage("Finding runs"):
        found = by_participant(find_runs(args.bids_dir, selection_from(args)))
    _require_rest(found, how)
    if args.dry_run:
        print(*plan_preparation(found, how, model_from(args)._k), sep="\n")
        return
    out = Path(args.out)
    if out.exists() and not (out / "dataset_description.json").exists() and any(out.glob("[!.]*")):
        raise OutputError(f"{out} exists and is not an output of ntfa bids; choose another folder for the results")
    describe_dataset(out, Path(args.bids_dir))
    prepare_all(out, Path(args.bids_dir), found, masking, how, args.n_jobs)
    if args.level == "group":
        args.out = str(out / args.model)
        with fitting_to(Path(args.out)):
            fit_group(out, found, masking, how, args)
        # Somebody may have removed OUT while the fit ran; results alone would not be taken for ours.
        describe_dataset(out, Path(args.bids_dir))
    else:
        warn_of_losses(join_tables(prepared_quality(out, participant) for participant in found), n_lost=0)


def by_participant(found: list[FoundRun]) -> dict[str, list[FoundRun]]:
    """Group runs by participant."""
    grouped: dict[str, list[FoundRun]] = {}
    for one in found:
        grouped.setdefault(one.run.participant, []).append(one)
    return grouped


def prepare_all(
    out: Path, bids_dir: Path, found: dict[str, list[FoundRun]], masking: Masking, how: Preparation, n_jobs: int
) -> None:
    """Prepare all participants; one that fails is named at the end, the others are prepared all the same."""
    work = (delayed(try_to_prepare)(out, bids_dir, runs, masking, how) for runs in found.values())
    failed = []
    with stage("Preparing participants", len(found)) as one_more:
        for participant, outcome in zip(found, Parallel(n_jobs=n_jobs, return_as="generator")(work), strict=True):
            one_more()
            if problem := _report_outcome(participant, outcome):
                failed.append(problem)
    if failed:
        raise StudyError(f"{len(failed)} of {len(found)} participants could not be prepared. {failed[0]}")


def _report_outcome(participant: str, outcome: Outcome) -> str:
    """Log how preparing a participant went; return what is wrong, if anything."""
    for warning in outcome.warnings:
        logger.warning("%s", warning)
    if outcome.problem:
        logger.error("%s failed: %s", participant, outcome.problem)
        return f"{participant}: {outcome.problem}"
    logger.info("%s: %s", participant, "prepared" if outcome.written else "up to date")
    return ""


def fit_group(
    out: Path, found: dict[str, list[FoundRun]], masking: Masking, how: Preparation, args: argparse.Namespace
) -> None:
    """Assemble the prepared participants and fit a model to them; results go to OUT/MODEL."""
    study_folder = Path(args.work_dir or out) / "study"
    model = model_from(args)
    if is_complete(Path(args.out), model, args):
        print(f"{args.out} is complete already; nothing to resume.")
        return
    runs = [one for participant in sorted(found) for one in found[participant]]
    provenance = describe_runs(
        runs, how, given_mask=masking.mask, min_coverage=masking.min_coverage, keep_white=masking.keep_white_matter
    )
    with only_writer(study_folder), stage("Assembling the study"):
        quality = assemble_to_disk(out, sorted(found), study_folder, provenance)
        study = Study.open(study_folder)
    lost = int(quality["frames"].sum() - quality["frames_kept"].sum())
    note = (
        f"{len(quality)} runs were prepared: {int(quality['trial_frames'].sum()):,} trial frames, "
        f"{int(quality['rest_frames'].sum()):,} rest frames, {lost:,} frames discarded."
    )
    name = Path(args.bids_dir).resolve().name
    fit_to_folder(model, study, args, lambda: [note], quality=quality, study_name=name)
    from ntfa.report.words import fit_in_words

    print(*fit_in_words(model), note, f"Report: {Path(args.out) / 'report.html'}", sep="\n")


def plan_preparation(found: dict[str, list[FoundRun]], how: Preparation, n_factors: int) -> list[str]:
    """Say what would be done: runs, trials, stimuli, rest frames and memory, from headers and events alone."""
    rows, stimuli = [], set()
    for participant, runs in found.items():
        for one in runs:
            img = open_image(one.run)
            t_r = repetition_time(one.run, img)
            times = one.run.start_time + np.arange(img.shape[3], dtype=np.float64) * t_r
            cuts = cut(read_events(one.run.events, one.run.events_name), times, how, one.run.events_name)
            stimuli |= set(cuts.trials["stimulus"])
            n_voxels = int(np.prod(img.shape[:3]))
            rows.append(
                {
                    "participant": participant,
                    "run": one.run.run,
                    "frames": img.shape[3],
                    "t_r": t_r,
                    "trials": len(cuts.trials),
                    "trial_frames": sum(map(len, cuts.frames)),
                    "rest_frames": len(cuts.rest),
                    "voxels_in_image": n_voxels,
                }
            )
    table = pd.DataFrame(rows)
    # A brain fills about a quarter of the box it is imaged in.
    in_brain = 0.25 * table["voxels_in_image"].max()
    data = table["trial_frames"].sum() * in_brain
    return [
        table.drop(columns="voxels_in_image").to_string(index=False),
        f"{len(found)} participants, {len(table)} runs, {table['trials'].sum()} trials of {len(stimuli)} stimuli: "
        f"{some(sorted(stimuli), 12)}",
        f"about {size_in_words(4 * data)} of trial frames for a fit with up to {n_factors} factors (a rough estimate: "
        "the mask is not known yet)",
    ]


def _require_rest(found: dict[str, list[FoundRun]], how: Preparation) -> None:
    """Refuse a baseline condition that no run has: it is a misspelling."""
    wanted = {*how.rest, *how.ignore}
    seen: set[str] = set()
    if not wanted:
        return
    for one in (one for runs in found.values() for one in runs):
        try:
            events = read_events(one.run.events, one.run.events_name)
        except StudyError:
            # Its participant will fail with this, and only that one.
            continue
        if how.stimulus_column not in events:
            return
        seen |= set(events[how.stimulus_column].dropna().map(as_label))
        if wanted <= seen:
            return
    missing = ", ".join(sorted(wanted - seen))
    raise StudyError(f"no run has an event called {missing}; there are {some(sorted(seen), 20)}")


def selection_from(args: argparse.Namespace) -> Selection:
    """Read which runs the options ask for."""
    filters = {}
    if args.bids_filter_file:
        try:
            filters = json.loads(Path(args.bids_filter_file).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise StudyError(f"{args.bids_filter_file}: cannot be read as JSON ({error})") from error
    return Selection(
        args.derivatives,
        args.participant_label,
        args.session_label,
        args.task,
        args.space,
        args.res,
        args.confounds,
        filters,
        args.bids_database_dir,
    )


def preparation_from(args: argparse.Namespace) -> Preparation:
    """Read how the options ask for runs to be prepared."""
    names = (
        "stimulus_column category_column rest include_rest ignore delay trial_duration merge_gap standardize "
        "min_rest_frames smoothing_fwhm high_pass other_grid"
    )
    return Preparation(**{name: getattr(args, name) for name in names.split()})
