"""`ntfa fit`: fit a model to a saved study."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ntfa.cli.processes import joined
from ntfa.cli.results import checkpoint_folder, fit_to_folder, fitting_to, is_complete
from ntfa.errors import ModelError
from ntfa.estimators import MODELS
from ntfa.estimators.base import TopographicModel
from ntfa.inference.processes import Processes
from ntfa.study import Study

logger = logging.getLogger("ntfa")


def run(args: argparse.Namespace) -> None:
    """Fit and write; of several processes the first one writes."""
    said = []
    if args.config:
        from ntfa.cli.config import take_config

        said = take_config(args)
    if args.dry_run:
        from ntfa.cli.planning import plan_fit

        print(*said, *plan_fit(Study.open(args.study), model_from(args)), sep="\n")
        return
    with joined(args) as processes:
        if processes.is_first:
            for sentence in said:
                logger.info("%s", sentence)
            with fitting_to(Path(args.out)):
                _run(args, processes)
        else:
            _take_part(args, processes)


def _run(args: argparse.Namespace, processes: Processes) -> None:
    out, model = Path(args.out), model_from(args)
    if processes.any(is_complete(out, model, args)):
        print(f"{out} is complete already; nothing to resume.")
        return
    from ntfa.report.files import find_quality
    from ntfa.report.words import fit_in_words

    study = Path(args.study)
    fit_to_folder(model, Study.open(study), args, quality=find_quality(study), study_name=name_of(study))
    print(*fit_in_words(model), f"Report: {out / 'report.html'}", sep="\n")


def name_of(study: Path) -> str:
    """Call a study by its folder; one that `ntfa bids` prepared by the folder of the dataset that it is in."""
    folder = study.resolve()
    inside = folder.name == "study" and (folder.parent / "dataset_description.json").exists()
    return folder.parent.name if inside else folder.name


def _take_part(args: argparse.Namespace, processes: Processes) -> None:
    """Do what a process after the first does: its share of the fit."""
    if not processes.any(False):
        model_from(args).fit(Study.open(args.study), checkpoint=checkpoint_folder(Path(args.out)))


def model_from(args: argparse.Namespace) -> TopographicModel:
    """Make the estimator that the options describe."""
    names = ("embedding_dim", "response", "uncertainty", "block", "design")
    special = {name: value for name in names if (value := getattr(args, name)) is not None}
    kind = MODELS[args.model]
    for name in special:
        if name not in kind().get_params():
            raise ModelError(f"--{name.replace('_', '-')} does not apply to --model {args.model}")
    shared = {name: getattr(args, name) for name in TopographicModel().get_params() if hasattr(args, name)}
    if shared["n_factors"] is None:
        shared["n_factors"] = kind().n_factors
    return kind(**shared | special | {"random_state": args.seed, "verbose": 0 if args.quiet else 1})
