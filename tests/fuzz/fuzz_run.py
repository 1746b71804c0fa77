"""Feed damaged files to every reader; anything but a success or an error of ours that names the place is a bug.

    python tests/fuzz/fuzz_run.py --inputs 10000              every reader, a table at the end
    python tests/fuzz/fuzz_run.py --reader events --only 1234 one input again, with the traceback

An input is known by its reader and its number alone.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import fuzz_mutations
from fuzz_readers import READERS, Reader

from ntfa.errors import NTFAError

KINDS = ("success", "our error", "BUG")
SECONDS = 10.0
BYTES = 3 * 2**30
# Of Linux alone; elsewhere memory is not limited.
STATISTICS = Path("/proc/self/statm")
SLOW = {"BIDS dataset": 20}
"""Readers that get fewer inputs by this factor: pybids takes half a second for a dataset."""


class Hang(BaseException):
    """A reader took too long; not an `Exception`, so that nothing swallows it."""


@dataclass
class Outcome:
    """Counts of outcomes, and a line for each bug."""

    counts: Counter[str] = field(default_factory=Counter)
    bugs: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0


class Fuzzed:
    """A sound folder of a reader, which is damaged and mended again and again."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.reader: Reader = READERS[name]
        self.reader.make(folder)
        found = {path for pattern in self.reader.files for path in folder.glob(pattern) if path.is_file()}
        self.sound = {path: path.read_bytes() for path in sorted(found)}
        self.damaged: set[Path] = set()
        problem = self.reader.problem(self.reader.read(folder))
        assert problem is None, f"{name}: the sound folder is wrong: {problem}"

    def damage(self, number: int) -> str:
        """Mend what was damaged before, and damage one or two files."""
        rng = random.Random(f"{self.name}/{number}")
        for path in self.damaged:
            fuzz_mutations.remove(path)
            path.write_bytes(self.sound[path])
        self.damaged = set(rng.sample(list(self.sound), min(len(self.sound), rng.choice([1, 1, 1, 2]))))
        return ", ".join(f"{path.name}: {fuzz_mutations.mutate_file(path, rng)}" for path in sorted(self.damaged))

    def outcome(self, number: int) -> tuple[str, str]:
        """Read the folder damaged by this number: "success", "our error" or "BUG", and what happened."""
        how = self.damage(number)
        try:
            with guarded():
                problem = self.reader.problem(self.reader.read(self.folder))
        except NTFAError as error:
            return self._judge(error)
        except (Exception, Hang) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:160]
            return "BUG", f"{type(error).__name__}: {text} ({Path(where.filename).name}:{where.lineno}) [{how}]"
        return ("success", "") if problem is None else ("BUG", f"wrong success: {problem} [{how}]")

    def _judge(self, error: NTFAError) -> tuple[str, str]:
        text = str(error)
        named = any(place.format(folder=self.folder) in text for place in self.reader.places)
        if not named or "\n" in text.strip():
            return "BUG", f"names no place, or is of several lines: {text[:160]!r}"
        return "our error", text


@contextmanager
def guarded() -> Iterator[None]:
    """Limit time and memory, and let arithmetic that goes wrong in ntfa be an error."""

    def hang(number: int, frame: object) -> None:
        raise Hang(f"took more than {SECONDS} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGALRM, hang)
    if STATISTICS.exists():
        resource.setrlimit(resource.RLIMIT_AS, (_in_use() + BYTES, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", category=RuntimeWarning, module=r"ntfa\.")
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, previous)


def _in_use() -> int:
    return int(STATISTICS.read_text().split()[0]) * resource.getpagesize()


def fuzz(name: str, first: int, count: int, folder: Path) -> Outcome:
    """Feed inputs number first, ..., first + count - 1 to a reader."""
    fuzzed, found, began = Fuzzed(name, folder), Outcome(), time.perf_counter()
    for number in range(first, first + count):
        kind, text = fuzzed.outcome(number)
        found.counts[kind] += 1
        if kind == "BUG":
            found.bugs[number] = text
    found.seconds = time.perf_counter() - began
    return found


def again(name: str, number: int) -> int:
    """Read one input again, with the traceback."""
    with tempfile.TemporaryDirectory() as folder:
        fuzzed = Fuzzed(name, Path(folder))
        print(fuzzed.damage(number))
        problem = fuzzed.reader.problem(fuzzed.reader.read(Path(folder)))
        print(f"wrong success: {problem}" if problem else "success")
    return int(problem is not None)


def main() -> int:
    """Run from the command line; the exit code is 1 if there are bugs."""
    for name in ("ntfa", "nibabel.global"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000, help="for each reader (default: 10000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input (default: 0)")
    parser.add_argument("--reader", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--only", type=int, metavar="NUMBER", help="read one input again, with the traceback")
    args = parser.parse_args()
    if args.only is not None:
        return again(args.reader[0], args.only)
    print(f"{'reader':<16}{'inputs':>8}{''.join(f'{kind:>11}' for kind in KINDS)}{'seconds':>9}", flush=True)
    n_bugs = 0
    for name in args.reader:
        count = max(1, args.inputs // SLOW.get(name, 1))
        with tempfile.TemporaryDirectory() as folder:
            found = fuzz(name, args.first, count, Path(folder))
        n_bugs += len(found.bugs)
        numbers = "".join(f"{found.counts[kind]:>11}" for kind in KINDS)
        print(f"{name:<16}{count:>8}{numbers}{found.seconds:>9.0f}", flush=True)
        for number, text in list(found.bugs.items())[:20]:
            print(f"    {number}: {text}", flush=True)
    return int(n_bugs > 0)


if __name__ == "__main__":
    sys.exit(main())
