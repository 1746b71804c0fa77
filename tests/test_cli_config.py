"""`ntfa fit --config`: an earlier fit again, from the settings that it wrote."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import assert_names

from ntfa import TLSA, Study
from ntfa.cli import main, parser
from ntfa.cli.config import take_config
from ntfa.cli.fit import model_from
from ntfa.estimators import MODELS
from ntfa.estimators.saving import versions
from ntfa.estimators.settings import CHOICES

SETTINGS = {
    "ntfa": [
        "--embedding-dim=3",
        "--n-particles=2",
        "--inference=mean-field",
        "--init=kmeans",
        "--uncertainty=laplace",
    ],
    "htfa": ["--block=participant", "--schedule=paper", "--n-restarts=2", "--coarse=never", "--memory=1GB"],
    "tfa": ["--block=trial"],
    "tlsa": ["--design", "stimulus", "participant"],
}
TABLES = ("factors.tsv", "embeddings_participants.tsv", "embeddings_stimuli.tsv", "template.tsv", "loadings.tsv")


def fit(study: str, out: Path, *options: str) -> int:
    return main(["fit", study, str(out), "--device", "cpu", *options])


@pytest.fixture
def config(study_folder: str, tmp_path: Path, no_pictures: None) -> Path:
    """What a small fit of NTFA wrote."""
    options = ["--n-factors", "2", "--max-epochs", "3", "--seed", "5", "--uncertainty", "laplace", "--quiet"]
    assert fit(study_folder, tmp_path / "first", *options) == 0
    return tmp_path / "first" / "config.json"


def arguments(config: Path, *options: str) -> Any:
    return parser().parse_args(["fit", "study", "out", "--config", str(config), *options])


def change(config: Path, **changes: Any) -> None:
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))


@pytest.mark.parametrize("model", SETTINGS)
def test_a_fit_is_run_again_to_the_bit(model: str, study_folder: str, tmp_path: Path, no_pictures: None) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    options = [*SETTINGS[model], "--n-factors", "2", "--max-epochs", "4", "--seed", "7", "--quiet"]
    assert fit(study_folder, first, "--model", model, *options) == 0
    assert main(["fit", study_folder, str(again), "--config", str(first / "config.json")]) == 0
    for name in (*TABLES, "model.safetensors"):
        assert (first / name).exists() == (again / name).exists()
        if (first / name).exists():
            assert (first / name).read_bytes() == (again / name).read_bytes(), name
    configs = [json.loads((out / "config.json").read_text()) for out in (first, again)]
    for one in configs:
        del one["command"], one["parameters"]["verbose"]
    assert configs[0] == configs[1]


def test_options_on_the_command_line_win_and_are_named(config: Path) -> None:
    args = arguments(config, "--n-factors", "4", "--seed", "6", "--max-epochs", "3")
    said = take_config(args)
    model = model_from(args)
    assert (model.n_factors, model.random_state, model.max_epochs, model.uncertainty) == (4, 6, 3, "laplace")
    assert len(said) == 2
    assert re.findall(r"(\w+)=(\d) \(\D*(\d)\)", said[1]) == [("n_factors", "4", "2"), ("seed", "6", "5")]


@pytest.mark.parametrize("model", MODELS)
def test_every_parameter_of_a_model_comes_through(model: str, tmp_path: Path) -> None:
    """Each is set to something that is not its default, as by somebody who fitted in Python."""
    defaults = MODELS[model]().get_params()
    others = {name: other_value(name, value) for name, value in defaults.items()}
    # Loadings go with collapsed inference alone.
    others |= {"response": "network"} if "response" in others else {}
    assert all(others[name] != value for name, value in defaults.items())
    path = tmp_path / "config.json"
    content = {"schema_version": 1, "model": MODELS[model].__name__, "parameters": others, "seed": 1}
    path.write_text(json.dumps(content | {"versions": versions()}))
    args = arguments(path)
    assert len(take_config(args)) == 1
    assert model_from(args).get_params() == {**others, "verbose": 1}


def other_value(name: str, default: Any) -> Any:
    if name in CHOICES:
        return next(choice for choice in CHOICES[name] if choice != default)
    special = {
        "design": ["stimulus", "run"],
        "memory": "3GB",
        "random_state": 11,
        "verbose": 2,
        "embedding_dim": [2, 3],
        "n_factors": 7,
    }
    return special[name] if name in special else default + 3


def test_an_option_that_equals_its_default_wins_too(config: Path) -> None:
    args = arguments(config, "--n-factors", "100", "--seed", "0")
    take_config(args)
    assert (args.n_factors, args.seed, args.max_epochs) == (100, 0, 3)


def test_another_model_takes_what_it_has(config: Path) -> None:
    args = arguments(config, "--model", "htfa")
    said = take_config(args)
    model = model_from(args)
    assert (type(model).__name__, model.n_factors, model.block) == ("HTFA", 2, "participant")
    (ignored,) = [sentence for sentence in said if "htfa has no such setting" in sentence]
    assert all(name in ignored for name in ("embedding_dim=", "response=", "uncertainty='laplace'"))


def test_the_folder_will_do_and_the_log_says_what_was_taken(
    config: Path, study_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["fit", study_folder, str(tmp_path / "plan"), "--config", str(config.parent), "--dry-run"]
    assert main(plan) == 0
    assert_names(capsys.readouterr().out, config, "n_factors=2")


def test_a_fit_without_a_seed_is_run_again_with_the_one_it_drew(study: Study, tmp_path: Path) -> None:
    model = TLSA(2, max_epochs=2, device="cpu", design="stimulus").fit(study)
    model.save(tmp_path / "saved")
    args = arguments(tmp_path / "saved")
    assert len(take_config(args)) == 1
    again = model_from(args).fit(study)
    assert (again.seed_, again.design) == (model.seed_, "stimulus")
    assert again.factors_.equals(model.factors_)


def test_a_file_of_an_older_version_is_completed_by_defaults(config: Path) -> None:
    content = json.loads(config.read_text())
    del content["parameters"]["coarse"]
    change(config, parameters=content["parameters"], versions={**content["versions"], "torch": "1.0"})
    args = arguments(config)
    said = take_config(args)
    assert said[1].endswith(": coarse='auto'.")
    assert re.search(r": torch \S+ \(.*1\.0\)\.$", said[2])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema_version": 99}, ["schema version 99"]),
        ({"schema_version": None}, []),
        ({"schema_version": 0}, ["schema version 0"]),
        ({"parameters": [1]}, []),
        ({"model": "VAE"}, ["'VAE'", *MODELS]),
        ({"parameters": {"n_layers": 3}}, ["NTFA", "'n_layers'"]),
        ({"parameters": {"n_factors": -1}}, ["n_factors=-1"]),
        ({"parameters": {"init": ["x"]}}, ["init=['x']"]),
    ],
)
def test_a_file_that_is_not_of_a_fit_is_refused(
    changes: dict[str, Any], named: list[str], config: Path, study_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(config, **changes)
    out = config.parent.parent / "again"
    assert main(["fit", study_folder, str(out), "--config", str(config)]) == 1
    error = capsys.readouterr().err
    assert_names(error, "ntfa: error:", "--config", config, *named)
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_file_that_cannot_be_read_is_refused(
    content: str | None, tmp_path: Path, study_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    assert main(["fit", study_folder, str(tmp_path / "out"), "--config", str(path)]) == 1
    assert_names(capsys.readouterr().err, "ntfa: error:", path)
