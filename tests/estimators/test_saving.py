"""Fitted models on disk: the same after loading, complete or not there, refused when broken."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import naming, weights_of
from safetensors.torch import load_file, save_file

import ntfa.estimators.saving
from ntfa import HTFA, NTFA, TFA, TLSA, Study
from ntfa.errors import ModelError, OutputError
from ntfa.estimators.base import TopographicModel

Fitted = Callable[[Any], TopographicModel]
FILES = {"config.json", "factors.tsv", "frames.tsv", "history.tsv", "mask.nii.gz", "model.safetensors", "summary.json"}
EMBEDDINGS = {"embeddings_participants.tsv", "embeddings_stimuli.tsv"}
TABLES = ("factors_", "history_", "participants_", "stimuli_", "template_", "loadings_")


@pytest.fixture(scope="module")
def ntfa_model(study: Study) -> NTFA:
    return NTFA(n_factors=2, max_epochs=4, random_state=0).fit(study)


@pytest.fixture
def saved(ntfa_model: NTFA, tmp_path: Path) -> Path:
    ntfa_model.save(tmp_path / "model")
    return tmp_path / "model"


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- there and back


def test_a_loaded_model_says_all_that_the_saved_one_did(
    kind: Any, study: Study, fitted: Fitted, tmp_path: Path
) -> None:
    model = fitted(kind)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    public = {name for name in vars(model) if name.endswith("_")}
    assert {name for name in vars(loaded) if name.endswith("_")} == public
    for name in public.intersection(TABLES):
        pd.testing.assert_frame_equal(getattr(loaded, name), getattr(model, name), check_exact=True, obj=name)
    for name in ("noise_", "seed_", "stopped_", "converged_", "n_parameters_", "n_data_"):
        assert getattr(loaded, name) == getattr(model, name)
    np.testing.assert_array_equal(loaded.coordinates_, model.coordinates_)
    np.testing.assert_array_equal(loaded.predict(study.trials), model.predict(study.trials))
    for by in ("trial", "frame"):
        tables = zip(
            weights_of(loaded, study, by=by, return_sd=True),
            weights_of(model, study, by=by, return_sd=True),
            strict=True,
        )
        for ours, theirs in tables:
            pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    for estimator in ("collapsed", "paper"):
        assert loaded.score(study, estimator, n_samples=4) == model.score(study, estimator, n_samples=4)


def test_a_loaded_model_can_be_saved_and_fitted_again(saved: Path, study: Study, ntfa_model: NTFA) -> None:
    loaded = NTFA.load(saved)
    before = contents(saved)
    loaded.save(saved, overwrite=True)
    after = contents(saved)
    assert after.keys() == before.keys()
    assert {name for name in before if before[name] != after[name]} <= {"mask.nii.gz"}
    pd.testing.assert_frame_equal(loaded.fit(study).participants_, ntfa_model.participants_, check_exact=True)


def test_the_tables_can_be_read_by_anyone(kind: Any, study: Study, fitted: Fitted, tmp_path: Path) -> None:
    model = fitted(kind)
    model.save(tmp_path / "model")
    read = {path.name: pd.read_csv(path, sep="\t") for path in (tmp_path / "model").glob("*.tsv")}
    pd.testing.assert_frame_equal(read["factors.tsv"], model.factors_, check_dtype=False)
    pd.testing.assert_frame_equal(read["history.tsv"], model.history_)
    if isinstance(model, NTFA):
        embeddings = read["embeddings_participants.tsv"].set_index("participant")
        pd.testing.assert_frame_equal(embeddings, model.participants_, check_index_type=False)
        embeddings = read["embeddings_stimuli.tsv"].set_index("stimulus")
        pd.testing.assert_frame_equal(embeddings, model.stimuli_, check_index_type=False)
    if isinstance(model, HTFA | TLSA):
        pd.testing.assert_frame_equal(read["template.tsv"], model.template_)
    if isinstance(model, TLSA):
        pd.testing.assert_frame_equal(read["loadings.tsv"], model.loadings_, check_dtype=False)


def test_the_files_of_a_model(kind: Any, study: Study, fitted: Fitted, tmp_path: Path) -> None:
    model = fitted(kind)
    model.save(tmp_path / "model")
    template = {"template.tsv"}
    loadings = {"loadings.tsv", "weights_covariance.tsv"} if hasattr(model, "weights_covariance_") else set()
    extra = {NTFA: EMBEDDINGS | loadings, HTFA: template, TFA: set(), TLSA: template | {"loadings.tsv"}}[type(model)]
    assert {path.name for path in (tmp_path / "model").iterdir()} == FILES | extra
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["schema_version"] == 1
    assert config["model"] == type(model).__name__
    assert config["seed"] == 0
    assert config["parameters"] == model.get_params()
    assert {"ntfa", "python", "torch", "numpy"} <= config["versions"].keys()
    summary = json.loads((tmp_path / "model" / "summary.json").read_text())
    assert summary["n_parameters"] == model.n_parameters_
    assert summary["bound"] == model.history_["bound"].iloc[-1]
    assert summary["bound_per_datum"] == pytest.approx(summary["bound"] / study.n_data)
    assert (summary["stopped"], summary["converged"]) == ("max_epochs", False)


def test_labels_survive_whatever_they_are(study: Study, tmp_path: Path) -> None:
    names = dict(zip(study.participants, ["001", "NA", "1e3", "ü\t\n\"'", "True", "null"], strict=True))
    trials = study.trials.assign(participant=study.trials["participant"].map(names))
    renamed = Study.from_arrays({names[p]: a for p, a in study.frames.items()}, trials, study.coordinates)
    model = NTFA(n_factors=2, max_epochs=2, random_state=0).fit(renamed)
    model.save(tmp_path / "model")
    loaded = NTFA.load(tmp_path / "model")
    assert loaded.participants_.index.tolist() == sorted(names.values())
    pd.testing.assert_frame_equal(loaded.transform(renamed), model.transform(renamed), check_exact=True)


def test_the_mask_comes_back(saved: Path, ntfa_model: NTFA, study: Study) -> None:
    loaded = NTFA.load(saved).mask_img_
    np.testing.assert_array_equal(np.asarray(loaded.dataobj), np.asarray(study.mask_img.dataobj))
    np.testing.assert_allclose(loaded.affine, study.mask_img.affine, rtol=1e-6)
    assert nibabel.load(saved / "mask.nii.gz").shape == study.mask_img.shape


def test_a_study_without_a_mask_is_saved_without_one(study: Study, tmp_path: Path) -> None:
    bare = Study.from_arrays(study.frames, study.trials, study.coordinates)
    NTFA(n_factors=2, max_epochs=2, random_state=0).fit(bare).save(tmp_path / "model")
    assert not (tmp_path / "model" / "mask.nii.gz").exists()
    assert NTFA.load(tmp_path / "model").mask_img_ is None


def test_a_loaded_model_outlives_its_folder(saved: Path, tmp_path: Path) -> None:
    loaded, before = NTFA.load(saved), contents(saved)
    shutil.rmtree(saved)
    loaded.save(tmp_path / "elsewhere")
    after = contents(tmp_path / "elsewhere")
    assert after.keys() == before.keys()
    # A compressed image bears the time of its writing.
    assert {name for name in before if before[name] != after[name]} <= {"mask.nii.gz"}


def test_loading_leaves_the_global_random_state_alone(saved: Path) -> None:
    state = torch.get_rng_state()
    NTFA.load(saved)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_model_fitted_on_a_gpu_loads_without_one(saved: Path, study: Study) -> None:
    parameters = json.loads((saved / "config.json").read_text())["parameters"]
    edit(saved, parameters=parameters | {"device": "cuda"})
    assert NTFA.load(saved).predict(study.trials).shape == (24, 300)


# --- no pickle


def test_nothing_is_pickled(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle starts with 0x80 and a protocol number, a torch file is a zip."""
    for name, content in contents(saved).items():
        assert content[:1] != b"\x80", name
        assert content[:2] != b"PK", name

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("unpickled something")

    monkeypatch.setattr("pickle.Unpickler", refuse)
    monkeypatch.setattr("pickle.loads", refuse)
    monkeypatch.setattr("torch.load", refuse)
    NTFA.load(saved)


