"""The report of a comparison, made from the tables and figures that its parts wrote."""

from __future__ import annotations

import io
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ntfa.comparison import PARTS
from ntfa.comparison.run import COMPARISON_FILE, PART_FILE
from ntfa.comparison.words import comparison_in_words
from ntfa.errors import OutputError
from ntfa.estimators.saving import versions
from ntfa.files.reading import read_json, reading, refuse_links, table_text
from ntfa.report.citations import references
from ntfa.report.figures import Picture
from ntfa.report.files import describe
from ntfa.report.page import Table, render

NOT_POSSIBLE = "not_possible.txt"
BASELINES = (
    "Chen, P.-H., Chen, J., Yeshurun, Y., Hasson, U., Haxby, J., & Ramadge, P. J. (2015). A reduced-dimension fMRI "
    "shared response model. Advances in Neural Information Processing Systems, 28.",
    "Shvartsman, M., Sundaram, N., Aoi, M., Charles, A., Willke, T., & Cohen, J. (2018). Matrix-normal models for fMRI "
    "analysis. International Conference on Artificial Intelligence and Statistics.",
)


@dataclass(frozen=True)
class Part:
    """How one part of a comparison is shown: its title, what it is about, its tables by file, captions by figure."""

    title: str
    about: str
    tables: dict[str, str]
    figures: dict[str, str]


AUC = "Areas under the curve of every set of features, with 95% confidence intervals; 0.5 is chance."
SHOWN = {
    "generalisation": Part(
        "Held-out trials",
        "How probable each model makes trials that it was not fitted to, and how far its predicted images are off.",
        {"table.tsv": "Every method", "differences.tsv": "NTFA less each other method, nats per observation"},
        {"log_predictive": "Log predictive density of held-out trials; whiskers are 1.96 standard errors."},
    ),
    "embeddings": Part(
        "Embeddings",
        "Points for participants and stimuli from every method that has them, and whether they show known groups.",
        {"separation.tsv": "How well points show known groups"},
        {"participants": "Participants, by every method.", "stimuli": "Stimuli, by every method."},
    ),
    "predictions": Part(
        "Predicted images",
        "Held-out images beside what the models predict for them, at the quartiles of NTFA's correlation.",
        {
            "summary.tsv": "Correlation of predicted with held-out images",
            "additive.tsv": "Error over that of no image, against additive predictions, with the gain's 95% interval",
            "interaction.tsv": "Shares of the variance of mean responses: stimulus, person, and both together",
            "interaction_pairs.tsv": "Pairs that person and stimulus do not add up to; size and sd over voxels",
        },
        {"trial-*": "A held-out trial and its predictions."},
    ),
    "mvpa": Part(
        "Pattern analysis",
        "How well each method's features tell categories of stimuli apart.",
        {"overall.tsv": "All categories", "by_category.tsv": "By category"},
        {"auc_*": AUC},
    ),
    "connectivity": Part(
        "Functional connectivity",
        "How well correlations over time between factors, regions or clusters tell categories apart.",
        {"overall.tsv": "All categories", "by_category.tsv": "By category"},
        {"auc_*": AUC},
    ),
    "reproducibility": Part(
        "Reproducibility",
        "Whether distances between stimuli, or participants, come out again in another half of the data; how near "
        "predictions of held-out pairs come to what noise allows; and whether they can be told from predictions for "
        "others.",
        {
            "distances.tsv": "Rank correlation of distances between halves; difference: NTFA's less the method's",
            "errors.tsv": "Error of predicted images over that of no image; reached: of what noise leaves to predict",
            "identification.tsv": "Predicted images told from those of others",
        },
        {
            "distances": "Agreement of distances between two halves of the data; whiskers hold 95% of the halvings.",
            "identification": "How often the image predicted for a held-out pair is nearer to it than one predicted "
            "for another pair, with 95% intervals over participants; the dashed line is chance.",
        },
    ),
}


