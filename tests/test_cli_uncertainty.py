"""`ntfa fit --uncertainty`."""

import json
from pathlib import Path

import pandas as pd
import pytest

from ntfa import NTFA, Study
from ntfa.cli import main

FIT = ["--response", "network", "--n-factors", "2", "--max-epochs", "3", "--device", "cpu", "--quiet"]


@pytest.fixture
def folder(study: Study, tmp_path: Path) -> str:
    study.save(tmp_path / "study")
    return str(tmp_path / "study")


@pytest.mark.parametrize(("options", "way"), [([], "calibrated"), (["--uncertainty", "mean-field"], "mean-field")])
def test_the_way_is_taken_and_kept(folder: str, tmp_path: Path, options: list[str], way: str) -> None:
    out = tmp_path / "out"
    assert main(["fit", folder, str(out), *FIT, *options]) == 0
    assert json.loads((out / "config.json").read_text())["parameters"]["uncertainty"] == way
    table = pd.read_csv(out / "embeddings_participants.tsv", sep="\t", index_col="participant")
    assert ("z1_z2_cov" in table) == (way == "calibrated")
    loaded = NTFA.load(out)
    pd.testing.assert_frame_equal(loaded.participants_, table, check_exact=False, rtol=1e-6)
    assert loaded.calibration_["n_halved"].notna().all() == (way == "calibrated")


def test_models_without_embeddings_have_no_such_option(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", folder, str(tmp_path / "out"), *FIT[2:], "--model", "htfa", "--uncertainty", "laplace"]) == 1
    assert "--uncertainty does not apply to --model htfa" in capsys.readouterr().err
