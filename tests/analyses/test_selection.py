"""Sets of pairs in words, against plain filters of the tables."""

import itertools

import pandas as pd
import pytest
from helpers import naming

from ntfa.analyses.selection import select_pairs
from ntfa.errors import ModelError

PEOPLE = pd.DataFrame(
    {"group": ["patient", "patient", "control", None], "age": [20, 35, 41, 60], "site": [1.0, 2.0, 1.0, None]},
    index=["sub-01", "sub-02", "sub-03", "sub-04"],
)
STIMULI = pd.DataFrame(
    {"category": ["face", "face", "house, small"], "site": ["x", "y", "z"]}, index=["f1", "f2", "h1"]
)
LABELS = {"participant": PEOPLE, "stimulus": STIMULI}


@pytest.mark.parametrize(
    ("selection", "people", "stimuli"),
    [
        ("stimulus=f1", "1234", ["f1"]),
        ("participant=sub-01,sub-03; stimulus = f2 , h1", "13", ["f2", "h1"]),
        ("group=patient", "12", ["f1", "f2", "h1"]),
        (["group!=patient", "category=face"], "3", ["f1", "f2"]),
        ("age>=35;age<60", "23", ["f1", "f2", "h1"]),
        ("category=house, small", "1234", ["h1"]),
        ("participant.site=1", "13", ["f1", "f2", "h1"]),
        ("stimulus.site=z", "1234", ["h1"]),
    ],
)
def test_pairs_are_those_for_which_all_holds(selection, people, stimuli):
    expected = itertools.product([f"sub-0{i}" for i in people], stimuli)
    assert select_pairs(selection, LABELS) == list(expected)


@pytest.mark.parametrize(
    ("selection", "named"),
    [
        ("stimulus=f9", ("stimulus", "f9")),
        ("participant=sub-1", ("sub-1", "sub-01")),
        ("diagnosis=x", ("diagnosis", "group")),
        ("site=1", ("site", "participant.site")),
        ("group>3", ("group",)),
        ("age>old", ("old",)),
        ("faces", ("faces",)),
        ("group=patient;age>50", ("group=patient", "participant")),
        (" ; ", ("stimulus=face",)),
    ],
)
def test_what_cannot_be_selected_is_named(selection, named):
    with pytest.raises(ModelError, match=naming(*named)):
        select_pairs(selection, LABELS)
