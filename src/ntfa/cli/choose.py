"""`ntfa choose`: try numbers of factors and of dimensions, and say which the data support."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

from ntfa.cli.stopping import writing_alone
from ntfa.comparison.choice import Chosen, Question, choose_settings
from ntfa.errors import OutputError
from ntfa.estimators.saving import versions
from ntfa.plots.choice import plot_tried
from ntfa.progress import stage
from ntfa.study import Study

CHOICE_FILE, TABLE_FILE = "choice.json", "choice.tsv"


def run(args: argparse.Namespace) -> None:
    """Choose and write; trials that are in OUT already are not run again."""
    out = Path(args.out)
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is not a folder; choose another place")
    foreign = [path.name for path in out.iterdir()] if out.is_dir() else []
    if foreign and not (out / "trials").is_dir():
        raise OutputError(f"{out} holds something else ({foreign[0]}); choose another folder")
    question = Question(
        Study.open(args.study),
        args.n_factors,
        args.embedding_dim,
        args.response,
        args.folds,
        args.device,
    )
    with writing_alone(out):
        with stage("Trying numbers of factors and dimensions"):
            chosen = choose_settings(question, out, args.n_jobs)
        write_choice(out, chosen, args.command_line)
    print(chosen.sentence)
    print(f"Table and curve: {out / TABLE_FILE}, {out / 'choice.png'}")
    dims = ",".join(map(str, chosen.dims))
    settings = f"--n-factors {chosen.n_factors} --embedding-dim {dims} --response {chosen.response}"
    print(f"To fit it: ntfa fit {args.study} RESULTS {settings}")


def write_choice(out: Path, chosen: Chosen, command: list[str]) -> None:
    """Write the table, the curve and what was chosen."""
    chosen.tried.to_csv(out / TABLE_FILE, sep="\t", index=False, na_rep="n/a", float_format="%.6g")
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    plot_tried(chosen.tried, figure=figure)
    for suffix in ("png", "svg"):
        figure.savefig(out / f"choice.{suffix}", dpi=150)
    content = {
        "n_factors": chosen.n_factors,
        "embedding_dim": list(chosen.dims),
        "response": chosen.response,
        "sentence": chosen.sentence,
        "command": command,
        "versions": versions(),
    }
    (out / CHOICE_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
