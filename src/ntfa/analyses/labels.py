"""Labels of participants and stimuli, gathered from the labels of trials."""

from __future__ import annotations

import pandas as pd

from ntfa.study import Study
from ntfa.study.motion import COLUMN
from ntfa.study.rest import ROWS_OF_REST

OF_TRIALS = ("participant", "stimulus", "start", "stop", COLUMN, *ROWS_OF_REST)


def label_table(study: Study, kind: str) -> pd.DataFrame:
    """Labels that are the same in all trials of a participant (or stimulus): a row each.

    Parameters
    ----------
    kind : {"participant", "stimulus"}
    """
    columns = [str(column) for column in study.trials if column not in OF_TRIALS]
    grouped = study.trials.groupby(kind, sort=True)
    constant = [column for column in columns if (grouped[column].nunique(dropna=False) == 1).all()]
    varying = [column for column in constant if study.trials[column].nunique(dropna=False) > 1]
    return grouped[varying].first()
