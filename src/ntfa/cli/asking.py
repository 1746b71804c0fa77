"""What commands that ask something of a fitted model share: reading it, keeping the answer, showing it."""

from __future__ import annotations

from pathlib import Path

from ntfa.errors import OutputError
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.saving import CONFIG_FILE
from ntfa.progress import stage
from ntfa.report.answers import Answer, write_answer
from ntfa.report.build import load_any, write_report


def open_results(folder: Path) -> TopographicModel:
    """Read the fitted model in a folder of results."""
    if not (folder / CONFIG_FILE).is_file():
        inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG_FILE}")) if folder.is_dir() else []
        hint = f"; did you mean {inside[0]}?" if inside else ""
        raise OutputError(f"{folder} holds no results of a fit (no {CONFIG_FILE}){hint}")
    return load_any(folder)


def keep_answer(folder: Path, model: TopographicModel, answer: Answer) -> None:
    """Write an answer beside the results, put it into their report, and print what it says."""
    kept = write_answer(folder, answer)
    with stage("Writing the report"):
        write_report(model, None, folder / "report.html")
    for sentence in [*answer.sentences, *answer.cautions]:
        print(sentence)
    print(f"Tables and figures: {kept}")
    print(f"Report: {folder / 'report.html'}")
