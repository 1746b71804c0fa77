"""Commands killed, stopped, starved of disk and given damaged checkpoints at random: do they end in the same result?

    python benchmarks/faults.py [--kills 50] [--seed 0] [--reports]

Every trial takes a command, disturbs it at a random moment of its life, looks at what is on disk, runs the same command
again with --resume (sometimes disturbing that too), and compares the result, to the bit, with that of an undisturbed
run. Half of the fits overwrite older results, which have to be there, whole, until the new ones are.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

from killing import Command, names, state

SIZE = ["--participants", 3, "--stimuli", 3, "--frames", 6, "--voxels", 150, "--factors", 3, "--quiet"]
MODEL = ["--n-factors", 3, "--max-epochs", 40, "--device", "cpu"]
BIDS = ["--rest", "rest", "--keep-white-matter", *MODEL]
Disturb = Callable[[Command, float], "int | None"]


@dataclass
class Case:
    """A command, what it writes, and what an undisturbed run came to."""

    name: str
    arguments: list[Any]
    out: Path
    log: Path
    reports: bool
    whole: dict[str, Any]
    old: Path | None = None
    seconds: float = 0.0

    def command(self, *options: str, **settings: Any) -> Command:
        """Make the command, with further options."""
        overwrite = ["--overwrite"] if self.old else []
        return Command([*self.arguments, *overwrite, *options], self.log, 0.02, self.reports, **settings)


@dataclass
class Tally:
    """What came of the trials of one kind."""

    kind: str
    trials: int = 0
    hit: int = 0
    same: int = 0
    mixed: int = 0
    left: int = 0

    def row(self) -> str:
        """Return a line of the table."""
        return f"| {self.kind} | {self.trials} | {self.hit} | {self.same} | {self.mixed} | {self.left} |"


def results(case: Case) -> dict[str, Any]:
    """All that the command wrote, to the bit."""
    found = state(case.out)
    for path in sorted(case.out.parent.glob("sub-*/func/*_frames.npy")):
        found[path.name] = path.read_bytes()
    return found


def is_whole(case: Case) -> bool:
    """Whether the output is absent, or whole and old, or whole and new."""
    if not case.out.exists():
        return case.old is None
    found = state(case.out)
    known = [case.whole] + ([state(case.old)] if case.old else [])
    return any(all(one.get(name) == value for name, value in found.items()) for one in known)


def trial(case: Case, disturb: Disturb, tally: Tally, rng: random.Random) -> None:
    """Disturb a command, go on with it until it is done, and count."""
    tally.trials += 1
    while (code := begin_and_disturb(case, disturb, rng)) == 0:
        # It was done before it could be disturbed: other processes leave it more of the machine than at first.
        case.seconds *= 0.8
    while True:
        tally.hit += code != 0
        tally.mixed += not is_whole(case)
        command = case.command("--resume")
        if code == 0 or rng.random() < 0.6:
            break
        code = disturb(command, rng.uniform(0, case.seconds))
    if command.run() != 0:
        print(command.said)
        return
    tally.same += results(case) == case.whole
    hidden = [name for name in names(case.out.parent) if name.startswith(".")]
    tally.left += len(hidden)


def begin_and_disturb(case: Case, disturb: Disturb, rng: random.Random) -> int | None:
    """Run the command in a clean place, disturb it, and return its exit code."""
    for path in case.out.parent.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if case.old:
        shutil.copytree(case.old, case.out)
    return disturb(case.command(), rng.uniform(0, case.seconds))


def with_signal(number: int) -> Disturb:
    """Send a signal after so many seconds; the exit code must be the one for it."""

    def disturb(command: Command, seconds: float) -> int | None:
        command.start().wait(seconds)
        command.send(number)
        code = command.wait(120)
        assert code in (0, -number, 128 + number), (code, command.said)
        assert "Traceback" not in command.said, command.said
        return code

    return disturb


def with_full_disk(command: Command, seconds: float) -> int | None:
    """Let no file grow over some size, from nothing to more than any of them has."""
    command.largest_file = int(10 ** (2 + 3 * (seconds % 1)))
    code = command.run()
    assert code in (0, 1), (code, command.said)
    assert "Traceback" not in command.said, command.said
    return code


def with_damage(rng: random.Random, folder: Path) -> Disturb:
    """Kill the command, and flip a bit of its checkpoint or cut it short, anywhere."""
    kill = with_signal(signal.SIGKILL)

    def disturb(command: Command, seconds: float) -> int | None:
        code = kill(command, seconds)
        path = folder / "restart-0.safetensors"
        if path.exists() and path.with_name("restart-0.previous.safetensors").exists():
            content = bytearray(path.read_bytes())
            place = rng.randrange(len(content))
            content[place] ^= 1 << rng.randrange(8)
            path.write_bytes(content if rng.random() < 0.7 else content[:place])
        return code

    return disturb


def undisturbed(name: str, arguments: list[Any], out: Path, reports: bool) -> Case:
    """Run a command in peace, and keep what it came to and how long it took."""
    case = Case(name, arguments, out, out.parents[1] / f"{name}.log", reports, {})
    began = time.monotonic()
    command = case.command()
    if command.run() != 0:
        raise SystemExit(command.said)
    case.whole, case.seconds = results(case), time.monotonic() - began
    return case


def cases(folder: Path, reports: bool) -> tuple[Case, Case, Case]:
    """Prepare a fit to nothing, a fit that overwrites, and a BIDS App."""
    for name, options in (("study", []), ("dataset", ["--bids", "--runs", 2])):
        command = Command(["simulate", folder / name, *SIZE, *options], folder / "log")
        if command.run() != 0:
            raise SystemExit(command.said)
    for name in ("fit", "bids"):
        (folder / name).mkdir()
    undisturbed(
        "old", ["fit", folder / "study", folder / "fit" / "old", *MODEL, "--seed", 1], folder / "fit" / "old", reports
    )
    old = shutil.move(folder / "fit" / "old", folder / "old")
    arguments = ["fit", folder / "study", folder / "fit" / "out", *MODEL]
    fit = undisturbed("fit", arguments, folder / "fit" / "out", reports)
    overwriting = Case("fit", arguments, fit.out, fit.log, reports, fit.whole, Path(old), fit.seconds)
    arguments = ["bids", folder / "dataset", folder / "bids", "group", *BIDS]
    return fit, overwriting, undisturbed("bids", arguments, folder / "bids" / "ntfa", reports)


def main() -> None:
    """Disturb, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50, help="commands to kill; others are disturbed a fifth as often")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reports", action="store_true", help="also write reports, as people do: slower")
    args = parser.parse_args()
    rng, began = random.Random(args.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as parent:
        fit, overwriting, bids = cases(Path(parent), args.reports)
        damage = with_damage(rng, Path(parent) / "fit" / ".out.checkpoint")
        few = max(1, args.kills // 5)
        plan: list[tuple[str, list[Case], Disturb, int]] = [
            ("`ntfa fit`, kill -9", [fit, overwriting], with_signal(signal.SIGKILL), args.kills - 2 * few),
            ("`ntfa bids`, kill -9", [bids], with_signal(signal.SIGKILL), 2 * few),
            ("SIGTERM", [fit, bids], with_signal(signal.SIGTERM), few),
            ("SIGINT", [overwriting, bids], with_signal(signal.SIGINT), few),
            ("full disk", [overwriting, bids], with_full_disk, few),
            ("kill -9, checkpoint damaged", [fit, overwriting], damage, few),
        ]
        print(
            "| what is done to it | runs | times hit | same result | mixtures | left over |\n|---|---|---|---|---|---|"
        )
        for kind, used, disturb, n in plan:
            tally = Tally(kind)
            for i in range(n):
                trial(used[i % len(used)], disturb, tally, rng)
            print(tally.row(), flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
