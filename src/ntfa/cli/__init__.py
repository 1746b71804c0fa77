"""The command line. Only argument parsing is imported here, so that `ntfa --help` answers at once."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from ntfa.cli.numbers import count, counts, dimensions, number, seed, smoothness
from ntfa.cli.starting import importing
from ntfa.cli.surfaces import add_surface_options
from ntfa.cli.warnings_in_words import warnings_in_words
from ntfa.errors import Interrupted, NTFAError
from ntfa.progress import stage
from ntfa.version import __version__

LIKE = ("synthetic", "haxby", "lepping", "threatvids", "woo", "mdtb")
MODELS = ("ntfa", "htfa", "tfa", "tlsa")
UNCERTAINTY = ("calibrated", "laplace", "mean-field")
BLOCKS = ("trial", "participant")
SPINS = ("GOMP_SPINCOUNT", "1000")
"""How long a thread of PyTorch keeps a core busy while it waits for another: a 300th of what is usual."""
PARTS = ("generalisation", "embeddings", "predictions", "mvpa", "connectivity", "reproducibility")

GREETING = f"""\
NTFA {__version__}: how participants and stimuli differ in fMRI, with uncertainty.

  ntfa demo                     try it: simulate a small study, fit it, write a report
  ntfa bids BIDS_DIR OUT group  your own data: from fMRIPrep's images to a report
  ntfa maps OUT FILE ...        betas or contrasts that were estimated before, NIfTI or CIFTI
  ntfa fit STUDY OUT            fit a study that was prepared or saved before

