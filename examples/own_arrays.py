"""Your own arrays: from frames, a table of trials and voxel positions to embeddings and a saved model.

usage: python examples/own_arrays.py [OUT]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ntfa import NTFA, Study
from ntfa.plots import plot_embeddings

out = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
out.mkdir(parents=True, exist_ok=True)

# Stand-ins for your data. Faces excite one spot and houses another; patients respond half as much as controls.
random = np.random.default_rng(0)
axis = np.arange(-40, 41, 8.0)
coordinates = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
spots = [np.exp(-((coordinates - place) ** 2).sum(1) / 20**2) for place in ([-24, 8, 0], [24, -8, 8])]
groups = {f"sub-{i + 1:02d}": "control" if i < 4 else "patient" for i in range(8)}
stimuli = {"face A": 0, "face B": 0, "house A": 1, "house B": 1}

frames, rows = {}, []
for participant, group in groups.items():
    recorded = random.standard_normal((4 * 12, len(coordinates)))  # [frames, voxels]
    for i, (stimulus, spot) in enumerate(stimuli.items()):
        start, stop = 12 * i, 12 * i + 10  # two frames after each trial belong to none
        recorded[start:stop] += (1.0 if group == "control" else 0.5) * spots[spot]
        rows.append([participant, stimulus, start, stop, group, "house" if spot else "face"])
    frames[participant] = recorded

# From here on it is what you would write.
trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop", "group", "category"])
study = Study.from_arrays(frames, trials, coordinates)
print(study)

model = NTFA(n_factors=2, random_state=0).fit(study)
print(model.participants_.round(2))
print(model.factors_.groupby("factor")[["x", "y", "z", "width"]].mean().round(1))
model.save(out / "own_arrays_model", overwrite=True)
model.generate_report(study).save_as_html(out / "own_arrays.html")

figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4), layout="constrained")
plot_embeddings(model, "group", study=study, title="Participants", ax=left)
plot_embeddings(model, "category", kind="stimulus", study=study, title="Stimuli", ax=right)
figure.savefig(out / "own_arrays.png", dpi=90)
