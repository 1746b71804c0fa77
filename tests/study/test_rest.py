"""What a study of one run per participant knows of the error of the baseline that it was z-scored by."""

import numpy as np
import pandas as pd
import pytest
from nibabel import Nifti1Image

from ntfa import Study
from ntfa.analyses.labels import label_table
from ntfa.study.rest import ROWS_OF_REST, halves_of_rest, rows_of_rest, with_rest

N_REST = 40


def images(n_runs: int, seed: int = 0) -> Study:
    """Runs of noise: rest, a block of "cat", rest, a block of "dog"."""
    rng = np.random.default_rng(seed)
    mask = Nifti1Image(np.ones((3, 3, 3), dtype=np.uint8), np.diag([3, 3, 3, 1]))
    imgs = [Nifti1Image(rng.normal(100, 5, (3, 3, 3, 60)).astype(np.float32), mask.affine) for _ in range(2 * n_runs)]
    events = pd.DataFrame({"onset": [20.0, 50.0], "duration": 10.0, "trial_type": ["cat", "dog"]})
    who = ["sub-1"] * n_runs + ["sub-2"] * n_runs
    return Study.from_images(imgs, [events] * len(imgs), who, mask, t_r=1.0, delay=0.0)


def test_halves_of_rest_do_not_overlap_and_balance_a_drift() -> None:
    one, other = halves_of_rest(np.arange(N_REST))
    assert sorted([*one, *other]) == list(range(N_REST))
    assert one.mean() == other.mean()


def test_one_run_keeps_what_halves_of_its_rest_say() -> None:
    study = images(1)
    for participant in study.participants:
        rows = rows_of_rest(study.trials[study.trials["participant"] == participant])
        assert rows is not None
        one, other = study.frames[participant][rows]
        # The mean of all rest frames is zero after z-scoring, and halves are of one size.
        np.testing.assert_allclose(one, -other, atol=1e-5)
        assert 0.3 < one.std() / np.sqrt(1 / N_REST) < 3
    assert study.n_trial_frames == 40


def test_several_runs_need_none() -> None:
    assert not set(ROWS_OF_REST) & set(images(2).trials)


@pytest.mark.parametrize("n_rest", [0, 3])
def test_too_little_rest_to_halve(n_rest: int) -> None:
    frames, trials = np.ones((4, 5), dtype=np.float32), pd.DataFrame({"start": [0], "stop": [4]})
    kept, table = with_rest(frames, trials, np.ones((n_rest, 5), dtype=np.float32))
    assert kept is frames
    assert rows_of_rest(table) is None


def test_rows_of_rest_are_no_label_of_participants() -> None:
    assert not set(ROWS_OF_REST) & set(label_table(images(1), "participant"))
