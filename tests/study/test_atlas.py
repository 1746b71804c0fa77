"""Names of places: an atlas of two cubes, its labels in every form that people have them in."""

import nibabel
import numpy as np
import pandas as pd
import pytest
from helpers import naming

from ntfa.errors import StudyError
from ntfa.study.atlas import NO_REGION, Atlas

AFFINE = np.array([[-2.0, 0, 0, 20], [0, 2, 0, -20], [0, 0, 2, -10], [0, 0, 0, 1]])
PLACES = [[16.0, -16, -6], [0.0, 0, 0], [10.0, -16, -6], [500.0, 0, 0]]
NAMES = ["Left cube", "Right cube", NO_REGION, NO_REGION]
LABELS = {
    "dseg.tsv": "index\tname\tcolor\n1\tLeft cube\t#ff0000\n7\tRight cube\t#00ff00\n",
    "swapped.csv": 'name,index\nLeft cube,1\n"Right cube",7\n',
    "freesurfer.txt": "# No. Label Name: R G B A\n0 Unknown 0 0 0 0\n1  Left cube  205 62 78 0\n7 Right cube 1 2 3 0\n",
    "plain.txt": "1 Left cube\n7 Right cube\n",
    "list.txt": "Left cube\ntwo\nthree\nfour\nfive\nsix\nRight cube\n",
    "background.txt": "Background\nLeft cube\ntwo\nthree\nfour\nfive\nsix\nRight cube\n",
    "fsl.xml": '<atlas><data>\n<label index="0" x="1" y="2" z="3">Left cube</label>\n'
    '<label index="6" x="1" y="2" z="3">Right cube</label>\n</data></atlas>\n',
}


@pytest.fixture
def image():
    values = np.zeros((20, 20, 10), dtype=np.int16)
    values[1:4, 1:4, 1:4] = 1
    values[9:12, 9:12, 4:7] = 7
    return nibabel.Nifti1Image(values, AFFINE)


@pytest.mark.parametrize("form", LABELS)
def test_labels_are_read_in_every_form(form, image, tmp_path):
    path = tmp_path / form
    path.write_text(LABELS[form])
    assert Atlas.open(image, path).names(PLACES) == NAMES


@pytest.mark.parametrize(
    "labels",
    [
        {1: "Left cube", 7: "Right cube"},
        pd.DataFrame({"index": [0.0, 1.0, 7.0], "name": ["Background", "Left cube", "Right cube"]}),
        ["Background", "Left cube", *"bcdef", "Right cube"],
    ],
)
def test_labels_may_be_given_in_python(labels, image):
    assert Atlas.open(image, labels).names(PLACES) == NAMES


def test_table_beside_the_image_is_found(image, tmp_path):
    image.to_filename(tmp_path / "cubes_dseg.nii.gz")
    (tmp_path / "cubes_dseg.tsv").write_text(LABELS["dseg.tsv"])
    assert Atlas.open(tmp_path / "cubes_dseg.nii.gz").names(PLACES) == NAMES


def test_nearest_region_agrees_with_a_search_of_all_voxels(image):
    rng = np.random.default_rng(0)
    places = rng.uniform([-25, -25, -15], [25, 25, 15], size=(300, 3))
    values = np.asarray(image.dataobj)
    cells = np.argwhere(values)
    at = cells @ AFFINE[:3, :3].T + AFFINE[:3, 3]
    names = {1: "one", 7: "seven"}
    expected = []
    for place in places:
        cell = np.rint(np.linalg.inv(AFFINE) @ [*place, 1])[:3].astype(int)
        if ((cell >= 0) & (cell < values.shape)).all() and values[tuple(cell)]:
            expected.append(names[values[tuple(cell)]])
            continue
        distances = np.linalg.norm(at - place, axis=1)
        nearest = distances.argmin()
        expected.append(names[values[tuple(cells[nearest])]] if distances[nearest] <= 6 else NO_REGION)
    assert {"one", "seven", NO_REGION} == set(expected)
    assert Atlas.open(image, names).names(places, within=6) == expected


def test_value_without_a_name_keeps_its_number(image):
    assert Atlas.open(image, {1: "Left cube"}).names(PLACES)[1] == "label 7"


def test_labels_of_another_atlas_are_refused(image):
    with pytest.raises(StudyError, match=naming("thalamus")):
        Atlas.open(image, {40: "thalamus"})


def test_table_without_names_is_refused(image, tmp_path):
    path = tmp_path / "bad.tsv"
    path.write_text("colour\tname\nred\tLeft cube\n")
    with pytest.raises(StudyError, match=naming(path, "index")):
        Atlas.open(image, path)


def test_row_without_a_number_is_named(image, tmp_path):
    path = tmp_path / "bad.tsv"
    path.write_text("index\tname\n1\tLeft cube\nx\tRight cube\n")
    with pytest.raises(StudyError, match=naming(path, 3)):
        Atlas.open(image, path)


def test_probabilities_and_series_are_refused(tmp_path):
    maps = nibabel.Nifti1Image(np.full((4, 4, 4), 0.5, dtype=np.float32), AFFINE)
    with pytest.raises(StudyError):
        Atlas.open(maps, {1: "a"})
    with pytest.raises(StudyError, match=naming("(4, 4, 4, 2)")):
        Atlas.open(nibabel.Nifti1Image(np.ones((4, 4, 4, 2), dtype=np.int16), AFFINE), {1: "a"})


def test_atlas_without_labels_is_refused(image, tmp_path):
    image.to_filename(tmp_path / "cubes.nii.gz")
    with pytest.raises(StudyError, match=naming(tmp_path / "cubes.nii.gz")):
        Atlas.open(tmp_path / "cubes.nii.gz")