def write_comparison_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a comparison, from its files alone, and return its path."""
    folder = Path(folder)
    known = _known(folder)
    refuse_links(folder)
    done = [name for name in SHOWN if (folder / name / PART_FILE).exists()]
    path = folder / "report.html"
    used = known.get("versions") or versions()
    paragraph = _methods(known.get("settings", {}), used, done)
    render(
        "comparison.html",
        title="Comparison of models",
        n_parts=len(PARTS),
        sentences=_sentences(folder),
        missing=[SHOWN[name].title.lower() for name in SHOWN if name not in done],
        parts=[_part(name, folder / name) for name in done],
        settings=known.get("settings", {}),
        versions=used,
        command=shlex.join(known.get("command", ())),
        methods=[paragraph],
        references=sorted([*references([paragraph]), *BASELINES]),
        files=describe(folder, leave_out=[path.name]),
    ).save_as_html(path)
    return path


def _sentences(folder: Path) -> list[str]:
    with reading(f"{folder}: what the comparison found cannot be put in words, a table of it is damaged", OutputError):
        return comparison_in_words(folder)


def _known(folder: Path) -> dict[str, Any]:
    try:
        known = read_json(folder / COMPARISON_FILE)
    except ValueError as error:
        raise OutputError(f"{folder} holds no comparison: {COMPARISON_FILE} cannot be read ({error})") from error
    command = known.get("command", [])
    named = all(isinstance(known.get(name, {}), dict) for name in ("settings", "versions"))
    if not named or not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise OutputError(
            f"{folder} holds no comparison: settings, versions or command in {COMPARISON_FILE} make no sense"
        )
    return known


def _part(name: str, folder: Path) -> dict[str, Any]:
    part = SHOWN[name]
    paths = [
        (path, text)
        for pattern, text in part.figures.items()
        for path in sorted(folder.glob(f"{pattern}.png"))
        if path.is_file()
    ]
    tables = [
        {"title": title, "table": Table.of(_read(folder / file), most=60)}
        for file, title in part.tables.items()
        if (folder / file).exists()
    ]
    note = folder / NOT_POSSIBLE
    return {
        "id": name,
        "title": part.title,
        "about": part.about,
        "notes": [note.read_text(encoding="utf-8", errors="replace").strip()] if note.is_file() else [],
        "figures": [Picture(path.stem, name, text, path.read_bytes()) for path, text in paths],
        "tables": tables,
    }


def _read(path: Path) -> pd.DataFrame:
    text = dict.fromkeys(("participant", "stimulus", "category", "method", "features", "labels"), str)
    with reading(f"{path}: cannot be read as a table", OutputError):
        content = io.StringIO(table_text(path, line_breaks=True))
        return pd.read_csv(content, sep="\t", dtype=text, keep_default_na=False, na_values=[""], index_col=False)


def _methods(settings: dict[str, Any], used: dict[str, Any], done: list[str]) -> str:
    """Write a paragraph for the methods section of a paper."""
    said = [
        "NTFA (Sennesh et al., 2020) was compared with HTFA (Manning et al., 2018), TFA (Manning et al., 2014) and "
        f"TLSA (Gershman et al., 2011) as implemented in ntfa {used.get('ntfa')} on PyTorch {used.get('torch')}, each "
        f"with {settings.get('n_factors')} factors, at most {settings.get('max_epochs')} steps of Adam (Kingma & Ba, "
        f"2015) and seed {settings.get('seed')}."
    ]
    if "generalisation" in done or "predictions" in done:
        said.append(
            "Every stimulus was held out from some participants (participant p and stimulus s with p mod S = s), and "
            f"held-out trials were scored by their log predictive density from {settings.get('n_samples')} draws."
        )
    if "embeddings" in done:
        said.append(
            "Embeddings were compared with principal components, SRM (Chen et al., 2015) and matrix-normal SRM "
            f"(Shvartsman et al., 2018) with {settings.get('n_features')} features."
        )
    if "mvpa" in done or "connectivity" in done:
        fitted = (
            "anew for each fold"
            if settings.get("refit_per_fold")
            else "once, to all trials, with weights computed as if the stimulus were unknown"
        )
        said.append(f"Features for classification came from models fitted {fitted}; areas under the curve are given.")
    if "reproducibility" in done:
        said.append(
            f"Every method was fitted to both halves of {settings.get('n_halvings')} random halvings of the "
            "participants, of each participant's trials and of the stimuli, and distances between its points were "
            "compared between halves by Spearman's rank correlation. Predicted images of held-out pairs were compared "
            "with those predicted for other stimuli and for other participants by their correlation with the data."
        )
    return " ".join(said)
