"""`ntfa test`: test whether embeddings go with a column, and add the answer to the report."""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.figure import Figure

from ntfa.analyses.columns import LABEL_FILES
from ntfa.analyses.traits import ColumnTest, test
from ntfa.cli.asking import keep_answer, open_results
from ntfa.errors import StudyError
from ntfa.progress import stage
from ntfa.report.answers import Answer

KINDS = {"participants": "participant", "stimuli": "stimulus"}
TABLE_CAPTION = (
    "statistic: F, or a rank correlation over pairs; p_adjusted: by Holm's method; r2, r2_low, r2_high: share of "
    "variance explained if embeddings were known exactly, with 95% interval; r2_chance: expected where there is no "
    "relation; r2_means: that of the estimates."
)


def run(args: argparse.Namespace) -> None:
    """Test, write the answer beside the results, and print it."""
    results, kind = Path(args.results), KINDS[args.of]
    model = open_results(results)
    table = results / LABEL_FILES[kind] if args.table is None else Path(args.table)
    if args.table is None and not table.exists():
        raise StudyError(f"{results} has no {table.name}: give a table with the column {args.column!r} (--table FILE)")
    with stage("Permuting"):
        found = test(
            model,
            args.column,
            table=table,
            kind=kind,
            confounds=args.confound,
            strata=args.strata,
            groups=args.groups,
            n_permutations=args.permutations,
            n_draws=args.draws,
            random_state=args.seed,
        )
    keep_answer(results, model, _answer(found, args))


def _answer(found: ColumnTest, args: argparse.Namespace) -> Answer:
    taken = f" with {', '.join(args.confound)} taken out" if args.confound else ""
    within = f" within {args.strata}" if args.strata else ""
    # Asked with other confounds it is another question, which must not take the place of the first.
    parts = ["test", args.of, args.column, *args.confound, *([args.strata] if args.strata else [])]
    return Answer(
        name="-".join([*parts, *(["groups"] if args.groups else [])]),
        title=f"Do embeddings of {args.of} go with {found.column}{taken}{within}?",
        sentences=[found.sentence],
        cautions=found.cautions,
        tables={"tests": (found.table.round(4), TABLE_CAPTION)},
        figures={"embeddings": (_figure(found), _caption(found, args))},
        command=args.command_line,
    )


def _figure(found: ColumnTest) -> Figure:
    figure = Figure(figsize=(6.5, 5.0), layout="constrained")
    found.plot(ax=figure.subplots())
    return figure


def _caption(found: ColumnTest, args: argparse.Namespace) -> str:
    text = f"Embeddings of {args.of}, coloured by {found.column}"
    numeric = found.values.dtype != object
    marks = "an arrow from low to high values" if numeric else "diamonds at the centres of groups"
    if "z2" not in found.embeddings:
        marks = "a regression line" if numeric else "lines at the means of groups"
    return f"{text}, with {marks}{'; confounds are not taken out of the picture' if args.confound else ''}."
