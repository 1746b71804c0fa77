"""What a fit will need is known beforehand, and a fit that cannot fit is refused."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import assert_names, naming

import ntfa.estimators.estimates
from ntfa import HTFA, NTFA, TLSA, Study
from ntfa.cli import main
from ntfa.errors import ModelError, TooLargeError
from ntfa.estimators.base import TopographicModel
from ntfa.estimators.estimates import estimate, require_memory
from ntfa.fitting.memory import available_memory

CPU = torch.device("cpu")
GB = 10**9


def test_counts_are_those_of_the_fit(study: Study, kind: object, fitted: object) -> None:
    model = fitted(kind)
    # Of the fitted model itself: before a fit, what the data will choose can only be presumed.
    found = estimate(study, model)
    assert found.n_data == model.n_data_
    assert found.n_parameters == model.n_parameters_
    assert found.frames_bytes == 4 * found.n_data
    assert found.memory_bytes == found.needed_bytes + found.frames_bytes


def test_estimates_grow_with_what_is_asked_for(study: Study) -> None:
    base = NTFA(n_factors=20, init="kmeans", uncertainty="mean-field")
    larger: list[TopographicModel] = [HTFA(n_factors=20, block="trial", init="kmeans")]
    changes = ({"n_factors": 40}, {"n_particles": 4}, {"inference": "mean-field"})
    changes += ({"uncertainty": "laplace"},)
    larger += [NTFA(**base.get_params() | change) for change in changes]
    for model in larger:
        assert estimate(study, model).needed_bytes > estimate(study, base).needed_bytes
    assert estimate(study, larger[1]).flops > 1.9 * estimate(study, base).flops


def test_operations_are_at_least_those_of_the_products(study: Study) -> None:
    found = estimate(study, NTFA(n_factors=3))
    # 4 operations per observation and factor in the products with frames, at the least.
    assert found.flops > 4 * found.n_data * 3


def test_frames_on_disk_count_two_participants_at_a_time(study: Study, study_folder: str) -> None:
    base = NTFA(n_factors=3, coarse="always")
    limited = NTFA(**base.get_params() | {"memory": "2GB"})
    stored = Study.open(study_folder)
    whole, on_disk = estimate(stored, base), estimate(stored, limited)
    assert len(stored.participants) > 2
    assert on_disk.needed_bytes == on_disk.memory_bytes < whole.memory_bytes
    assert on_disk.frames_bytes == whole.frames_bytes
    in_memory = Study.from_arrays(
        {who: np.array(study.frames[who]) for who in study.participants}, study.trials, study.coordinates
    )
    assert estimate(in_memory, limited) == estimate(in_memory, base)


def test_pooled_frames_are_counted(study: Study) -> None:
    fine, pooled = (estimate(study, NTFA(n_factors=3, coarse=coarse)) for coarse in ("never", "always"))
    assert fine.frames_bytes / 8 < pooled.needed_bytes - fine.needed_bytes < fine.frames_bytes


def test_processes_divide_frames_and_work(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = estimate(study, NTFA(n_factors=20))
    monkeypatch.setattr(ntfa.estimators.estimates, "current_processes", lambda: SimpleNamespace(size=3))
    shared = estimate(study, NTFA(n_factors=20))
    assert 0.3 < shared.flops / alone.flops < 0.4
    assert shared.needed_bytes < alone.needed_bytes
    assert (shared.n_parameters, shared.n_data) == (alone.n_parameters, alone.n_data)


def test_nothing_is_allocated_for_an_estimate(study: Study) -> None:
    """Ten million factors' worth of parameters for the networks alone, had they been made."""
    many = Study.from_arrays(
        {name: array.repeat(400, axis=1) for name, array in study.frames.items()},
        study.trials,
        torch.rand(400 * study.n_voxels, 3).numpy(),
    )
    found = estimate(many, HTFA(n_factors=100_000, block="trial"))
    assert found.needed_bytes > 1000 * GB


def test_settings_that_mean_nothing_are_refused(study: Study) -> None:
    with pytest.raises(ModelError, match=naming("n_factors=301", 300)):
        estimate(study, NTFA(n_factors=301))
    with pytest.raises(ModelError, match="n_particles"):
        estimate(study, TLSA(n_factors=3, n_particles=0))


# --- refusing


def test_a_fit_that_cannot_fit_is_refused(
    study: Study, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    needs = estimate(study, NTFA(n_factors=3))
    for there, refused in ((needs.needed_bytes - 1, True), (needs.needed_bytes, False), (None, False)):
        monkeypatch.setattr(ntfa.estimators.estimates, "available_memory", lambda device, there=there: there)
        if refused:
            with pytest.raises(TooLargeError, match="--force"):
                require_memory(study, NTFA(n_factors=3))
        else:
            require_memory(study, NTFA(n_factors=3))
    assert_names(caplog.text, "--memory")


@pytest.mark.usefixtures("no_pictures")
def test_force_overrides(
    study_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(ntfa.estimators.estimates, "available_memory", lambda device: 1000)
    command = ["fit", study_folder, str(tmp_path / "out"), "--n-factors", "3", "--max-epochs", "2", "--device", "cpu"]
    assert main(command) == 1
    assert "--force" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main([*command, "--force"]) == 0


def test_plenty_is_not_warned_of(study: Study, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ntfa"):
        require_memory(study, NTFA(n_factors=3))
    assert caplog.text == ""


# --- how much there is


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:  16000000 kB\nMemAvailable:    8000000 kB\nSwapTotal: 0 kB\n"}
STAT = "anon 100\ninactive_file 500000000\n"


def test_memory_of_a_machine(tmp_path: Path) -> None:
    assert available_memory(CPU, machine(tmp_path, MEMINFO)) == 8_000_000 * 1024
    assert available_memory(CPU, tmp_path / "nothing") is None


def test_memory_of_a_group_of_version_2(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/slurm/job1"
    files = {
        "proc/self/cgroup": "0::/slurm/job1/step\n",
        f"{group}/step/memory.max": "max\n",
        f"{group}/step/memory.current": "1\n",
        f"{group}/memory.max": "4000000000\n",
        f"{group}/memory.current": "1500000000\n",
        f"{group}/memory.stat": STAT,
    }
    assert available_memory(CPU, machine(tmp_path, MEMINFO | files)) == 3 * GB


def test_memory_of_a_group_of_version_1_in_a_container(tmp_path: Path) -> None:
    """The path is the host's, the files are at the root."""
    group = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "12:cpu,cpuacct:/a\n4:memory:/docker/0123\n1:name=systemd:/b\n",
        f"{group}/memory.limit_in_bytes": "2000000000\n",
        f"{group}/memory.usage_in_bytes": "1000000000\n",
        f"{group}/memory.stat": "cache 3\ntotal_inactive_file 500000000\n",
    }
    assert available_memory(CPU, machine(tmp_path, MEMINFO | files)) == 1_500_000_000


def test_no_limit_of_version_1_is_no_limit(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000000\n",
    }
    assert available_memory(CPU, machine(tmp_path, MEMINFO | files)) == 8_000_000 * 1024


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux")
def test_memory_of_this_machine() -> None:
    total = int(re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text()).group(1)) * 1024
    found = available_memory(CPU)
    assert found is not None
    assert 0 < found <= total
