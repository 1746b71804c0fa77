"""`ntfa report`: write the report of a fit or a comparison again, from what is in its folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from ntfa.cli.atlas import atlas_from
from ntfa.errors import OutputError
from ntfa.estimators.saving import CONFIG_FILE
from ntfa.progress import stage
from ntfa.study import Study


def run(args: argparse.Namespace) -> None:
    """Find out what is in the folder, and report on it."""
    out = Path(args.out)
    if (out / CONFIG_FILE).is_file():
        _report_fit(out, args)
    else:
        _report_comparison(out, args)
    print(f"Report: {out / 'report.html'}")


def _report_fit(out: Path, args: argparse.Namespace) -> None:
    from ntfa.report.build import load_any, write_report
    from ntfa.report.files import find_quality

    model = load_any(out)
    study, held_out = (Study.open(folder) if folder else None for folder in (args.study, args.held_out))
    quality = find_quality(Path(args.study)) if args.study else None
    with stage("Writing the report"):
        write_report(
            model,
            study,
            out / "report.html",
            quality=quality,
            held_out=held_out,
            all_images=args.images,
            study_name=Path(args.study).resolve().name if args.study else "",
            static=args.static,
            atlas=atlas_from(args),
        )


def _report_comparison(out: Path, args: argparse.Namespace) -> None:
    from ntfa.comparison.report import write_comparison_report
    from ntfa.comparison.run import COMPARISON_FILE

    if not (out / COMPARISON_FILE).is_file():
        raise OutputError(_nothing_in(out, CONFIG_FILE, COMPARISON_FILE))
    for option in ("study", "held_out", "images", "static", "atlas"):
        if getattr(args, option):
            raise OutputError(f"--{option.replace('_', '-')} goes with the folder of a fit; {out} holds a comparison")
    write_comparison_report(out)


def _nothing_in(out: Path, of_fit: str, of_comparison: str) -> str:
    if not out.is_dir():
        return f"{out} is not a folder"
    inside = sorted(path.parent.name for file in (of_fit, of_comparison) for path in out.glob(f"*/{file}"))
    hint = f"; did you mean {out / inside[0]}?" if inside else ""
    return f"{out} holds neither a fit ({of_fit}) nor a comparison ({of_comparison}){hint}"
