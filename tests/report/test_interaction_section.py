"""The report's section on person by stimulus."""

import numpy as np
import pandas as pd
import pytest
from helpers import assert_names
from scipy import stats

from ntfa.report.interaction import held_out_in_words


def test_gain_over_additive_images_is_a_mean_over_people() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"participant": np.repeat(["a", "b", "c", "d"], 3), "held_out": True})
    table["mse"], table["mse_of_zero"] = rng.uniform(0.4, 0.6, 12), 1.0
    table["mse_of_additive"] = table["mse"] + 0.1 + 0.02 * rng.normal(size=12)
    gain = (table["mse_of_additive"] - table["mse"]).groupby(table["participant"]).mean()
    low, high = stats.t.interval(0.95, 3, gain.mean(), gain.std() / 2)
    (sentence,) = held_out_in_words(table)
    assert_names(sentence, f"{gain.mean():.3f}", f"{low:.3f}", f"{high:.3f}", "4 of 4")


@pytest.mark.parametrize("without", ["mse_of_additive", "held_out"])
def test_nothing_is_said_without_held_out_pairs(without: str) -> None:
    table = pd.DataFrame(
        {"participant": ["a"], "mse": 0.5, "mse_of_zero": 1.0, "mse_of_additive": 0.6, "held_out": True}
    )
    table = table.assign(held_out=False) if without == "held_out" else table.drop(columns=without)
    assert held_out_in_words(table) == []
    assert held_out_in_words(None) == []
