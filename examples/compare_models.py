"""Which model, and how many factors? Held-out trials decide.

usage: python examples/compare_models.py [OUT]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from ntfa import HTFA, NTFA, TLSA, simulate
from ntfa.baselines.mean_image import MeanImage
from ntfa.plots import plot_log_predictive

out = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
out.mkdir(parents=True, exist_ok=True)

# A small twin of an object-viewing study: 10 true factors, 8 people, 8 categories of pictures.
study, truth = simulate("haxby", random_state=1, n_participants=8, n_voxels=1000, n_factors=10, n_runs=3, n_frames=6)
train, test = study.split("diagonal")  # one category of each person is held out
print(train, test, sep="\n")


def scored(model):
    """Fit to the training trials; log predictive density of the held-out ones."""
    found = model.fit(train).log_predictive(test)
    return {"log_predictive": found.value, "standard_error": found.standard_error}


def ntfa(n_factors):
    """Score NTFA; embeddings need no calibrated uncertainty where only predictions count."""
    return scored(NTFA(n_factors, random_state=0, uncertainty="mean-field"))


zero = {"method": "zero", "log_predictive": MeanImage(of="nothing").fit(train).score(test), "standard_error": 0.0}
by_count = {count: ntfa(count) for count in (2, 5, 10, 20)}
models = [
    {"method": "NTFA"} | by_count[10],
    {"method": "HTFA"} | scored(HTFA(10, block="participant", random_state=0)),
    {"method": "TLSA"} | scored(TLSA(10, random_state=0)),
    zero,
]
counts = [{"n_factors": count} | found for count, found in by_count.items()]

models, counts = pd.DataFrame(models), pd.DataFrame(counts)
models.to_csv(out / "models.tsv", sep="\t", index=False)
counts.to_csv(out / "factor_counts.tsv", sep="\t", index=False)
print(models, counts, sep="\n")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
plot_log_predictive(models, n_data=test.n_data, reference="zero", title="10 factors", ax=left)
right.errorbar(
    counts["n_factors"], counts["log_predictive"] - zero["log_predictive"], 1.96 * counts["standard_error"], marker="o"
)
right.set(xlabel="factors", ylabel="held-out nats above zero", title="NTFA", xticks=counts["n_factors"])
figure.savefig(out / "compare_models.png", dpi=90)
