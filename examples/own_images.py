"""Your own images: from 4-D images and events tables to maps, as nilearn's users have them.

usage: python examples/own_images.py [OUT]
"""

import sys
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
from nilearn.masking import unmask

from ntfa import NTFA, Study, simulate
from ntfa.plots import plot_factors, plot_prediction

out = Path(sys.argv[1] if len(sys.argv) > 1 else "example-output")
out.mkdir(parents=True, exist_ok=True)

# Stand-ins for your data: a simulated study as images. Events are 3 s before the frames that respond to them.
t_r, delay = 2.0, 3.0
simulated, truth = simulate(random_state=0, n_participants=6, n_stimuli=4, n_voxels=2000)
imgs, events = [], []
for participant in simulated.participants:
    image = unmask(simulated.frames[participant], simulated.mask_img)
    image.header.set_zooms((*image.header.get_zooms()[:3], t_r))
    own = simulated.trials[simulated.trials["participant"] == participant]
    onset, duration = own["start"] * t_r - delay, (own["stop"] - own["start"]) * t_r
    imgs.append(image)
    events.append(pd.DataFrame({"onset": onset, "duration": duration, "trial_type": own["stimulus"]}))

# From here on it is what you would write; imgs, events and mask may also be paths.
study = Study.from_images(
    imgs=imgs,
    events=events,
    participants=simulated.participants,
    mask=simulated.mask_img,
    t_r=t_r,
    delay=delay,
)
print(study)

# Hold out one stimulus of each participant, and predict it.
train, test = study.split("diagonal")
model = NTFA(n_factors=3, random_state=0, response="network").fit(train)
pair = tuple(test.trials[["participant", "stimulus"]].iloc[0])
predicted = model.predict_img([pair])
nibabel.save(predicted, out / "predicted.nii.gz")
nibabel.save(model.factor_img(pair[0]), out / "factors.nii.gz")

likeness = np.corrcoef(model.predict([pair])[0], truth.mean_image(*pair))[0, 1]
print(f"{' and '.join(pair)}, held out: the prediction's correlation with the truth is {likeness:.2f}")
plot_prediction(model, test, *pair).savefig(out / "own_images_prediction.png", dpi=80)
plot_factors(model)[0].figure.savefig(out / "own_images_factors.png", dpi=90)