ntfa COMMAND --help has the options of a command, and ntfa --help the other commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0 if done, 1 for an error of ours, 2 for wrong usage, 128 + signal if told to stop."""
    if not (sys.argv[1:] if argv is None else argv):
        print(GREETING)
        return 0
    args = parser().parse_args(argv)
    args.command_line = ["ntfa", *(sys.argv[1:] if argv is None else argv)]
    # Read when torch is imported. Where others use the cores, threads would wait for each other most of the time.
    os.environ.setdefault(*SPINS)
    level = logging.WARNING if args.quiet else logging.DEBUG if args.verbose else logging.INFO
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("ntfa").setLevel(level)
    try:
        with stage("Starting"), importing(own_process=argv is None):
            command = import_module(f"ntfa.cli.{args.command}")
        with warnings_in_words():
            command.run(args)
    except Interrupted as stop:
        print(f"ntfa: {stop}", file=sys.stderr)
        if hasattr(args, "model"):
            print(f"Resume with: {shlex.join(_resume(args.command_line))}", file=sys.stderr)
        return 128 + stop.signal_number
    except (NTFAError, OSError) as error:
        print(f"ntfa: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ntfa: interrupted", file=sys.stderr)
        return 130
    return 0


def _resume(command_line: list[str]) -> list[str]:
    return command_line if "--resume" in command_line else [*command_line, "--resume"]


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(
        prog="ntfa", description="Neural Topographic Factor Analysis: how participants and stimuli differ in fMRI."
    )
    top.add_argument("--version", action="version", version=f"ntfa {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_demo(commands.add_parser("demo", help="simulate a small study, fit NTFA to it, write a report"))
    _add_simulate(commands.add_parser("simulate", help="simulate a study with known ground truth"))
    _add_fit(commands.add_parser("fit", help="fit a model to a saved study"))
    _add_choose(commands.add_parser("choose", help="say how many factors and dimensions a saved study supports"))
    _add_bids(commands.add_parser("bids", help="BIDS App: prepare a BIDS dataset and fit a model to it"))
    _add_maps(
        commands.add_parser("maps", help="fit a model to maps estimated before: betas or contrasts, NIfTI or CIFTI")
    )
    _add_compare(commands.add_parser("compare", help="compare models on a saved study, as in the paper"))
    _add_contrast(commands.add_parser("contrast", help="how responses differ between two sets of people and stimuli"))
    _add_add(commands.add_parser("add", help="add new participants, stimuli or sessions to a fitted model"))
    _add_report(commands.add_parser("report", help="write the report of a fit or a comparison again"))
    _add_test(commands.add_parser("test", help="test whether embeddings go with a diagnosis, a trait or a rating"))
    return top


def _add_output(
    command: argparse.ArgumentParser,
    what: str,
    overwrite: str = "replace OUT if it exists, once the new one is complete",
    optional: str = "",
) -> None:
    help_text = f"folder to write {what} to {optional}".rstrip()
    command.add_argument("out", metavar="OUT", nargs="?" if optional else None, help=help_text)
    command.add_argument("--overwrite", action="store_true", help=overwrite)
    command.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    command.add_argument("-v", "--verbose", action="store_true", help="show details of what is done")


def _add_demo(command: argparse.ArgumentParser) -> None:
    _add_output(command, "the results", optional="(default: ntfa-demo, or if that is there ntfa-demo-2, ...)")
    command.add_argument("--seed", type=seed, default=2, help="seed of simulation and fit (default: 2)")


def _add_simulate(command: argparse.ArgumentParser) -> None:
    _add_output(command, "the study")
    command.add_argument(
        "--like", choices=LIKE, default="synthetic", help="which study to simulate (default: synthetic)"
    )
    for option, metavar, text in (
        ("participants", "P", "number of participants"),
        ("stimuli", "S", "number of stimuli"),
        ("frames", "T", "frames per trial"),
        ("voxels", "V", "number of voxels"),
        ("factors", "K", "number of factors"),
        ("runs", "R", "number of runs per participant"),
    ):
        command.add_argument(f"--{option}", type=count, metavar=metavar, help=f"{text} (default: that of the study)")
    command.add_argument("--seed", type=seed, default=0, help="(default: 0)")
    command.add_argument(
        "--bids", action="store_true", help="write a BIDS dataset with derivatives like fMRIPrep's instead of a study"
    )
    command.add_argument("--t-r", type=float, metavar="SECONDS", help="repetition time, --bids only (default: 2.0)")
    _add_realism(command.add_argument_group("woo and mdtb", "Studies as hard as real ones (default: as measured)."))


def _add_realism(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    for option, text in (
        ("mean-share", "share of the variance of a frame: the group's mean response to all stimuli"),
        ("stimulus-share", "share: what the group's response to a stimulus has in addition"),
        ("individual-mean-share", "share: what a participant's mean response has in addition to the group's"),
        ("individual-share", "share: what a participant's response to a stimulus has in addition to the group's"),
        ("feature-decay", "share of each dimension of the group's responses relative to the one before"),
        ("individual-decay", "the same of what participants have in addition"),
        ("category-share", "how much stimuli of one category have in common"),
        ("noise-ar1", "correlation of noise from one frame to the next"),
        ("noise-spread", "standard deviation over participants of the log of their noise level"),
    ):
        add(f"--{option}", type=float, metavar="X", help=text)
    add("--n-features", type=count, metavar="R", help="dimensions of the responses, fewer than stimuli")
    for option, text in (
        ("response-fwhm", "smoothness of the group's responses: mm, or several and their shares, as in 10:0.8,100:0.2"),
        ("individual-fwhm", "the same of what participants have in addition"),
        ("noise-fwhm", "the same of noise"),
    ):
        add(f"--{option}", type=smoothness, metavar="MM", help=text)


def _add_fit(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", metavar="STUDY", help="folder of a saved study")
    _add_output(command, "the results")
    command.add_argument("--dry-run", action="store_true", help="show size, memory and time of the fit, then stop")
    config = "take model and settings from the config.json of an earlier fit; options given here take precedence"
    command.add_argument("--config", metavar="FILE", help=config)
    _add_model(command)


class _Setting(argparse.Action):
    """Stores a setting of the model, and notes that it was given: it then takes precedence over --config."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = [*getattr(namespace, "given", ()), self.dest]


def _add_min_coverage(add: Callable[..., Any]) -> None:
    text = "of the subjects who must have a voxel; in others it counts as unseen, not as zero (default: 0.5)"
    add("--min-coverage", type=float, default=0.5, metavar="SHARE", help=text)


