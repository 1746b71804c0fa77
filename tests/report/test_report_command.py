"""`ntfa report`, and reports of comparisons."""

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from helpers import naming
from matplotlib.figure import Figure

from ntfa import NTFA, Study
from ntfa.cli import main
from ntfa.comparison.report import SHOWN, write_comparison_report
from ntfa.errors import OutputError

EVIL = "<script>alert('x')</script>"


def png() -> bytes:
    buffer = io.BytesIO()
    Figure(figsize=(1, 1)).savefig(buffer, format="png")
    return buffer.getvalue()


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """A folder as a comparison leaves it, with a label that must not become markup."""
    out = tmp_path / "comparison"
    tables = {
        "generalisation/table.tsv": pd.DataFrame(
            {"method": ["NTFA", "HTFA"], "estimator": "collapsed", "log_predictive": [-10.0, -12.0], "n_parameters": 9}
        ).assign(mse_over_zero=0.9),
        "generalisation/differences.tsv": pd.DataFrame(
            {"estimator": ["collapsed"], "against": ["HTFA"], "difference": [0.1], "ci_low": 0.0, "ci_high": 0.2}
        ).assign(n_better=3, n=4),
        "mvpa/overall.tsv": pd.DataFrame({"across": ["trials"], "features": [EVIL], "auc": [0.75]}),
        "mvpa/by_category.tsv": pd.DataFrame({"across": ["trials"], "features": [EVIL], "category": ["01"]}),
        "reproducibility/distances.tsv": pd.DataFrame(
            {"distances": "stimuli", "halves": "people", "method": ["NTFA", "images"], "correlation": [0.55, 0.86]}
        ).assign(low=0.5, high=0.9, n_halvings=4),
        "reproducibility/left_out.tsv": pd.DataFrame({"what": [EVIL], "reason": ["nobody came twice"]}),
    }
    for name, table in tables.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(out / name, sep="\t", index=False)
    (out / "connectivity").mkdir()
    (out / "connectivity" / "not_possible.txt").write_text("Trials are too short.\n")
    for part in ("generalisation", "mvpa", "connectivity", "reproducibility"):
        (out / part / "part.json").write_text("{}")
    (out / "generalisation" / "log_predictive.png").write_bytes(png())
    (out / "mvpa" / "auc_trials.png").write_bytes(png())
    known = {
        "settings": {"n_factors": 7, "seed": 3},
        "versions": {"ntfa": "0.9", "torch": "2"},
        "command": ["ntfa", EVIL],
    }
    (out / "comparison.json").write_text(json.dumps(known))
    return out


def test_a_comparison_is_reported_from_its_files(compared: Path, page: type) -> None:
    html = write_comparison_report(compared).read_text(encoding="utf-8")
    parsed = page(html)
    done = ["generalisation", "mvpa", "connectivity", "reproducibility"]
    assert parsed.sections == ["summary", *done, "settings", "methods", "files"]
    assert len(parsed.all("script")) == 1
    assert len(parsed.all("img")) == 2
    assert parsed.text.count(EVIL) >= 3
    for text in (
        "+0.1 nats per observation against HTFA",
        "Trials are too short.",
        "NTFA 0.55 (0.50 to 0.90), images 0.86",
        f"{EVIL} left out: nobody came twice",
        "Not run: embeddings, predicted images.",
        "each with 7 factors",
        "ntfa 0.9 on PyTorch 2",
        "Manning, J. R.",
    ):
        assert text in parsed.text
    assert "01" in parsed.text


def test_every_part_of_a_comparison_is_shown() -> None:
    from ntfa.comparison import PARTS

    assert set(SHOWN) == set(PARTS)


def test_the_command_reports_on_a_comparison(compared: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["report", str(compared)]) == 0
    assert str(compared / "report.html") in capsys.readouterr().out
    assert main(["report", str(compared), "--images"]) == 1
    assert "--images goes with the folder of a fit" in capsys.readouterr().err


def test_a_folder_that_is_no_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=naming(tmp_path)):
        write_comparison_report(tmp_path)


def test_the_command_reports_on_a_fit(
    model: NTFA, study_folder: str, tmp_path: Path, page: type, no_figures: None
) -> None:
    out = tmp_path / "out"
    model.save(out)
    assert main(["report", str(out)]) == 0
    bare = page((out / "report.html").read_text(encoding="utf-8"))
    assert "The recorded data were not available" in bare.text
    assert json.loads(bare.data)["kinds"]["participant"]["columns"] == []
    assert "config.json" in bare.text
    assert main(["report", str(out), "--study", study_folder]) == 0
    full = page((out / "report.html").read_text(encoding="utf-8"))
    assert json.loads(full.data)["kinds"]["participant"]["columns"] == ["group"]
    assert "pairs the model was fitted to, is " in full.text
    assert main(["report", str(out), "--held-out", study_folder]) == 0
    held = page((out / "report.html").read_text(encoding="utf-8"))
    assert "pairs held out from the fit" in held.text
    assert json.loads(held.data)["kinds"]["participant"]["columns"] == ["group"]


def test_the_command_says_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "ntfa").mkdir()
    (tmp_path / "ntfa" / "config.json").write_text("{}")
    assert main(["report", str(tmp_path)]) == 1
    assert f"did you mean {tmp_path / 'ntfa'}?" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "ntfa")]) == 1
    assert "is not a saved model" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    assert "is not a folder" in capsys.readouterr().err


def test_a_fit_writes_images_on_request(no_figures: None, study: Study, study_folder: str, tmp_path: Path) -> None:
    fit = ["fit", study_folder, str(tmp_path / "out"), "--n-factors", "2", "--max-epochs", "2", "--device", "cpu"]
    assert main([*fit, "--quiet", "--images"]) == 0
    assert (tmp_path / "out" / "factors.nii.gz").exists()
    assert len(list((tmp_path / "out" / "predictions").glob("*.nii.gz"))) == len(study.participants)
