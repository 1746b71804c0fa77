"""Do embeddings go with a diagnosis, an age, a rating? Simulated people of whom it is known.

usage: python examples/groups_and_traits.py [OUT]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import ntfa

out = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
out.mkdir(parents=True, exist_ok=True)

# A stand-in for participants.tsv. Patients move more in the scanner, and there are fewer of them.
random = np.random.default_rng(1)
n = 26
people = pd.DataFrame({"participant_id": [f"sub-{i + 1:02d}" for i in range(n)], "age": random.integers(20, 70, n)})
people["diagnosis"] = ["patient" if i < 10 else "control" for i in range(n)]
people["motion"] = 0.2 * random.gamma(2, 0.5, n) + 0.1 * (people["diagnosis"] == "patient")
people["handedness"] = random.normal(60, 25, n).round()
people.to_csv(out / "participants.tsv", sep="\t", index=False)
ratings = pd.DataFrame({"stimulus": [f"film {i + 1}" for i in range(8)], "fear": np.linspace(1, 7, 8)})
excites = ratings["fear"] + random.normal(0, 1, 8)  # a rating is not all of it

# Fear excites one spot, less in patients; the response of another falls with age; motion adds to a third.
axis = np.arange(-40, 41, 8.0)
coordinates = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
places = np.array([[-24, 8, 0], [24, -8, 8], [0, 24, -16]])
spots = np.exp(-((coordinates - places[:, None]) ** 2).sum(-1) / 18**2)
frames, rows = {}, []
for person in people.itertuples():
    own = random.normal(0, 0.25, 3)
    of_fear = 1.2 if person.diagnosis == "control" else 0.6
    weights = np.array([[of_fear * fear / 4, (75 - person.age) / 40, 2 * person.motion] for fear in excites])
    shown = np.repeat(np.tile(np.arange(8), 2), 4)  # every film twice, four frames each
    signal = (weights + own)[shown] @ spots
    frames[person.participant_id] = signal + random.normal(0, 2, (len(shown), len(coordinates)))
    rows += [(person.participant_id, f"film {shown[i] + 1}", i, i + 4) for i in range(0, len(shown), 4)]
trials = pd.DataFrame(rows, columns=["participant", "stimulus", "start", "stop"])
model = ntfa.NTFA(n_factors=3, random_state=0).fit(ntfa.Study.from_arrays(frames, trials, coordinates))

# From here on it is what you would write.
by_diagnosis = ntfa.test(model, "diagnosis", table=out / "participants.tsv", confounds=["age", "motion"])
by_age = ntfa.test(model, "age", table=people, confounds=["motion"])
by_hand = ntfa.test(model, "handedness", table=people)
by_fear = ntfa.test(model, "fear", table=ratings, kind="stimulus")
for asked in (by_diagnosis, by_age, by_hand, by_fear):
    print(asked.sentence, *asked.cautions, sep="\n", end="\n\n")
tables = {asked.column: asked.table for asked in (by_diagnosis, by_age, by_hand, by_fear)}
table = pd.concat(tables, names=["column", None]).droplevel(1).reset_index()
table.round(4).to_csv(out / "groups_and_traits.tsv", sep="\t", index=False)

figure, axes = plt.subplots(1, 3, figsize=(15.5, 4.4), layout="constrained", width_ratios=(1.1, 1.1, 1))
for ax, asked in zip(axes, (by_diagnosis, by_age, by_fear), strict=True):
    asked.plot(ax=ax)
figure.savefig(out / "groups_and_traits.png", dpi=80)