def _add_model(command: argparse.ArgumentParser) -> None:
    """Options of every command that fits a model."""
    group = command.add_argument_group("model and fit")
    add = partial(group.add_argument, action=_Setting)
    add("--model", choices=MODELS, default="ntfa", help="(default: ntfa)")
    how_many = "number of factors, or auto: as many as the data support (default: auto for ntfa, else 100)"
    add("--n-factors", type=number, metavar="K", help=how_many)
    dims = "dimensions of embeddings, ntfa only: a number, two as in 2,8 (people, stimuli), or auto (default: auto)"
    add("--embedding-dim", type=dimensions, metavar="D", help=dims)
    responses = "how people differ, ntfa only: in loadings, or in places too by the paper's networks (default: auto)"
    add("--response", choices=("auto", "loadings", "network"), help=responses)
    add("--uncertainty", choices=UNCERTAINTY, help="of embeddings and factors, ntfa only (default: calibrated)")
    add("--block", choices=BLOCKS, help="unit with its own factors, htfa and tfa (default: participant)")
    add("--design", nargs="+", metavar="COLUMN", help="columns of the trials to regress on, tlsa (default: stimulus)")
    add("--inference", choices=("collapsed", "mean-field"), default="collapsed", help="(default: collapsed)")
    add("--init", choices=("pursuit", "kmeans"), default="pursuit", help="initial factors (default: pursuit)")
    add("--noise", choices=("same", "voxel"), default="same", help="one noise sd, or one per voxel (default: same)")
    add("--frames", choices=("robust", "equal"), default="robust", help="spoiled ones count less (default: robust)")
    add("--schedule", choices=("one-cycle", "paper"), default="one-cycle", help="learning rates (default: one-cycle)")
    add("--max-epochs", type=count, default=1000, help="maximum number of steps (default: 1000)")
    add("--n-particles", type=count, default=1, help="particles of the importance-weighted bound (default: 1)")
    add("--n-restarts", type=count, default=1, help="random starts, of which the best is kept (default: 1)")
    add(
        "--coarse",
        choices=("auto", "always", "never"),
        default="auto",
        help="pool voxels in the first steps (default: auto)",
    )
    add("--memory", metavar="SIZE", help="limit, such as 2GB: frames are then read from disk (default: none)")
    add("--seed", type=seed, default=0, help="(default: 0)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default: auto)")
    group.add_argument("--resume", action="store_true", help="resume a fit that was interrupted")
    group.add_argument("--force", action="store_true", help="fit even if memory is estimated to be too small")
    group.add_argument(
        "--images", action="store_true", help="also write every participant's factors and predictions as NIfTI images"
    )
    _add_atlas(group)


def _add_atlas(group: argparse._ActionsContainer) -> None:
    """Options of every command that writes the report of a fit."""
    group.add_argument("--atlas", metavar="IMAGE", help="image of labels, in the space of the study: names regions")
    labels = "table with columns index and name (default: the .tsv beside IMAGE)"
    group.add_argument("--atlas-labels", metavar="TSV", help=labels)


