"""Options that say where vertices of cortex are, and pairs of files of its hemispheres."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntfa.errors import StudyError

if TYPE_CHECKING:
    from ntfa.study.surfaces import SurfaceFiles

HEMISPHERE = re.compile(r"(?<=hemi-)[LR](?=[_.])")


def add_surface_options(command: argparse.ArgumentParser) -> None:
    """Add the options to a command."""
    group = command.add_argument_group("cortical surfaces")
    of = "of the vertices' template (.surf.gii)"
    known = "default: fsaverage5 of nilearn; fsLR of TemplateFlow's folder; fMRIPrep's"
    pair: dict[str, Any] = {"nargs": 2, "metavar": ("LEFT", "RIGHT")}
    group.add_argument("--midthickness", help=f"midthickness surfaces {of}: where vertices are ({known})", **pair)
    group.add_argument("--sphere", help=f"spheres {of}, over which distances along the cortex are measured", **pair)
    group.add_argument("--inflated", help=f"inflated surfaces {of}, for pictures", **pair)
    group.add_argument(
        "--surface-distance",
        choices=("sphere", "straight"),
        default="sphere",
        help="whether factors of cortex are round over the sphere of their hemisphere, or in a straight line",
    )


def files_from(args: argparse.Namespace) -> SurfaceFiles:
    """Read which surfaces the options name."""
    from ntfa.study.surfaces import SurfaceFiles

    given = (args.midthickness, args.sphere, args.inflated)
    midthickness, sphere, inflated = (None if pair is None else (pair[0], pair[1]) for pair in given)
    return SurfaceFiles(midthickness, sphere, inflated, args.surface_distance)


def paired(files: Sequence[str]) -> list[Any]:
    """Put files of two hemispheres, whose names differ in hemi-L and hemi-R alone, together as (left, right)."""
    found: list[Any] = []
    rest = list(files)
    while rest:
        file = rest.pop(0)
        hemisphere = HEMISPHERE.search(Path(file).name)
        if not file.endswith((".gii", ".gii.gz")) or hemisphere is None:
            found.append(file)
            continue
        other = "R" if hemisphere[0] == "L" else "L"
        name = HEMISPHERE.sub(other, Path(file).name)
        twin = next((one for one in rest if Path(one).name == name), None)
        if twin is None:
            raise StudyError(f"{file}: the other hemisphere's {name} is not given; images of cortex come in pairs")
        rest.remove(twin)
        found.append((file, twin) if other == "R" else (twin, file))
    return found
