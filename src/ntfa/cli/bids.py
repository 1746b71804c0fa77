"""`ntfa bids`: a BIDS App. `participant` prepares subjects, `group` fits a model to all of them."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from joblib import Parallel, delayed

from ntfa.cli.atlas import atlas_from
from ntfa.cli.fit import model_from
from ntfa.cli.planning import in_words, notes_on_design
from ntfa.cli.results import fit_to_folder, fitting_to, holds_fit_to, is_complete
from ntfa.cli.stopping import stopping_cleanly
from ntfa.cli.surfaces import files_from
from ntfa.errors import OutputError, StudyError
from ntfa.estimators.estimates import size_in_words
from ntfa.files.folders import only_writer
from ntfa.progress import stage
from ntfa.study import Study
from ntfa.study.assembling import assemble_to_disk
from ntfa.study.bids import FoundRun, Selection, search
from ntfa.study.bids_masks import describe_runs
from ntfa.study.checks import some
from ntfa.study.coverage import check_min_coverage
from ntfa.study.cutting import Preparation
from ntfa.study.derivative import (
    Masking,
    Outcome,
    describe_dataset,
    prepared_quality,
    prepared_state,
    try_to_prepare,
)
from ntfa.study.events import join_tables
from ntfa.study.filtering import USED, ignored, read_filters
from ntfa.study.locating import locate
from ntfa.study.preparing import warn_of_losses
from ntfa.study.problems import Problem, listed, refuse
from ntfa.study.survey import Survey, space_for, survey

logger = logging.getLogger("ntfa")


def run(args: argparse.Namespace) -> None:
    """Prepare, and at the group level fit."""
    with stopping_cleanly():
        _run(args)


def _run(args: argparse.Namespace) -> None:
    # Before hours of preparing, not after them.
    atlas_from(args)
    if args.n_jobs == 0:
        raise StudyError("--n-jobs 0: choose how many subjects to prepare in parallel, or -1 for the number of cores")
    how = preparation_from(args)
    min_coverage = check_min_coverage(args.min_coverage)
    args.bids_dir, args.derivatives = locate(args.bids_dir, args.derivatives)
    with stage("Finding runs"):
        runs, problems = search(args.bids_dir, selection_from(args))
    with stage("Looking at headers and events"):
        mask, surfaces = space_for(runs, args.mask, files_from(args), Path(args.derivatives))
        seen = survey(runs, how, mask)
    masking = Masking(args.mask, min_coverage, args.keep_white_matter, surfaces)
    if args.dry_run:
        print(*plan_preparation(seen, in_words(model_from(args))), sep="\n")
    # All at once, and before hours are spent on those who have none.
    refuse([*problems, *seen.problems])
    if not args.dry_run:
        _prepare_and_fit(args, by_participant(runs), masking, how)


def _prepare_and_fit(
    args: argparse.Namespace, found: dict[str, list[FoundRun]], masking: Masking, how: Preparation
) -> None:
    out = Path(args.out)
    if out.exists() and not (out / "dataset_description.json").exists() and any(out.glob("[!.]*")):
        raise OutputError(f"{out} exists and is not an output of ntfa bids; choose another folder for the results")
    describe_dataset(out, Path(args.bids_dir))
    n_written = prepare_all(out, Path(args.bids_dir), found, masking, how, args.n_jobs)
    if args.level == "group":
        args.out = str(out / args.model)
        with fitting_to(Path(args.out)):
            fit_group(out, found, masking, how, args)
        # Somebody may have removed OUT while the fit ran; results alone would not be taken for ours.
        describe_dataset(out, Path(args.bids_dir))
        return
    warn_of_losses(join_tables(prepared_quality(out, participant) for participant in found))
    if not n_written:
        print(f"All {len(found)} participants are up to date in {out}: nothing to do.")


def by_participant(found: list[FoundRun]) -> dict[str, list[FoundRun]]:
    """Group runs by participant."""
    grouped: dict[str, list[FoundRun]] = {}
    for one in found:
        grouped.setdefault(one.run.participant, []).append(one)
    return grouped


def prepare_all(
    out: Path, bids_dir: Path, found: dict[str, list[FoundRun]], masking: Masking, how: Preparation, n_jobs: int
) -> int:
    """Prepare all participants, and count those who were not up to date.

    Those who fail are named at the end, the others are prepared all the same.
    """
    work = (delayed(try_to_prepare)(out, bids_dir, runs, masking, how) for runs in found.values())
    failed, of_disk, n_written = [], 0, 0
    with stage("Preparing participants", len(found)) as one_more:
        for participant, outcome in zip(found, Parallel(n_jobs=n_jobs, return_as="generator")(work), strict=True):
            one_more()
            n_written += outcome.written
            _report_outcome(participant, outcome)
            if outcome.problem:
                failed.append(Problem(participant, f"{participant}: {outcome.problem}"))
                of_disk += outcome.is_of_disk
    if failed and of_disk == len(failed):
        raise OutputError(f"{of_disk} of {len(found)} participants could not be written. {failed[0].text}")
    if failed:
        raise StudyError(f"{len(failed)} of {len(found)} participants could not be prepared. {listed(failed)}")
    return n_written


def _report_outcome(participant: str, outcome: Outcome) -> None:
    """Log how preparing a participant went."""
    for warning in outcome.warnings:
        logger.warning("%s", warning)
    if outcome.problem:
        logger.error("%s failed: %s", participant, outcome.problem)
    else:
        logger.info("%s: %s", participant, "prepared" if outcome.written else "up to date")


def fit_group(
    out: Path, found: dict[str, list[FoundRun]], masking: Masking, how: Preparation, args: argparse.Namespace
) -> None:
    """Assemble the prepared participants and fit a model to them; results go to OUT/MODEL."""
    study_folder = Path(args.work_dir or out) / "study"
    model = model_from(args)
    inputs = {**prepared_state(out, sorted(found)), "min_coverage": str(masking.min_coverage)}
    if not args.overwrite and holds_fit_to(Path(args.out), model, inputs):
        print(f"{args.out} is complete already, fitted with these settings to these data: nothing to do.")
        return
    if is_complete(Path(args.out), model, args):
        print(f"{args.out} is complete already; nothing to resume.")
        return
    runs = [one for participant in sorted(found) for one in found[participant]]
    provenance = describe_runs(
        runs, how, given_mask=masking.mask, min_coverage=masking.min_coverage, keep_white=masking.keep_white_matter
    )
    with only_writer(study_folder), stage("Assembling the study"):
        quality = assemble_to_disk(out, sorted(found), study_folder, provenance, masking.min_coverage)
        study = Study.open(study_folder)
    lost = int(quality["frames"].sum() - quality["frames_kept"].sum())
    note = (
        f"{len(quality)} runs were prepared: {int(quality['trial_frames'].sum()):,} trial frames, "
        f"{int(quality['rest_frames'].sum()):,} rest frames, {lost:,} frames discarded."
    )
    name = Path(args.bids_dir).resolve().name
    fit_to_folder(model, study, args, lambda: [note], quality=quality, study_name=name, inputs=inputs)
    from ntfa.report.words import fit_in_words

    print(*fit_in_words(model), note, f"Report: {Path(args.out) / 'report.html'}", sep="\n")


def plan_preparation(seen: Survey, factors: str) -> list[str]:
    """Say what would be done: runs, trials, stimuli, rest frames, design and memory, from headers and events alone."""
    table, stimuli = seen.runs, sorted(set(seen.trials.get("stimulus", ())))
    if table.empty:
        return ["No run can be prepared."]
    # A brain fills about a quarter of the box it is imaged in.
    in_brain = 0.25 * table["voxels_in_image"].max()
    size = size_in_words(4 * table["trial_frames"].sum() * in_brain)
    return [
        table.drop(columns="voxels_in_image").to_string(index=False),
        f"{table['participant'].nunique()} participants, {len(table)} runs, {table['trials'].sum()} trials of "
        f"{len(stimuli)} stimuli: {some(stimuli, 12)}",
        f"about {size} of trial frames, on disk and for a fit with {factors} (a rough estimate: the mask is not "
        "known yet)",
        *notes_on_design(seen.trials),
    ]


def selection_from(args: argparse.Namespace) -> Selection:
    """Read which runs the options ask for."""
    filters = read_filters(args.bids_filter_file) if args.bids_filter_file else {}
    if others := ignored(filters):
        logger.info("%s: %s ignored; ntfa bids looks for %s", args.bids_filter_file, ", ".join(others), ", ".join(USED))
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
        args.exclude_participant,
        args.den,
    )


def preparation_from(args: argparse.Namespace) -> Preparation:
    """Read how the options ask for runs to be prepared."""
    names = (
        "stimulus_column category_column rest include_rest ignore delay trial_duration merge_gap standardize "
        "min_rest_frames smoothing_fwhm high_pass other_grid"
    )
    return Preparation(**{name: getattr(args, name) for name in names.split()})
