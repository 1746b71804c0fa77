"""Classify stimuli from features that do not contain the answer: neither from the stimulus, nor from test trials.

usage: python examples/decode_stimuli.py [OUT]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ntfa import NTFA, Study, simulate
from ntfa.analyses.decoding import decode, summarise
from ntfa.plots import plot_auc

out = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
out.mkdir(parents=True, exist_ok=True)


def folds(study):
    """Area under the curve of every fold, for four sets of features; one run of each person is left out at a time."""
    # Settled once for all folds, and no calibrated embeddings: weights are what is used.
    model = NTFA(n_factors=8, random_state=0, response="loadings", uncertainty="mean-field")

    def weights_without_stimulus(training):
        """Weights of all trials from a model that was fitted to the training trials of a fold alone."""
        train = study.select(trials=study.trials.index.isin(training))
        return model.fit(train).transform(study)

    features = {
        "voxels": pd.DataFrame(study.mean_images(), index=study.trials.index),
        "fit per fold": weights_without_stimulus,
        "one fit": model.fit(study).transform(study),
        "with stimulus": model.transform(study, condition_on_stimulus=True),
    }
    tables = [decode(made, study.trials, "stimulus", n_jobs=1).assign(features=name) for name, made in features.items()]
    return pd.concat(tables)


def permuted(study, seed):
    """Permute the stimuli within each run, so that nothing is left to decode."""
    trials, random = study.trials.copy(), np.random.default_rng(seed)
    trials["stimulus"] = trials.groupby(["participant", "run"])["stimulus"].transform(random.permutation)
    return Study.from_arrays(study.frames, trials, study.coordinates)


study, _ = simulate("haxby", n_participants=4, n_stimuli=3, n_voxels=600, n_factors=8, n_runs=4, n_frames=10)
found = [folds(study).assign(category="true labels")]
found += [folds(permuted(study, seed=0)).assign(category="permuted labels")]

table = summarise(pd.concat(found), by=["features", "category"])
print(table.round(2).to_string())
table.to_csv(out / "decoding.tsv", sep="\t", index=False)
figure, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
plot_auc(table, ax=ax)
figure.savefig(out / "decoding.png", dpi=90)
