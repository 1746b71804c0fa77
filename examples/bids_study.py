"""A BIDS dataset, from Python: find, prepare, fit, and ask whether known groups show.

usage: python examples/bids_study.py [OUT]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from ntfa import NTFA, Study
from ntfa.analyses.labels import label_table
from ntfa.analyses.separation import group_structure
from ntfa.plots import plot_embeddings
from ntfa.uncertainty.differences import difference, spread

out = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
out.mkdir(parents=True, exist_ok=True)

with tempfile.TemporaryDirectory() as folder:
    # A stand-in for your dataset, with derivatives like fMRIPrep's.
    dataset = Path(folder) / "data"
    subprocess.run([sys.executable, "-m", "ntfa", "simulate", dataset, "--bids", "--voxels", "2000"], check=True)

    study = Study.from_bids(dataset, task="synthetic", rest="rest", category_column="category")
    print(study)

model = NTFA(n_factors=3, random_state=0).fit(study)
model.participants_.to_csv(out / "bids_participants.tsv", sep="\t")

# Labels that are the same in all trials of a participant come from participants.tsv, those of stimuli from the events.
groups = label_table(study, "participant")["group"]
print(group_structure(model.participants_, groups))
print(spread(model.participants_))
print(difference(model.participants_, "sub-01", "sub-02"))
print(difference(model.participants_, "sub-01", "sub-09"))

figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.5), layout="constrained")
plot_embeddings(model, groups, title="Participants", ax=left)
plot_embeddings(model, "category", kind="stimulus", study=study, title="Stimuli", ax=right)
figure.savefig(out / "bids_embeddings.png", dpi=90)
