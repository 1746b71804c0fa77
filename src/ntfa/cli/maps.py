"""`ntfa maps`: from files of estimated maps, NIfTI, CIFTI or GIFTI, to a study and a model fitted to it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from ntfa.cli.atlas import atlas_from
from ntfa.cli.fit import model_from
from ntfa.cli.planning import plan_fit
from ntfa.cli.results import fit_to_folder, fitting_to, holds_fit_to, is_complete
from ntfa.cli.stopping import stopping_cleanly
from ntfa.cli.surfaces import files_from, paired
from ntfa.errors import OutputError
from ntfa.files.folders import only_writer
from ntfa.progress import stage
from ntfa.study import Study


def run(args: argparse.Namespace) -> None:
    """Read maps, keep them as OUT/study, fit to OUT/MODEL."""
    with stopping_cleanly():
        atlas_from(args)
        out = Path(args.out)
        if out.exists() and not (out / "study").exists() and any(out.glob("[!.]*")):
            raise OutputError(f"{out} exists and is not an output of ntfa maps; choose another folder for the results")
        inputs = _inputs(args)
        if not (args.dry_run or args.overwrite) and holds_fit_to(out / args.model, model_from(args), inputs):
            print(f"{out / args.model} is complete already, fitted with these settings to these maps: nothing to do.")
            return
        with stage("Reading maps"):
            study = _study_from(args)
        if args.dry_run:
            print(*plan_fit(study, model_from(args)), sep="\n")
            return
        args.out = str(out / args.model)
        with fitting_to(Path(args.out)):
            _fit(study, out, args, inputs)


def _inputs(args: argparse.Namespace) -> dict[str, str]:
    """Say what a study is made from: files, by size and time, and options."""
    files = [Path(path) for path in (*args.maps, *args.table, args.mask) if path is not None]
    options = ("participants", "stimulus_column", "run_column", "keep_scale", "smoothing_fwhm", "other_grid")
    states = {str(path): path.stat() for path in files if path.is_file()}
    return {
        **{path: f"{state.st_size} bytes, {state.st_mtime_ns}" for path, state in states.items()},
        **{name: str(getattr(args, name)) for name in options},
    }


def _study_from(args: argparse.Namespace) -> Study:
    files = files_from(args)
    return Study.from_maps(
        paired(args.maps),
        args.table[0] if len(args.table) == 1 else args.table,
        args.participants,
        args.mask,
        stimulus_column=args.stimulus_column,
        run_column=args.run_column,
        scale=not args.keep_scale,
        surfaces=files.open(),
        surface_distance=files.distance,
        min_coverage=args.min_coverage,
        smoothing_fwhm=args.smoothing_fwhm,
        other_grid=args.other_grid,
    )


def _fit(study: Study, out: Path, args: argparse.Namespace, inputs: Mapping[str, str]) -> None:
    model = model_from(args)
    if is_complete(Path(args.out), model, args):
        print(f"{args.out} is complete already; nothing to resume.")
        return
    folder = out / "study"
    with only_writer(folder), stage("Writing the study"):
        study.save(folder, overwrite=True)
    fit_to_folder(model, Study.open(folder), args, study_name=out.resolve().name, inputs=inputs)
    from ntfa.report.words import fit_in_words

    print(*fit_in_words(model), f"Report: {Path(args.out) / 'report.html'}", sep="\n")
