"""How do responses differ between conditions, and do people differ in how? Contrasts and shares, with known truth.

usage: python examples/contrast_conditions.py [OUT]
"""

import sys
from pathlib import Path

import numpy as np

from ntfa import NTFA, simulate
from ntfa.analyses.interaction import interaction
from ntfa.analyses.recorded import components
from ntfa.plots import plot_contrast_factors

out = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
out.mkdir(parents=True, exist_ok=True)

study, truth = simulate(n_participants=9, n_stimuli=6, n_runs=4, n_frames=8, n_voxels=1000, random_state=0)
model = NTFA(n_factors=3, response="loadings", random_state=0).fit(study)

# Everybody's responses to the two tasks.
tasks = truth.stimulus_categories
sets = [
    [(who, what) for who in truth.participants for what in tasks.index[tasks == task]] for task in ("Task 2", "Task 1")
]
contrast = model.contrast(*sets)
print(contrast)
print(contrast.factors.head(3).round(3).to_string(index=False))
means = [np.mean([truth.mean_image(*pair) for pair in pairs], axis=0) for pairs in sets]
difference = means[0] - means[1]
print(
    "intervals that hold the true difference:", np.mean(np.abs(contrast.difference - difference) < 1.96 * contrast.sd)
)
contrast.img("thresholded").to_filename(out / "contrast_z.nii.gz")
contrast.plot(title="Task 2 less Task 1").savefig(out / "contrast.png", dpi=80)
plot_contrast_factors(contrast).get_figure().savefig(out / "contrast_factors.png", dpi=80)

# Two groups of people, about the population that they come from.
groups = truth.participant_groups
people = [
    [(who, what) for who in groups.index[groups == group] for what in truth.stimuli] for group in ("Group 1", "Group 3")
]
print(model.contrast(*people, population=True))

# Do people differ in what stimuli do to them? Here Groups 1 to 3 respond in different places, so they do.
found = interaction(model, study)
print("\n".join(found.sentences()))
images = np.stack([[truth.mean_image(who, what) for what in truth.stimuli] for who in truth.participants])
shares = components(images, images)
print("true shares:", (shares / shares.sum()).round(3).tolist())
found.pairs.to_csv(out / "interaction_pairs.tsv", sep="\t", index=False)
