"""Fits that do not wait for each other, several at a time: each in a process of its own, with one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from joblib import Parallel, delayed, parallel_config

from ntfa.comparison.settings import Settings
from ntfa.estimators.estimates import estimate
from ntfa.estimators.htfa import HTFA
from ntfa.estimators.settings import resolve_device
from ntfa.fitting.memory import available_memory
from ntfa.study import Study

LEAST_WORK = 3e7
"""Observed values times factors under which a process takes longer to start than the fits that it would save."""


def n_at_once(settings: Settings, study: Study) -> int:
    """How many fits are worth doing at a time: as many as are asked for and memory is there for, one on a GPU."""
    device = resolve_device(settings.device)
    if settings.n_jobs == 1 or device.type != "cpu" or study.n_data * settings.n_factors < LEAST_WORK:
        return 1
    there = available_memory(device)
    model = HTFA(settings.n_factors, block=settings.htfa_block, device="cpu")
    fitting = settings.n_jobs if there is None else there // max(1, estimate(study, model).memory_bytes)
    return max(1, min(settings.n_jobs, fitting)) if settings.n_jobs > 0 else max(1, fitting)


def run_all(function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], at_once: int) -> list[Any]:
    """Return a function's results for all jobs, in order."""
    if at_once == 1:
        return [function(*job) for job in jobs]
    with parallel_config("loky", inner_max_num_threads=1):
        return list(Parallel(n_jobs=at_once)(delayed(function)(*job) for job in jobs))