def _add_choose(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", metavar="STUDY", help="folder of a saved study")
    command.add_argument("out", metavar="OUT", help="folder for table and curve; trials that it has are not run again")
    add = command.add_argument
    numbers = "numbers of factors to try, as in 5,10,20,40 (default: around what pursuit suggests)"
    add("--n-factors", type=counts, metavar="K,...", help=numbers)
    add("--embedding-dim", type=counts, metavar="D,...", help="dimensions to try (default: 1,2,4,8)")
    add("--response", choices=("auto", "loadings", "network"), default="auto", help="as in ntfa fit (default: auto)")
    folds = "folds of left-out pairs, each with a seed of its own (default: 4)"
    add("--folds", type=count, default=4, choices=(2, 3, 4), help=folds)
    add("--n-jobs", type=count, default=1, metavar="N", help="trials run in parallel (default: 1)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default: auto)")
    add("-q", "--quiet", action="store_true", help="show no progress")
    add("-v", "--verbose", action="store_true", help="show details of what is done")


def _add_compare(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", metavar="STUDY", help="folder of a saved study")
    _add_output(command, "tables and figures", "remove an existing comparison at OUT, and start again")
    add = command.add_argument
    add("--parts", nargs="+", choices=PARTS, help="parts to run (default: all); completed parts are not run again")
    add("--n-factors", type=count, default=100, metavar="K", help="factors and components (default: 100)")
    add("--embedding-dim", type=dimensions, default="auto", metavar="D", help="as in ntfa fit (default: auto)")
    add("--n-features", type=count, help="features of the shared response, SRM and MN-SRM (default: K, at most 10)")
    add("--max-epochs", type=count, default=1000, help="maximum number of steps of a fit (default: 1000)")
    add("--n-samples", type=count, default=100, metavar="L", help="samples per log predictive density (default: 100)")
    add("--htfa-block", choices=BLOCKS, default="trial", help="unit that HTFA estimates factors for (default: trial)")
    add("--category", metavar="COLUMN", help="labels to classify (default: category if there is one, else stimulus)")
    add("--run", default="run", metavar="COLUMN", help="left out one at a time in cross-validation (default: run)")
    add(
        "--across",
        choices=("trials", "participants", "both"),
        default="trials",
        help="left out in each fold (default: trials)",
    )
    add("--participant-labels", nargs="+", metavar="COLUMN", help="labels that group participants (default: all)")
    add("--stimulus-labels", nargs="+", metavar="COLUMN", help="labels that group stimuli (default: all)")
    add("--refit-per-fold", action="store_true", help="fit models again to the training trials of each fold")
    add("--atlas", choices=("power", "seitzman"), default="power", help="regions for connectivity (default: power)")
    add("--n-halvings", type=count, default=4, metavar="N", help="of people, trials, stimuli; 6 N fits (default: 4)")
    add("--seed", type=seed, default=0, help="(default: 0)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default: auto)")
    add("--n-jobs", type=count, default=2, metavar="N", help="processes for fits and cross-validation (default: 2)")


def _add_add(command: argparse.ArgumentParser) -> None:
    command.add_argument("results", metavar="RESULTS", help="folder of a fit of NTFA, which is not changed")
    command.add_argument("study", metavar="STUDY", help="folder of a saved study with those to be added")
    _add_output(command, "the results, newcomers included,")
    add = command.add_argument
    add("--session", metavar="NAME", help="of participants that the fit has (default: the trials' column session)")
    add("--resample", action="store_true", help="bring a study on another grid onto the voxels of the fit")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default: auto)")


def _add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("out", metavar="OUT", help="folder of a fit or a comparison; its report.html is replaced")
    add = command.add_argument
    add("--study", metavar="STUDY", help="the study that was fitted: labels, and data to compare predictions with")
    add("--held-out", metavar="STUDY", help="a study of held-out trials to compare predictions with")
    add("--images", action="store_true", help="also write factors and predictions as NIfTI images")
    add("--static", action="store_true", help="also write report_static.html, which has no scripts")
    _add_atlas(command)
    add("-q", "--quiet", action="store_true", help="show no progress")
    add("-v", "--verbose", action="store_true", help="show details of what is done")


def _add_contrast(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Difference of the mean predicted maps of two sets of people and stimuli, kept beside the results. A set is "
        "conditions: participant=sub-01,sub-02, stimulus=face, or a column of the labels of either, as in "
        "group=patient, category=face, 'age>=30'. All must hold; write ; between them, or give the option again."
    )
    command.add_argument("results", metavar="RESULTS", help="folder of a fit of NTFA")
    add = command.add_argument
    add("--a", action="append", required=True, metavar="SET", help="the first set, as in stimulus=pain")
    add("--b", action="append", required=True, metavar="SET", help="the second set, which is subtracted")
    add("--only", action="append", default=[], metavar="SET", help="what both have in common, as in group=patient")
    population = "about the population that the people come from (random effects), not these people alone"
    add("--population", action="store_true", help=population)
    add("--alpha", type=float, default=0.05, metavar="RATE", help="false discovery rate (default: 0.05)")
    _add_atlas(command)
    add("--name", help="of the answer's folder (default: made of the sets)")
    add("-q", "--quiet", action="store_true", help="show no progress")
    add("-v", "--verbose", action="store_true", help="show details of what is done")


def _add_test(command: argparse.ArgumentParser) -> None:
    command.add_argument("results", metavar="RESULTS", help="folder of a fit; the answer is added to its report")
    add = command.add_argument
    add("--column", required=True, metavar="NAME", help="what to test: texts are groups, numbers are traits or ratings")
    add(
        "--table",
        metavar="FILE",
        help="TSV or CSV file with the columns (default: labels of the study fitted)",
    )
    add("--of", choices=("participants", "stimuli"), default="participants", help="(default: participants)")
    add("--confound", action="append", default=[], metavar="NAME", help="column to take out first; may be repeated")
    add("--strata", metavar="NAME", help="column that names strata (families, say), within which people are permuted")
    add("--groups", action="store_true", help="numbers in the column stand for groups")
    add("--permutations", type=count, default=4999, metavar="N", help="(default: 4999)")
    add("--draws", type=count, default=1000, metavar="N", help="draws for the interval of R^2 (default: 1000)")
    add("--seed", type=seed, default=0, help="(default: 0)")
    add("-q", "--quiet", action="store_true", help="show no progress")
    add("-v", "--verbose", action="store_true", help="show details of what is done")


def _add_bids(command: argparse.ArgumentParser) -> None:
    command.add_argument("bids_dir", metavar="BIDS_DIR", help="BIDS dataset with the events")
    _add_output(command, "a BIDS derivative and, at the group level, the results")
    levels = "participant: prepare subjects; group: prepare those missing, and fit"
    command.add_argument("level", choices=("participant", "group"), help=levels)
    command.add_argument("--dry-run", action="store_true", help="show runs, trials, memory and time, then stop")
    command.add_argument(
        "--n-jobs", type=int, default=1, metavar="N", help="subjects prepared in parallel (default: 1)"
    )
    command.add_argument("--version", action="version", version=f"ntfa {__version__}")
    command.add_argument("--work-dir", metavar="DIR", help="where to assemble the study (default: OUT)")
    _add_selection(command.add_argument_group("which runs"))
    _add_preparation(command.add_argument_group("preparation"))
    add_surface_options(command)
    _add_model(command)


def _add_maps(command: argparse.ArgumentParser) -> None:
    _add_output(command, "the study and the results")
    files = "4-D NIfTI, dense CIFTI (.dscalar.nii) or GIFTI pairs (hemi-L, hemi-R), one per participant or several"
    command.add_argument("maps", nargs="+", metavar="FILE", help=files)
    group = command.add_argument_group("maps")
    add = group.add_argument
    table = "one row per map, in their order: one for all files, or one each"
    add("--table", nargs="+", required=True, metavar="TSV", help=table)
    add("--participants", nargs="+", metavar="LABEL", help="of each file (default: the sub- of its file name)")
    add("--stimulus-column", default="stimulus", help="column that names each map's stimulus (default: stimulus)")
    add("--run-column", metavar="COLUMN", help="column that names each map's run, if there are several")
    add("--mask", metavar="FILE", help="voxels to use (default: a CIFTI file's own, or nilearn's brain mask)")
    _add_min_coverage(add)
    add("--keep-scale", action="store_true", help="do not divide each participant's maps by their root mean square")
    add("--smoothing-fwhm", type=float, metavar="MM", help="Gaussian smoothing: full width at half maximum")
    add("--other-grid", choices=("refuse", "resample"), default="refuse", help="for images not on the grid of the mask")
    command.add_argument("--dry-run", action="store_true", help="show size, memory and time of the fit, then stop")
    add_surface_options(command)
    _add_model(command)


def _add_selection(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--participant-label", "--participant_label", nargs="+", metavar="LABEL", help="with or without sub-")
    leave_out = ("--exclude-participant", "--exclude-participant-label", "--exclude_participant_label")
    add(*leave_out, nargs="+", metavar="LABEL", help="participants to leave out, with or without sub-")
    add("--session-label", "--session_label", nargs="+", metavar="LABEL", help="with or without ses-")
    add("--task", "--task-id", nargs="+", metavar="LABEL", help="task(s) (default: all)")
    add("--space", help="space of the images; needed if there are several")
    add("--res", help="resolution of the images; needed if there are several")
    add("--den", help="density of images on cortical surfaces (space fsLR or fsaverage...), as in 91k")
    add("--derivatives", metavar="DIR", help="fMRIPrep's output (default: BIDS_DIR/derivatives/fmriprep)")
    add("--bids-filter-file", metavar="FILE", help="JSON with further entities, by bold, mask and confounds")
    add("--bids-database-dir", metavar="DIR", help="where pybids keeps its index between calls")


def _add_preparation(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--stimulus-column", default="trial_type", help="column of the events (default: trial_type)")
    add("--category-column", help="column of the events that names a stimulus' category")
    add("--rest", nargs="+", default=(), metavar="NAME", help="baseline condition(s) to z-score against")
    add("--include-rest", action="store_true", help="also model the baseline as a stimulus")
    add("--ignore", nargs="+", default=(), metavar="NAME", help="condition(s) that are neither stimulus nor baseline")
    add("--delay", type=float, default=3.0, metavar="S", help="haemodynamic delay in seconds (default: 3.0)")
    add("--trial-duration", type=float, metavar="S", help="duration of a trial in s (default: the event's)")
    add("--merge-gap", type=float, metavar="S", help="merge events of one stimulus up to so many s apart")
    add(
        "--standardize", choices=("rest", "run", "none"), default="rest", help="what to z-score against (default: rest)"
    )
    add("--min-rest-frames", type=count, default=10, metavar="N", help="minimum of rest frames per run (default: 10)")
    add("--confounds", choices=("none", "simple", "scrubbing", "compcor"), default="none", help="(default: none)")
    add("--smoothing-fwhm", type=float, metavar="MM", help="Gaussian smoothing: full width at half maximum")
    add("--high-pass", type=float, metavar="HZ", help="cutoff of the high-pass filter")
    add("--mask", metavar="FILE", help="voxels to use (default: brain masks; in MNI space without white matter)")
    add("--keep-white-matter", action="store_true", help="keep white matter in the mask")
    _add_min_coverage(add)
    add("--other-grid", choices=("refuse", "resample"), default="refuse", help="for images not on the grid of the mask")
