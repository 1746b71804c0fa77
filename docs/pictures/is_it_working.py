"""Pictures of docs/is-it-working.md: a fit that worked, and some that did not.

usage: python docs/pictures/is_it_working.py [docs/images/is-it-working]

Verdicts are photographed off reports by Debian's chromium; `CHROMIUM` names another.
"""

import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from gallery import save_small
from PIL import Image
from playwright.sync_api import sync_playwright

from ntfa import NTFA, Study, simulate

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


def noise_like(study: Study) -> Study:
    """Make a study of the same design whose frames are noise."""
    random = np.random.default_rng(0)
    frames = {who: random.normal(size=own.shape).astype(np.float32) for who, own in study.frames.items()}
    return Study.from_arrays(frames, study.trials, study.coordinates, mask_img=study.mask_img)


def photograph(pages: dict[str, Path], out: Path) -> None:
    """Take a picture of the verdict of each report."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 900}, device_scale_factor=1.25)
        for name, path in pages.items():
            page.goto(path.absolute().as_uri())
            picture = out / f"verdict-{name}.png"
            page.locator(".findings").screenshot(path=picture)
            Image.open(picture).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(picture, optimize=True)
        browser.close()


def main(out: Path) -> None:
    """Fit a study and noise, and others to the end or not; draw them."""
    out.mkdir(parents=True, exist_ok=True)
    study, _ = simulate("lepping", n_participants=12, n_voxels=1500, n_factors=10, random_state=3)
    pairs = {"good": study.split("diagonal"), "noise": noise_like(study).split("diagonal")}
    models = {name: NTFA(n_factors=10, random_state=0).fit(train) for name, (train, _) in pairs.items()}

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    titles = {"good": "Good: groups further apart than their ellipses", "noise": "Bad: every ellipse holds every cross"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        models[name].plot_embeddings("group", study=pairs[name][0], title=title, ax=ax)
    save_small(figure, out / "embeddings.png")

    figure, axes = plt.subplots(1, 2, figsize=(10, 2.8), layout="constrained")
    to_the_end = simulate(random_state=0, n_voxels=1500).study
    cut_short = simulate("mdtb", n_participants=8, n_stimuli=12, n_voxels=800, random_state=0).study
    quick = {"random_state": 0, "response": "loadings", "uncertainty": "laplace"}
    NTFA(3, **quick).fit(to_the_end).plot_bound(ax=axes[0]).set_title("Good: flat at the end")
    short = NTFA(20, max_epochs=20, **quick).fit(cut_short)
    short.plot_bound(ax=axes[1]).set_title("Bad: still rising when it was stopped")
    save_small(figure, out / "bound.png")

    pages = {name: out / f"{name}.html" for name in models}
    for name, model in models.items():
        model.generate_report(*pairs[name]).save_as_html(pages[name])
    photograph(pages, out)
    for path in pages.values():
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "images" / "is-it-working")
