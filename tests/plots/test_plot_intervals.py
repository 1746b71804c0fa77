"""Dots with intervals say what the table says."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from ntfa.errors import ModelError
from ntfa.plots import plot_intervals


@pytest.fixture
def table() -> pd.DataFrame:
    long = "halves of everybody's trials"
    rows = [("NTFA", "people", 0.9), ("images", "people", 0.7), ("NTFA", long, 0.5)]
    found = pd.DataFrame(rows, columns=["method", "halves", "correlation"])
    return found.assign(low=found["correlation"] - 0.1, high=[1.0, 0.75, np.nan])


def test_dots_and_whiskers_are_those_of_the_table(table: pd.DataFrame) -> None:
    ax = plot_intervals(table, "correlation", by="halves", ends=("low", "high"), line=0.25, ylabel="$agreement$")
    dots = {line.get_label(): line for line in ax.lines if line.get_label() in ("NTFA", "images")}
    np.testing.assert_allclose(dots["NTFA"].get_ydata(), [0.9, 0.5])
    np.testing.assert_allclose(dots["images"].get_ydata(), [0.7, np.nan])
    assert dots["NTFA"].get_xdata()[0] < dots["images"].get_xdata()[0] < 0.5 < dots["NTFA"].get_xdata()[1]
    ends = np.array([segment[:, 1] for lines in ax.collections for segment in lines.get_segments() if len(segment)])
    np.testing.assert_allclose(ends[0], [0.8, 1.0])
    np.testing.assert_allclose(ends[1], [0.4, 0.5], err_msg="no whisker where an end is missing")
    assert any(np.allclose(line.get_ydata(), 0.25) for line in ax.lines)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["people", "halves of\neverybody's trials"]
    ax.figure.canvas.draw()
    plt.close("all")


def test_axes_are_used_and_tables_checked(table: pd.DataFrame) -> None:
    _, ax = plt.subplots()
    assert plot_intervals(table, "correlation", by="halves", ends=("low", "high"), ax=ax) is ax
    with pytest.raises(ModelError, match="ci_low"):
        plot_intervals(table, "correlation", by="halves")
    with pytest.raises(ModelError):
        plot_intervals(table.iloc[:0], "correlation", by="halves", ends=("low", "high"))
    plt.close("all")
