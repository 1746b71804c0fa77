"""Fits that do not wait for each other, several at a time: each in a process of its own, with one thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from joblib import Parallel, delayed, parallel_config

from ntfa.comparison.settings import Settings
from ntfa.estimators.estimates import estimate
from ntfa.estimators.htfa import HTFA
from ntfa.estimators.settings import resolve_device
from ntfa.fitting.memory import available_memory
from ntfa.study import Study

logger = logging.getLogger("ntfa")

LEAST_WORK = 3e7
"""Observed values times factors under which a process takes longer to start than the fits that it would save."""

SECONDS_BETWEEN_LOOKS = 1.0


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
    """Return a function's results for all jobs, in order; started in this order too, those that take longest first.

    What another process has to warn of is said by this one, once.
    """
    if at_once == 1:
        return [function(*job) for job in jobs]
    results, said = [], set[str]()
    # One job at a time: more would wait behind a long one while another process has nothing to do.
    with parallel_config("loky", inner_max_num_threads=1):
        tasks = (delayed(_run)(os.getpid(), function, job) for job in jobs)
        for result, records in Parallel(n_jobs=at_once, return_as="generator", batch_size=1)(tasks):
            results.append(result)
            for record in records:
                if record.msg not in said:
                    logger.handle(record)
                said.add(record.msg)
    return results


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function: for jobs of several kinds."""
    return function(*arguments)


def _run(parent: int, function: Callable[..., Any], job: tuple[Any, ...]) -> tuple[Any, list[logging.LogRecord]]:
    _end_with(parent)
    with _Kept() as records:
        return function(*job), records


class _Kept(logging.Handler):
    """Keeps what is logged instead of showing it: as text, since what it is about may not go to another process."""

    def __enter__(self) -> list[logging.LogRecord]:
        self.records: list[logging.LogRecord] = []
        self.before, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        return self.records

    def __exit__(self, *error: object) -> None:
        logger.removeHandler(self)
        logger.propagate = self.before

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args, record.exc_info = record.getMessage(), None, None
        self.records.append(record)


@cache
def _end_with(parent: int) -> None:
    """Let this process end when the one that started it has: a fit that goes on would meet the same one, resumed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        # At once, whatever is being done: files are whole or not there at any moment.
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
