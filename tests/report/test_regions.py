"""Regions of an atlas in reports: for factors and places, remembered beside the results."""

import base64
import json
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest

from ntfa import NTFA, Study
from ntfa.cli import main
from ntfa.errors import StudyError
from ntfa.report.brain import Grid
from ntfa.report.expected import expected_of
from ntfa.report.regions import as_atlas, cell_regions, factor_regions, keep_atlas, kept_atlas
from ntfa.study.atlas import Atlas

EVIL = "<b>Right</b> & back"


def halves(low: float = -100.0, size: float = 5.0, n: int = 41) -> Atlas:
    """Left and right of a large box, in an image of its own."""
    affine = np.diag([size, size, size, 1.0])
    affine[:3, 3] = low
    values = np.ones((n, n, n), dtype=np.int64)
    values[low + size * np.arange(n) > 0] = 2
    return Atlas(values, affine, {1: "Left", 2: EVIL}, "/home/somebody/atlases/Two halves.v1.nii.gz")


def side(x: float) -> str:
    """Return the region of halves() that a place is in: cells change half way between their middles."""
    return EVIL if x > 2.5 else "Left"


@pytest.fixture
def atlas() -> Atlas:
    return halves()


def test_factors_have_the_region_of_their_centre(model: NTFA, atlas: Atlas) -> None:
    expected = expected_of(model)
    centres = model.factors_.groupby("factor")["x"].mean()
    assert factor_regions(expected, atlas) == [side(x) for x in centres]
    assert factor_regions(expected, None) is None


def test_cubes_have_their_region_in_the_order_of_the_page(atlas: Atlas) -> None:
    random = np.random.default_rng(0)
    grid = Grid.of(random.uniform(-60, 60, size=(300, 3)))
    found = cell_regions(grid, atlas)
    assert found is not None
    numbers = np.frombuffer(base64.b64decode(found["cells"]), dtype="<u2")
    named = [found["names"][number] for number in numbers]
    by_cell = {tuple(cell): side(place[0]) for cell, place in zip(grid.cells.tolist(), grid.places, strict=True)}
    assert named == [by_cell[cell] for cell in sorted(by_cell)]
    assert len(set(named)) == 2


def test_an_atlas_is_kept_and_replaced(atlas: Atlas, tmp_path: Path) -> None:
    places = np.random.default_rng(0).uniform(-60, 60, size=(50, 3))
    assert kept_atlas(tmp_path) is None
    keep_atlas(tmp_path, atlas)
    kept = kept_atlas(tmp_path)
    assert kept is not None
    assert kept.names(places) == atlas.names(places)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "atlas").iterdir()}
    assert len(before) == 2
    keep_atlas(tmp_path, kept)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "atlas").iterdir()} == before
    other = Atlas(np.where(atlas.values == 1, 70000, 0), atlas.affine, {70000: "far\tone"}, "other")
    keep_atlas(tmp_path, other)
    again = kept_atlas(tmp_path)
    assert again is not None
    assert dict(again.regions) == {70000: "far one"}


def test_an_atlas_is_given_in_many_ways(atlas: Atlas, tmp_path: Path) -> None:
    keep_atlas(tmp_path, atlas)
    image = next((tmp_path / "atlas").glob("*.nii.gz"))
    labels = pd.DataFrame({"index": [1, 2], "name": ["Left", EVIL]})
    for source in (atlas, image, str(image), (image, labels), (nibabel.load(image), {1: "Left", 2: EVIL})):
        opened = as_atlas(source)
        assert opened is not None
        assert opened.names([[50.0, 0, 0]]) == [EVIL]
    for wrong in (7, "nothing.nii.gz", (image, tmp_path / "nothing.tsv")):
        with pytest.raises(StudyError):
            as_atlas(wrong)


@pytest.mark.usefixtures("no_figures")
def test_the_page_names_regions_and_no_folders(model: NTFA, study: Study, atlas: Atlas, page: type) -> None:
    parsed = page(model.generate_report(study, atlas=atlas).html)
    data = json.loads(parsed.data)
    assert data["regions"] == factor_regions(expected_of(model), atlas)
    assert set(data["volumes"]["regions"]["names"]) == {"", "Left", EVIL}
    assert not parsed.all("b")
    assert "Two halves.v1" in parsed.text
    assert "somebody" not in parsed.text + parsed.data
    assert json.loads(page(model.generate_report(study).html).data)["regions"] is None


@pytest.mark.usefixtures("no_figures")
def test_commands_remember_the_atlas(study: Study, atlas: Atlas, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    keep_atlas(tmp_path, atlas)
    image, out = next((tmp_path / "atlas").glob("*.nii.gz")), tmp_path / "out"
    study.save(tmp_path / "study")
    fit = ["fit", str(tmp_path / "study"), str(out), "--n-factors", "2", "--max-epochs", "2", "-q"]
    assert main([*fit, "--atlas", str(tmp_path / "no.nii.gz")]) == 1
    assert str(tmp_path / "no.nii.gz") in capsys.readouterr().err
    assert not out.exists()
    bids = ["bids", str(tmp_path / "no-dataset"), str(out), "group", "-q", "--atlas", str(tmp_path / "no.nii.gz")]
    assert main(bids) == 1
    assert str(tmp_path / "no.nii.gz") in capsys.readouterr().err
    assert main([*fit, "--atlas", str(image)]) == 0
    table = pd.read_csv(out / "tables" / "factors.tsv", sep="\t")
    assert table["region"].tolist() == [side(x) for x in table["x (mm)"]]
    for path in (image, image.with_name(image.name.removesuffix(".nii.gz") + ".tsv")):
        path.unlink()
    (out / "tables" / "factors.tsv").unlink()
    assert main(["report", str(out), "-q"]) == 0
    pd.testing.assert_frame_equal(pd.read_csv(out / "tables" / "factors.tsv", sep="\t"), table)
    assert main(["report", str(out), "-q", "--atlas-labels", "labels.tsv"]) == 1
    assert "labels.tsv" in capsys.readouterr().err
