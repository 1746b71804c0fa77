"""Several processes give the result of one: real ones, started by torchrun, talking over gloo."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from astray import fit as fit_gone_astray
from fits import MODELS

from ntfa import HTFA, NTFA, TFA, Study, simulate
from ntfa.estimators.saving import CONFIG_FILE

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory) -> Path:
    """Five participants, so that two processes get unequal shares; the last has half the trials; two have moved."""
    study = simulate("synthetic", n_participants=5, n_voxels=300, n_frames=4, random_state=0).study
    for who in study.participants[::3]:
        first = study.trials["start"][study.trials["participant"] == who].min()
        study.frames[who][first] += np.linspace(-9, 9, study.n_voxels, dtype=np.float32)
    last = study.participants[-1]
    keep = (study.trials["participant"] != last) | (np.arange(study.n_trials) % 2 == 0)
    folder = tmp_path_factory.mktemp("distributed") / "study"
    study.select(trials=keep).save(folder)
    return folder


ABORTED = "terminate called without an active exception"
"""What a process says if gloo's threads abort it on its way out, its work done: rare, under load, and not ours."""


def torchrun(n_processes: int, *command: object, max_restarts: int = 0) -> subprocess.CompletedProcess[str]:
    options = ["--standalone", "--nproc-per-node", n_processes, "--max-restarts", max_restarts]
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *map(str, [*options, *command])],
            env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode == 0 or ABORTED not in done.stderr:
            break
    return done


def test_two_processes_find_what_one_does(study_folder, tmp_path):
    done = torchrun(2, HERE / "fits.py", study_folder, tmp_path)
    assert done.returncode == 0, done.stderr
    study = Study.open(study_folder)
    for name, model in MODELS.items():
        together, alone = type(model).load(tmp_path / name), model.fit(study)
        ours, theirs = (one.history_["bound"].to_numpy() for one in (alone, together))
        np.testing.assert_allclose(theirs, ours, rtol=1e-9, err_msg=name)
        pd.testing.assert_frame_equal(together.factors_, alone.factors_, rtol=1e-6, atol=1e-5, obj=name)
        assert together.n_parameters_ == alone.n_parameters_
        pd.testing.assert_frame_equal(together.frames_, alone.frames_, obj=name)
        assert (alone.frames_["weight"] < 1).sum() == 2
        if hasattr(alone, "participants_"):
            pd.testing.assert_frame_equal(together.participants_, alone.participants_, rtol=1e-5, atol=1e-6, obj=name)
            pd.testing.assert_frame_equal(together.stimuli_, alone.stimuli_, rtol=1e-5, atol=1e-6, obj=name)


@pytest.mark.parametrize("kind", [HTFA, TFA])
def test_a_factor_of_one_participant_comes_back_in_two_processes_as_in_one(study_folder, tmp_path, kind):
    done = torchrun(2, HERE / "astray.py", kind.__name__, study_folder, tmp_path / "astray")
    assert done.returncode == 0, done.stderr
    alone, moved = fit_gone_astray(kind.__name__, Study.open(study_folder))
    assert moved[0] == 1
    together = kind.load(tmp_path / "astray")
    np.testing.assert_allclose(together.history_["bound"], alone.history_["bound"], rtol=1e-8)
    pd.testing.assert_frame_equal(together.factors_, alone.factors_, rtol=1e-6, atol=1e-3)


def test_a_killed_worker_is_started_again_and_the_fit_ends_as_if_nothing_had_been(study_folder, tmp_path):
    options = ["--n-factors", 3, "--max-epochs", 12, "--uncertainty", "mean-field"]
    fit = ["fit", study_folder, tmp_path / "out", *options]
    # One restart is enough, but for a process that aborts on its way out, as gloo's threads let it now and then.
    done = torchrun(2, HERE / "dying.py", *fit, max_restarts=2)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / CONFIG_FILE).is_file()
    history = pd.read_csv(tmp_path / "out" / "history.tsv", sep="\t")
    model = NTFA(n_factors=3, max_epochs=12, random_state=0, uncertainty="mean-field", device="cpu")
    expected = model.fit(Study.open(study_folder)).history_
    np.testing.assert_allclose(history["bound"], expected["bound"], rtol=1e-9)
    assert "exitcode: -9" in done.stderr
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")]


def test_more_processes_than_participants_are_refused(study_folder, tmp_path):
    study = Study.open(study_folder)
    study.select(participants=study.participants[:1]).save(tmp_path / "alone")
    done = torchrun(2, "-m", "ntfa", "fit", tmp_path / "alone", tmp_path / "out", "--n-factors", 2)
    assert done.returncode != 0
    assert re.search(r"ntfa: error: .*\b2 processes\b.*\b1 participant", done.stderr)
    assert not (tmp_path / "out").exists()


def test_newcomers_get_the_same_places_in_two_processes(study_folder, tmp_path):
    study = Study.open(study_folder)
    old, new = study.participants[:2], study.participants[2:]
    study.select(participants=new).save(tmp_path / "new")
    alone = {}
    for response in ("loadings", "network"):
        settings = {"n_factors": 3, "max_epochs": 30, "random_state": 0, "device": "cpu", "uncertainty": "laplace"}
        model = NTFA(**settings, response=response, embedding_dim=(1, 2)).fit(study.select(participants=old))
        model.save(tmp_path / "models" / response)
        alone[response] = model.add(study.select(participants=new)).participants_
    done = torchrun(2, HERE / "adding.py", tmp_path / "models", tmp_path / "new", tmp_path / "added")
    assert done.returncode == 0, done.stderr
    for response, table in alone.items():
        together = NTFA.load(tmp_path / "added" / response).participants_
        assert together.index.tolist() == table.index.tolist()
        # Networks are fitted with random draws, each process with its own.
        tolerance = 1e-5 if response == "loadings" else 0.1 + table["z1_sd"].max()
        np.testing.assert_allclose(together["z1"], table["z1"], atol=tolerance)
