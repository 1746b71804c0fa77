"""Fit some people, and add others later: new ones, one again in a second session, and one whose data went wrong.

usage: python examples/add_newcomers.py [OUT]
"""

import sys
from pathlib import Path

import numpy as np

from ntfa import NTFA, Study, simulate
from ntfa.plots import plot_embeddings

out = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
out.mkdir(parents=True, exist_ok=True)

# Thirty people who saw four stimuli in two runs; half of each one's trials are in the second run.
study, _ = simulate("woo", random_state=1, n_participants=30, n_voxels=500, individual_mean_share=0.3)
late = study.trials.groupby(["participant", "stimulus"]).cumcount() >= 4
study = Study.from_arrays(study.frames, study.trials.assign(run=late.astype(int)), study.coordinates)
people = study.participants

# The fit knows the first 24, two of them from their first run only.
first_run = study.trials["participant"].isin(people[:2]) & late
known = study.trials["participant"].isin(people[:24])
model = NTFA(n_factors=10, response="loadings", random_state=0).fit(study.select(trials=known & ~first_run))

# Six newcomers, the last of whom was not z-scored; and the second run of the first two as another session.
frames = dict(study.select(participants=people[24:]).frames)
frames[people[29]] = 10 * frames[people[29]]
newcomers = Study.from_arrays(frames, study.trials[~known], study.coordinates)
added = model.add(newcomers).add(study.select(trials=first_run), session="ses-02")

print(added.newcomers_.drop(columns=["density"]).round(3).to_string(index=False))
print(added.retests_.round(2).to_string(index=False))
unmoved = np.array_equal(added.participants_.loc[people[:24], ["z1", "z2"]], model.participants_[["z1", "z2"]])
print("those of the fit are where they were:", unmoved)

added.save(out / "added_model", overwrite=True)
shown = added.participants_.drop(index=people[29])
plot_embeddings(shown, title="In the fit, and added").figure.savefig(out / "add_newcomers.png", dpi=70)
