"""How much memory there is: of the machine, of the control group that a cluster puts a job in, of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch


def available_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Return the bytes that can still be allocated on a device; None if nobody says.

    Parameters
    ----------
    device : torch.device
    root : Path
        Where `proc` and `sys` are.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [*_of_machine(root), *_of_groups(root)]
    return max(0, min(found)) if found else None


def _of_machine(root: Path) -> Iterator[int]:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) * 1024


def _of_groups(root: Path) -> Iterator[int]:
    """What the limits of this process' control groups leave, those of version 2 and those of version 1."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _up(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _up(root / "sys/fs/cgroup/memory", path, *names)


def _up(mount: Path, path: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    """Go from a group up to the root of its hierarchy; in a container the path may be the host's, not to be seen."""
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        text = _read(folder / limit).strip()
        if text.isdecimal() and (used := _read(folder / usage).strip()).isdecimal():
            yield int(text) - int(used) + _reclaimable(folder, cache)
        if folder == mount:
            return


def _reclaimable(folder: Path, cache: str) -> int:
    """Bytes of files that were read and can be read again."""
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == cache:
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
