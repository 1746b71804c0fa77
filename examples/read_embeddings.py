"""What in a picture of embeddings means something: two fits, two pictures, the same distances.

usage: python examples/read_embeddings.py [OUT]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.spatial import procrustes
from scipy.spatial.distance import pdist

from ntfa import NTFA, simulate
from ntfa.baselines import PCA
from ntfa.plots import plot_embeddings
from ntfa.uncertainty.differences import difference_matrix

out = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
out.mkdir(parents=True, exist_ok=True)

study, truth = simulate(random_state=0, n_voxels=2000)
# The second fit starts elsewhere, and ends with much the same picture, turned.
fits = [NTFA(n_factors=3, init=init, random_state=1).fit(study) for init in ("pursuit", "kmeans")]
points = [model.participants_[["z1", "z2"]].to_numpy() for model in fits]
print("correlation of z1 between the fits:", np.corrcoef(points[0][:, 0], points[1][:, 0])[0, 1])
print("correlation of distances between the fits:", np.corrcoef(pdist(points[0]), pdist(points[1]))[0, 1])
print("left after turning, mirroring and scaling one onto the other (share):", procrustes(*points)[2])

# At which credible level do two participants differ? Near 1: surely; near 0: nothing tells them apart.
levels = difference_matrix(fits[0].participants_)
levels.round(3).to_csv(out / "difference_levels.tsv", sep="\t")
print(levels.round(2).to_string())

tables = {"NTFA": fits[0].participants_, "NTFA, another start": fits[1].participants_}
tables["PCA: points, no ellipses"] = PCA().fit(study).participants_
figure, axes = plt.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
for ax, (title, table) in zip(axes, tables.items(), strict=True):
    plot_embeddings(table, truth.participant_groups, title=title, ax=ax)
figure.savefig(out / "two_fits.png", dpi=70)