def test_the_package_does_not_know_pickle() -> None:
    package = Path(ntfa.__file__).parent
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for word in ("import pickle", "joblib.load", "joblib.dump", "torch.load", "torch.save", "allow_pickle=True"):
            assert word not in source, f"{word} in {path}"


# --- broken folders


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-40])


def fill(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["z_stimulus.mean"]
    save_file(tensors, folder / "model.safetensors")


BROKEN = {
    "no config": (remove("config.json"), "not a saved model"),
    "no tensors": (remove("model.safetensors"), "safetensors"),
    "no history": (remove("history.tsv"), "history.tsv"),
    "truncated tensors": (cut("model.safetensors"), "cannot be read"),
    "garbage for tensors": (fill("model.safetensors", "not tensors at all"), "cannot be read"),
    "a tensor missing": (drop_tensor, "z_stimulus.mean"),
    "empty history": (fill("history.tsv", ""), "cannot be read"),
    "config not JSON": (fill("config.json", "{"), "not valid JSON"),
    "config not a mapping": (fill("config.json", "[1]"), "no JSON object"),
    "another schema": (lambda folder: edit(folder, schema_version=2), "schema version 2"),
    "no schema": (lambda folder: edit(folder, schema_version=None), "schema version None"),
    "other sizes": (lambda folder: edit(folder, parameters={"n_factors": 5}), "cannot be read"),
    "unknown parameter": (lambda folder: edit(folder, parameters={"n_facets": 5}), "n_facets"),
    "labels missing": (lambda folder: edit(folder, labels={}), "cannot be read"),
    "counts not numbers": (lambda folder: edit(folder, counts=3), "cannot be read"),
    "a model of no known kind": (lambda folder: edit(folder, model="PCA"), "'PCA'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused_by_name(saved: Path, case: str) -> None:
    damage, message = BROKEN[case]
    damage(saved)
    with pytest.raises(ModelError) as caught:
        NTFA.load(saved)
    assert str(saved) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        fill("mask.nii.gz", "not an image"),
        fill("history.tsv", "a\tb\n1\t2\n"),
        lambda folder: edit(folder, units={"origin": [0, 0], "length": 1.0, "intensity": 1.0}),
        lambda folder: edit(folder, units={"origin": [0, 0, 0], "length": None, "intensity": 1.0}),
    ],
    ids=["mask", "history", "origin", "length"],
)
def test_a_folder_broken_in_other_ways_is_refused_too(saved: Path, damage: Callable[[Path], None]) -> None:
    damage(saved)
    with pytest.raises(ModelError):
        NTFA.load(saved)


def test_what_is_not_a_model_is_refused_by_name(tmp_path: Path, study_folder: str) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "nowhere", tmp_path, tmp_path / "file", Path(study_folder)):
        with pytest.raises(ModelError) as caught:
            NTFA.load(place)
        assert str(place) in str(caught.value)


