"""The first picture of README.md: what tasks share in the cerebellum, from maps that are not part of the project.

usage: python docs/pictures/real.py DATA_DIR [docs/images/real.png]

DATA_DIR holds `mdtb_cerebellum`: maps of 16 people and 29 conditions of the multi-domain task battery (King et al.,
Nature Neuroscience 22, 2019), two each. Kinds of tasks are for colours
alone: the model does not know them.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nibabel as nib
import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from nilearn.datasets import load_mni152_template

from ntfa import NTFA, Study
from ntfa.plots import plot_embeddings
from ntfa.plots.style import DIVERGING

NAMES = {
    "words and stories": {"VerbGen": "verb generation", "WordRead": "word reading", "ToM": "theory of mind"},
    "working memory": {
        "Verbal0Back": "0-back, letters",
        "Verbal2Back": "2-back, letters",
        "Object0Back": "0-back, pictures",
        "Object2Back": "2-back, pictures",
    },
    "fingers": {"FingerSimple": "finger tapping", "FingerSeq": "finger sequence"},
    "visual search": {
        "VisualSearchSmall": "search, few",
        "VisualSearchMed": "search, some",
        "VisualSearchLarge": "search, many",
    },
    "faces and scenes": {
        "SadFaces": "sad faces",
        "HappyFaces": "happy faces",
        "PleasantScenes": "pleasant scenes",
        "UnpleasantScenes": "unpleasant scenes",
    },
    None: {
        "NoGo": "no-go",
        "Go": "go",
        "StroopIncon": "Stroop, incongruent",
        "StroopCon": "Stroop, congruent",
        "Math": "arithmetic",
        "DigitJudgement": "judging digits",
        "IntervalTiming": "timing",
    },
    "watching and imagining": {
        "VideoAct": "watching actions",
        "VideoKnots": "watching knots",
        "CheckerBoard": "checkerboard",
        "MotorImagery": "motor imagery",
        "SpatialNavigation": "navigation",
        "rest": "rest",
    },
}
SHOWN = ("verb generation", "2-back, letters", "finger sequence")
VOXEL = 3.0
CUTS = ((1, -64.0), (1, -50.0))


def read(folder: Path) -> Study:
    """Read maps as a study of one frame per map, each person scaled to a root mean square of one."""
    info = pd.read_csv(folder / "info-CondHalf.tsv", sep="\t")
    kinds = {condition: (name, kind) for kind, own in NAMES.items() for condition, name in own.items()}
    paths = sorted(folder.glob("sub-*.dscalar.nii"))
    axis = nib.load(paths[0]).header.get_axis(1)
    maps = {path.name[:6]: nib.load(path).get_fdata(dtype=np.float32) for path in paths}
    kept = np.all([np.isfinite(own).all(0) & (own.std(0) > 0) for own in maps.values()], axis=0)
    frames = {who: own[:, kept] / np.sqrt((own[:, kept] ** 2).mean()) for who, own in maps.items()}
    of_maps = list(zip(info["cond_name"], info["half"], strict=True))
    rows = [(who, *kinds[name], half, i, i + 1) for who in frames for i, (name, half) in enumerate(of_maps)]
    trials = pd.DataFrame(rows, columns=["participant", "stimulus", "kind", "run", "start", "stop"])
    coordinates = nib.affines.apply_affine(axis.affine, axis.voxel)[kept]
    return Study.from_arrays(frames, trials, coordinates)


def volume(values: np.ndarray, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values of voxels in a box, not a number where there is no voxel, and where the box begins in mm."""
    low = coordinates.min(0)
    cells = np.rint((coordinates - low) / VOXEL).astype(int)
    box = np.full(cells.max(0) + 1, np.nan)
    box[tuple(cells.T)] = values
    return box, low


def draw_slice(ax: plt.Axes, box: np.ndarray, low: np.ndarray, cut: tuple[int, float], limit: float) -> None:
    """Draw a slice of a map over the template, cropped to the cerebellum."""
    axis, where = cut
    template = load_mni152_template(resolution=1)
    anatomy, origin = np.asarray(template.dataobj), template.affine[:3, 3]
    across, up = [other for other in range(3) if other != axis]
    behind = np.take(anatomy, round(where - origin[axis]), axis)
    extent = (origin[across], origin[across] + behind.shape[0], origin[up], origin[up] + behind.shape[1])
    ax.imshow(behind.T, cmap="gray", origin="lower", extent=extent, vmin=0, vmax=1.15 * behind.max())
    own = np.take(box, round((where - low[axis]) / VOXEL), axis)
    size = np.array(own.shape) * VOXEL
    corner = low[[across, up]] - VOXEL / 2
    place = (corner[0], corner[0] + size[0], corner[1], corner[1] + size[1])
    ax.imshow(
        own.T,
        cmap=DIVERGING,
        origin="lower",
        extent=place,
        vmin=-limit,
        vmax=limit,
        interpolation="nearest",
        alpha=0.95,
    )
    ax.set(xlim=(-56, 56), ylim=(-70, 4))
    ax.axis("off")
    for x, side in ((-53, "L"), (51, "R")):
        ax.text(x, 2, side, color="white", fontsize=8, weight="bold", va="top", ha="center")


def draw(model: NTFA, study: Study, path: Path) -> None:
    """Draw tasks beside maps of three of them."""
    figure = plt.figure(figsize=(11, 5.3))
    ax = figure.add_axes((0.05, 0.09, 0.515, 0.83))
    plot_embeddings(model.stimuli_, "kind", kind="stimulus", study=study, dimensions=(1, 2), ax=ax)
    ax.set_title("29 tasks, placed by the responses they evoke", loc="left", fontsize=11)
    ax.get_legend().set_title("")
    ax.get_legend().get_texts()[-1].set_text("decisions, timing")
    colours = {text.get_text(): line.get_color() for text, line in legend_entries(ax)}
    people = model.participants_.index
    images = {name: model.predict([(who, name) for who in people]).mean(0) for name in SHOWN}
    limit = float(np.percentile(np.abs(list(images.values())), 99))
    figure.text(0.595, 0.945, "what is predicted of three of them, in the cerebellum", fontsize=11)
    for row, (name, image) in enumerate(images.items()):
        box, low = volume(image, model.coordinates_)
        kind = study.trials.set_index("stimulus")["kind"][name].iloc[0]
        bottom = 0.66 - 0.305 * row
        figure.text(0.595, bottom + 0.247, name, fontsize=10, weight="bold", color=colours[kind], va="center")
        for column, cut in enumerate(CUTS):
            own = figure.add_axes((0.595 + 0.178 * column, bottom, 0.172, 0.235))
            draw_slice(own, box, low, cut, limit)
    scale = figure.colorbar(
        ScalarMappable(Normalize(-limit, limit), DIVERGING), cax=figure.add_axes((0.958, 0.2, 0.009, 0.55))
    )
    scale.set_ticks([-limit, 0, limit], labels=["\N{MINUS SIGN}", "0", "+"])
    figure.savefig(path, dpi=120, pil_kwargs={"optimize": True})


def legend_entries(ax: plt.Axes) -> list[tuple[plt.Text, plt.Line2D]]:
    """Texts of a legend with the marks beside them."""
    legend = ax.get_legend()
    return list(zip(legend.get_texts(), legend.get_lines(), strict=True))


if __name__ == "__main__":
    data = Path(sys.argv[1]) / "mdtb_cerebellum"
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images/real.png")
    study = read(data)
    model = NTFA(n_factors=50, random_state=0, verbose=1).fit(study)
    draw(model, study, out)
