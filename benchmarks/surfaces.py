"""Are factors on opposite banks of a sulcus told apart? Simulated studies of cortex, fitted with two kinds of distance.

    python benchmarks/surfaces.py --studies 8           # some 3 s a fit
    python benchmarks/surfaces.py --studies 8 --vertices 2562

Each study has three pairs of factors on fsaverage5 whose centres are less than 10 mm apart in a straight line, across a
sulcus, and more than 40 mm along the cortex; each is round over the folded surface itself (along its edges), which a
sphere distorts. The same frames are fitted with distance over the sphere of each hemisphere and in a straight line.
Printed: how far true centres are from the nearest found one, over the sphere; the share of them that is found within
3 mm; and the squared error of predicted images over that of predicting zero, against images without noise.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pandas as pd

from ntfa import NTFA
from ntfa.simulation.cortex import simulate_cortex

CLOSE_MM = 3.0


def fit(seed: int, distance: str, args: argparse.Namespace) -> dict[str, float | str | int]:
    """Simulate a study, fit it, and compare with its truth."""
    study, truth = simulate_cortex(
        n_pairs=args.pairs,
        n_vertices=args.vertices,
        noise=args.noise,
        along="surface",
        distance=distance,
        random_state=seed,
    )
    began = time.process_time()
    settings = {"embedding_dim": (2, 2 * args.pairs), "response": args.response, "uncertainty": "mean-field"}
    model = NTFA(2 * args.pairs, random_state=0, max_epochs=300, **settings).fit(study)
    seconds = time.process_time() - began
    away = truth.distances(model.factors_)
    pairs = [(who, what) for who in study.participants for what in study.stimuli]
    expected = truth.images.reshape(len(pairs), -1)
    error = float(((model.predict(pairs) - expected) ** 2).sum() / (expected**2).sum())
    row: dict[str, float | str | int] = {"study": seed, "distance": distance, "median_mm": float(np.median(away))}
    return row | {
        "largest_mm": float(away.max()),
        "found": float((away < CLOSE_MM).mean()),
        "error": error,
        "cpu_s": seconds,
    }


def main() -> None:
    """Print a row for each fit, and means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--vertices", type=int, default=10242, help="of each hemisphere: 642, 2562 or 10242")
    parser.add_argument("--noise", type=float, default=1.5, help="sd of a vertex in a frame; weights have about 1")
    parser.add_argument("--response", choices=("loadings", "network"), default="loadings")
    args = parser.parse_args()
    rows = []
    for seed in range(args.studies):
        for distance in ("sphere", "straight"):
            rows.append(fit(seed, distance, args))
            print(pd.DataFrame(rows[-1:]).round(3).to_string(index=False, header=len(rows) == 1), flush=True)
    table = pd.DataFrame(rows).drop(columns="study").groupby("distance").mean()
    print("\nMeans over studies:", table.round(3).to_string(), sep="\n")


if __name__ == "__main__":
    main()
