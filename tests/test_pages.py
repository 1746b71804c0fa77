"""The code of pages of the documentation runs as it stands there, and pictures are those that it draws."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nibabel
import numpy as np
import pytest
from PIL import Image

import ntfa.plots
from ntfa import simulate

DOCS = Path(__file__).resolve().parents[1] / "docs"
GALLERY = runpy.run_path(str(DOCS / "pictures" / "gallery.py"))


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


def test_every_line_of_the_gallery_draws_its_picture() -> None:
    names: dict[str, Any] = {}
    # The page's own study takes half a minute; a smaller one of the same kind will do for its lines.
    small = page("gallery.md").replace("n_voxels=1500", "n_voxels=200").replace("n_participants=12", "n_participants=6")
    small = small.replace("random_state=0).fit", "random_state=0, max_epochs=5, response='loadings').fit")
    pictures = []
    for picture, figure in GALLERY["drawn"](small, names):
        figure.canvas.draw()
        drawn = np.asarray(figure.canvas.buffer_rgba())[..., :3]
        assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 10, picture
        pictures.append(picture)
    assert plt.get_fignums() == []
    committed = {path.stem: Image.open(path).size for path in (DOCS / "images" / "gallery").glob("*.png")}
    assert sorted(pictures) == sorted(committed)
    assert all(width > 200 for width, _ in committed.values())


def test_the_gallery_has_every_figure() -> None:
    functions = {name for name in ntfa.plots.__all__ if name.startswith("plot_")}
    # Figures of one question alone are shown where that is asked.
    others = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md") if path.stem != "gallery")
    drawn = set(re.findall(r"\b(plot_\w+)\(", "\n".join(blocks("gallery.md"))))
    assert drawn <= functions
    assert [name for name in functions - drawn if not re.search(rf"\b{name}\b", others)] == []


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_pictures_of_pages_are_there(path: Path) -> None:
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        assert (DOCS / picture).stat().st_size < 400_000, picture


def test_the_page_for_users_of_srm_runs() -> None:
    names: dict[str, Any] = {}
    (code,) = blocks("from-srm.md")
    code = code.replace("n_voxels=600", "n_voxels=150").replace("NTFA(", "NTFA(max_epochs=5, response='loadings', ")
    exec(compile(code, "from-srm.md", "exec"), names)
    assert names["srm"].bases_["sub-01"].shape == (150, 6)
    assert len(names["srm"].participants_) == len(names["ntfa"].participants_) == 5


def test_the_page_for_users_of_nilearn_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, _ = simulate(n_voxels=200, n_participants=2, random_state=0)
    nibabel.save(known.mask_img, tmp_path / "mask.nii.gz")
    inside = known.mask_img.get_fdata() > 0
    for participant, frames in known.frames.items():
        values = np.zeros((*inside.shape, len(frames)), dtype=np.float32)
        values[inside] = frames.T
        nibabel.save(nibabel.Nifti1Image(values, known.mask_img.affine), tmp_path / f"{participant}_bold.nii.gz")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"trials": known.trials}
    (code,) = blocks("from-nilearn.md")
    exec(compile(code, "from-nilearn.md", "exec"), names)
    np.testing.assert_allclose(names["study"].coordinates, known.coordinates, atol=1e-4)
    np.testing.assert_allclose(names["study"].mean_images(), known.mean_images(), rtol=1e-4, atol=1e-4)