def test_another_kind_of_model_is_refused(saved: Path) -> None:
    for kind in (HTFA, TFA):
        with pytest.raises(ModelError, match=naming("NTFA", kind.__name__)):
            kind.load(saved)


# --- all or nothing


def test_save_refuses_what_exists(saved: Path, ntfa_model: NTFA, tmp_path: Path) -> None:
    before = contents(saved)
    with pytest.raises(OutputError, match=naming(saved)):
        ntfa_model.save(saved)
    assert contents(saved) == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(OutputError, match=naming(tmp_path / "empty")):
        ntfa_model.save(tmp_path / "empty")


def test_overwriting_replaces_everything(saved: Path, study: Study) -> None:
    (saved / "stray.txt").write_text("from another time")
    other = HTFA(n_factors=2, max_epochs=2, random_state=0).fit(study)
    other.save(saved, overwrite=True)
    assert {path.name for path in saved.iterdir()} == FILES | {"template.tsv"}
    pd.testing.assert_frame_equal(HTFA.load(saved).factors_, other.factors_, check_exact=True)
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("failing", ["summary", "save", "_write_json"])
def test_a_failed_save_leaves_the_old_one_intact(
    saved: Path, ntfa_model: NTFA, monkeypatch: pytest.MonkeyPatch, overwrite: bool, failing: str
) -> None:
    before = contents(saved)

    def fail(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(ntfa.estimators.saving, failing, fail)
    target = saved if overwrite else saved.with_name("new")
    with pytest.raises(OSError, match="no space left"):
        ntfa_model.save(target, overwrite=overwrite)
    assert contents(saved) == before
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_the_table_of_frames_comes_back(study: Study, tmp_path: Path) -> None:
    names = dict(zip(study.participants, ["001", "NA", "1e3", "ü\t\n\"'", "True", "null"], strict=True))
    trials = study.trials.assign(participant=study.trials["participant"].map(names), run="01")
    trials["framewise_displacement"] = ["0.100 n/a 0.700"[: 6 * i % 16] for i in range(len(trials))]
    frames = {names[p]: array.copy() for p, array in study.frames.items()}
    frames["NA"][6] *= 30
    renamed = Study.from_arrays(frames, trials, study.coordinates)
    model = HTFA(n_factors=2, max_epochs=2, random_state=0).fit(renamed)
    model.save(tmp_path / "model")
    loaded = HTFA.load(tmp_path / "model").frames_
    pd.testing.assert_frame_equal(loaded, model.frames_)
    spoiled = loaded[loaded["weight"] < 1]
    assert spoiled[["participant", "frame"]].to_numpy().tolist() == [["NA", 6]]


@pytest.mark.parametrize(
    ("column", "value"), [("weight", 1.5), ("weight", np.nan), ("weight", "x"), ("frame", -1), ("distance", -2.0)]
)
def test_a_table_of_frames_that_makes_no_sense_is_refused(saved: Path, column: str, value: Any) -> None:
    table = pd.read_csv(saved / "frames.tsv", sep="\t").astype({column: object})
    table.loc[3, column] = value
    table.to_csv(saved / "frames.tsv", sep="\t", index=False)
    with pytest.raises(ModelError, match=column if isinstance(value, str) else "row 3|no number"):
        NTFA.load(saved)


def test_models_of_earlier_versions_have_no_table_of_frames(saved: Path) -> None:
    (saved / "frames.tsv").unlink()
    assert not hasattr(NTFA.load(saved), "frames_")
