"""How many factors does `n_factors="auto"` choose, where the truth is known, and what does the choice cost?

    python benchmarks/choosing.py [--seeds 4] [--processes 2]

Simulated studies of three kinds on the voxels of a ball: the paper's (3 factors that respond), ones like two real
designs with individual layouts (8, 10 and 20 factors), and an experiment with smooth noise, run-wise baselines and
z-scoring against rest (5 factors; see alike.py). One line per study: chosen over true number, response model, and the
time of the choice over that of the fit that follows, both in one run.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from concurrent.futures import ProcessPoolExecutor
from unittest.mock import patch

import alike
import bare  # noqa: F401
import numpy as np
import pandas as pd
import torch

from ntfa import NTFA, Study, simulate
from ntfa.estimators.choosing import choose

KINDS = (("synthetic", 3), ("haxby", 8), ("haxby", 20), ("lepping", 10), ("smooth noise", 5))
NEAR = 1.5


def make(kind: str, n_factors: int, seed: int) -> Study:
    """Simulate a study."""
    if kind == "smooth noise":
        with patch.object(alike, "N_TRUE", n_factors):
            return alike.make_study(alike.DESIGNS["four runs, 20 rest frames each"], "none", seed)
    sizes = {"lepping": {"n_participants": 12}, "haxby": {"n_runs": 6}}.get(kind, {})
    coordinates = alike._ball(19, 7.0)
    return simulate(kind, n_factors=n_factors, random_state=seed, coordinates=coordinates, **sizes).study


def run(job: tuple[str, int, int]) -> dict[str, object]:
    """Choose, and fit what was chosen."""
    kind, n_factors, seed = job
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    study = make(kind, n_factors, seed)
    model = NTFA("auto", random_state=seed)
    began = time.perf_counter()
    found = choose(model, study)
    middle = time.perf_counter()
    NTFA(found.n_factors, response=found.response, random_state=seed).fit(study)
    ratio = (middle - began) / (time.perf_counter() - middle)
    return {
        "study": kind,
        "true": n_factors,
        "seed": seed,
        "chosen": found.n_factors,
        "response": found.response,
        "choice / fit": round(ratio, 1),
    }


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    jobs = [(*kind, seed) for kind in KINDS for seed in range(options.seeds)]
    with ProcessPoolExecutor(options.processes) as pool:
        table = pd.DataFrame(pool.map(run, jobs))
    print(table.to_string(index=False))
    ratio = np.exp(np.abs(np.log(table["chosen"] / table["true"])))
    print(f"within a factor of {NEAR} of the truth: {(ratio <= NEAR + 1e-9).sum()} of {len(table)}")


if __name__ == "__main__":
    main()
