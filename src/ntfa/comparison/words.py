"""What a comparison found, in a few sentences."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from ntfa.analyses.interaction import gain_in_words, shares_in_words
from ntfa.comparison.notes import NOTE
from ntfa.comparison.reproducibility import FLOOR
from ntfa.files.reading import table_text


def comparison_in_words(folder: Path) -> list[str]:
    """Say what the parts that are there found."""
    sentences = []
    for part, say in SAY.items():
        note = folder / part / NOTE
        if note.exists():
            sentences.append(f"{part.capitalize()} is not possible: {note.read_text('utf-8', 'replace').strip()}")
        elif (folder / part / "part.json").exists():
            sentences += say(folder / part)
    return sentences


def read(path: Path) -> pd.DataFrame:
    """Read a table that a part wrote; labels stay text."""
    text = {"participant": str, "stimulus": str, "category": str}
    return pd.read_csv(io.StringIO(table_text(path, line_breaks=True)), sep="\t", dtype=text, index_col=False)


def _generalisation(folder: Path) -> list[str]:
    table, differences = read(folder / "table.tsv"), read(folder / "differences.tsv")
    ours = table[table["method"] == "NTFA"].iloc[0]
    said = []
    for _, row in differences[differences["estimator"] == "collapsed"].iterrows():
        if row["against"] in ("HTFA", "zero"):
            said.append(
                f"{row['difference']:+.2g} nats per observation against {row['against']} "
                f"(95% interval {row['ci_low']:.2g} to {row['ci_high']:.2g}; "
                f"higher in {row['n_better']:.0f} of {row['n']:.0f} participants)"
            )
    simple = table[table["method"].isin(["stimulus image", "individual loadings"])]
    others = "".join(f", {row['method']} {row['mse_over_zero']:.3f}" for _, row in simple.iterrows())
    return [
        f"Held-out log predictive of NTFA ({ours['n_parameters']:,.0f} parameters): {'; '.join(said)}.",
        f"Mean squared error of its predicted images: {ours['mse_over_zero']:.3f} times that of no image at all"
        f"{others}.",
    ]


def _embeddings(folder: Path) -> list[str]:
    table = read(folder / "separation.tsv")
    return [
        f"{str(labels).capitalize()} of the left-out {kind}, named by the nearest centroid of embeddings: "
        + ", ".join(
            f"{row['method']} {row['accuracy']:.0%} right (p = {row['accuracy_p']:.2g})" for _, row in own.iterrows()
        )
        + f"; the largest group has {own['chance'].iloc[0]:.0%}."
        for (kind, labels), own in table.groupby(["kind", "labels"], sort=False)
    ]


def _predictions(folder: Path) -> list[str]:
    table = read(folder / "summary.tsv")
    shown = ", ".join(f"{row['method']} {row['correlation']:.3f}" for _, row in table.iterrows())
    said = [f"Correlation of predicted with held-out trial images: {shown}."]
    if (folder / "additive.tsv").exists():
        said += [gain_in_words(row) for _, row in read(folder / "additive.tsv").iterrows()]
    if (folder / "interaction.tsv").exists():
        for method, own in read(folder / "interaction.tsv").groupby("method", sort=False):
            said.append(f"Of the variance of mean responses, by {method}, {shares_in_words(own)} (95% intervals).")
    return said


def _aucs(name: str, folder: Path) -> list[str]:
    sentences = []
    for across, own in read(folder / "overall.tsv").groupby("across"):
        shown = ", ".join(f"{row['features']} {row['auc']:.3f}" for _, row in own.iterrows())
        sentences.append(f"{name}, AUC, {across} left out: {shown}.")
    return sentences


def _reproducibility(folder: Path) -> list[str]:
    say = {
        "distances.tsv": _distances,
        "errors.tsv": _errors,
        "identification.tsv": _identification,
        "left_out.tsv": lambda table: [f"{row['what']} left out: {row['reason']}." for _, row in table.iterrows()],
    }
    return [sentence for name, of in say.items() if (folder / name).exists() for sentence in of(read(folder / name))]


def _distances(table: pd.DataFrame) -> list[str]:
    return [
        f"Distances between {kind} agree between halves of the {halves} (rank correlation, "
        f"{group['n_halvings'].max():.0f} random halvings): "
        + ", ".join(
            f"{row['method']} {row['correlation']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
            for _, row in group.iterrows()
        )
        + "."
        for (kind, halves), group in table.groupby(["distances", "halves"], sort=False)
    ]


def _errors(table: pd.DataFrame) -> list[str]:
    at_floor = table["method"] == FLOOR
    shown = ", ".join(f"{row['method']} {row['error']:.3f}" for _, row in table[~at_floor].iterrows())
    floor = "".join(
        f"; by how repeated trials differ, none can be below {row['error']:.3f} "
        f"(95% interval {row['ci_low']:.3f} to {row['ci_high']:.3f})"
        for _, row in table[at_floor].iterrows()
    )
    return [f"Error of predicted images of held-out pairs over that of no image: {shown}{floor}."]


def _identification(table: pd.DataFrame) -> list[str]:
    return [
        f"The image predicted for a held-out pair is nearer to it than one for {among}: "
        + ", ".join(
            f"{row['method']} {row['nearer']:.0%} ({row['ci_low']:.0%} to {row['ci_high']:.0%})"
            for _, row in group.iterrows()
        )
        + "; chance is 50%."
        for among, group in table.groupby("among", sort=False)
    ]


SAY = {
    "generalisation": _generalisation,
    "embeddings": _embeddings,
    "predictions": _predictions,
    "mvpa": lambda folder: _aucs("MVPA", folder),
    "connectivity": lambda folder: _aucs("Connectivity", folder),
    "reproducibility": _reproducibility,
}
