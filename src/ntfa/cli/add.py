"""`ntfa add`: add new participants, stimuli or sessions to a fitted model."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from ntfa.analyses.labels import label_table
from ntfa.cli.asking import open_results
from ntfa.cli.processes import joined
from ntfa.cli.stopping import writing_alone
from ntfa.errors import ModelError
from ntfa.estimators.newcomers import SESSION_OF
from ntfa.estimators.ntfa import NTFA
from ntfa.estimators.saving import CONFIG_FILE, write_model
from ntfa.estimators.settings import resolve_device
from ntfa.files.folders import refuse_existing, write_folder
from ntfa.progress import stage
from ntfa.study import Study


def run(args: argparse.Namespace) -> None:
    """Add and write; of several processes the first one writes."""
    with joined(args) as processes:
        if processes.is_first:
            with writing_alone(Path(args.out)):
                refuse_existing(Path(args.out), args.overwrite, CONFIG_FILE)
                _write(_added(args), args)
        else:
            _added(args)


def _added(args: argparse.Namespace) -> NTFA:
    known = open_results(Path(args.results))
    if not isinstance(known, NTFA):
        raise ModelError(f"{args.results} holds {type(known).__name__}, which has no embeddings to add to; fit NTFA")
    if resolve_device(args.device).type != "cpu":
        known = NTFA.load(args.results, args.device)
    return known.add(Study.open(args.study), session=args.session, resample=args.resample)


def _write(model: NTFA, args: argparse.Namespace) -> None:
    # Pictures take seconds to import; of several processes one draws them.
    from ntfa.report.build import write_report
    from ntfa.report.files import write_labels
    from ntfa.report.newcomers import newcomers_in_words

    out = Path(args.out)
    with write_folder(out, args.overwrite, CONFIG_FILE) as folder:
        write_model(model, folder, args.command_line)
        write_labels(folder, _labels(model, args))
        with stage("Writing the report"):
            write_report(model, None, folder / "report.html", command=args.command_line)
    for sentence in newcomers_in_words(model.newcomers_, model.retests_):
        print(sentence)
    print(f"Report: {out / 'report.html'}")


def _labels(model: NTFA, args: argparse.Namespace) -> dict[str, pd.DataFrame]:
    """Labels of all that the model knows: those kept beside the fit, and those of the study that was added.

    Another session of a participant has the labels of the first.
    """
    from ntfa.report.files import read_labels

    known, study = model._require_fitted().labels, Study.open(args.study)
    session_of = model.participants_.attrs[SESSION_OF]
    found = {}
    for kind, labels in (("participant", known.participants), ("stimulus", known.stimuli)):
        tables = [read_labels(Path(args.results), kind), label_table(study, kind)]
        table = pd.concat([table for table in tables if table is not None])
        table = table[~table.index.duplicated()].reindex([session_of.get(label, label) for label in labels])
        found[kind] = table.set_axis(pd.Index(labels, name=kind))
    return found
