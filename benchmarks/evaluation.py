"""The paper's comparison on simulated studies, several seeds each: means over seeds with standard errors.

    python benchmarks/evaluation.py [--seeds 5] [--studies synthetic haxby lepping threatvids] [--out FOLDER]

The twins of Haxby, Lepping and ThreatVids are small (2,000 voxels, 10 true factors, some of the runs) so that the
whole takes about an hour on two cores; `SIZES` says how small. Everything here is simulated. Tables are printed as
Markdown; FOLDER keeps every comparison.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pandas as pd

from ntfa import simulate
from ntfa.comparison import Settings, compare
from ntfa.comparison.words import read

SIZES = {
    "synthetic": {},
    "haxby": {"n_participants": 6, "n_stimuli": 8, "n_runs": 4, "n_voxels": 2000, "n_factors": 10},
    "lepping": {"n_participants": 12, "n_stimuli": 4, "n_runs": 4, "n_voxels": 2000, "n_factors": 10},
    "threatvids": {"n_participants": 8, "n_stimuli": 18, "n_runs": 3, "n_voxels": 2000, "n_factors": 10},
}
PARTS = ("generalisation", "embeddings", "predictions", "mvpa", "connectivity")


def main() -> None:
    """Simulate, compare, average."""
    args = options()
    root = Path(args.out or tempfile.mkdtemp(prefix="ntfa-evaluation-"))
    tables: dict[str, list[pd.DataFrame]] = {
        "table": [],
        "separation": [],
        "summary": [],
        "mvpa": [],
        "connectivity": [],
    }
    for study in args.studies:
        for seed in range(args.seeds):
            folder = one(study, seed, root / f"{study}-{seed}", args.parts)
            for name, path in FILES.items():
                if (folder / path).exists():
                    tables[name].append(read(folder / path).assign(study=study, seed=seed))
            print(f"{study}, seed {seed}: done", flush=True)
    for name, found in tables.items():
        if found:
            print(f"\n## {name}\n")
            print(SUMMARIES[name](pd.concat(found, ignore_index=True)))


FILES = {
    "table": "generalisation/table.tsv",
    "separation": "embeddings/separation.tsv",
    "summary": "predictions/summary.tsv",
    "mvpa": "mvpa/overall.tsv",
    "connectivity": "connectivity/overall.tsv",
}


def one(study: str, seed: int, folder: Path, parts: list[str]) -> Path:
    """Run one comparison; one that is there already is read."""
    simulation = simulate(study, random_state=seed, **SIZES[study])
    settings = Settings(n_factors=len(simulation.truth.centers), seed=seed, quiet=True)
    return compare(simulation.study, folder, settings, parts=parts, truth=simulation.truth)


def generalisation(rows: pd.DataFrame) -> str:
    """How far each method is above the zero null, in nats per observation, and its image error over the oracle's."""
    zero = rows[rows["method"] == "zero"].set_index(["study", "seed"])["per_datum"]
    above = rows["per_datum"].to_numpy() - zero.loc[pd.MultiIndex.from_frame(rows[["study", "seed"]])].to_numpy()
    rows = rows.assign(above_zero=1000 * above)
    return averaged(rows, ["study", "method", "estimator"], ["above_zero", "n_parameters", "mse_over_oracle"])


def averaged(rows: pd.DataFrame, by: list[str], values: list[str]) -> str:
    """Mean and standard error over seeds, as a Markdown table."""
    found = rows.groupby(by, sort=False)[values].agg(["mean", "sem"])
    cells = {value: [f"{m:.4g} ± {s:.2g}" for m, s in found[value].to_numpy()] for value in values}
    table = pd.DataFrame(cells, index=found.index).reset_index()
    lines = [table.columns.tolist(), ["---"] * len(table.columns), *table.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


SUMMARIES = {
    "table": generalisation,
    "separation": lambda rows: averaged(rows, ["study", "kind", "labels", "method"], ["accuracy", "silhouette"]),
    "summary": lambda rows: averaged(rows, ["study", "method"], ["correlation"]),
    "mvpa": lambda rows: averaged(rows, ["study", "features"], ["auc"]),
    "connectivity": lambda rows: averaged(rows, ["study", "features"], ["auc"]),
}


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--studies", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
