"""Make `src/ntfa/study/mni152.npz` of what comes with nilearn: `python tests/study/mni152_from_nilearn.py`."""

import json
from pathlib import Path
from typing import Any

import nilearn.plotting.glass_brain as glass
import numpy as np
from nilearn.datasets import load_mni152_brain_mask, load_mni152_template

MOVE, LINE, CURVE = 1, 2, 4
"""matplotlib's codes of a path."""


def derive() -> dict[str, Any]:
    """Everything that is kept, by name."""
    kept: dict[str, Any] = {"origin": load_mni152_template(resolution=2).affine[:3, 3]}
    for spacing in (2, 4):
        inside = np.asarray(load_mni152_brain_mask(resolution=spacing).dataobj) > 0
        kept |= {f"brain_{spacing}": np.packbits(inside), f"shape_{spacing}": np.array(inside.shape)}
    for spacing in (2, 3):
        values = np.asarray(load_mni152_template(resolution=spacing).dataobj, dtype=np.float64)
        kept[f"shades_{spacing}"] = np.rint(255 * values.clip(min=0) / values.max()).astype(np.uint8)
    for axis in "xyz":
        kept |= {f"{axis}_{name}": value for name, value in _outline(axis).items()}
    return kept


def _outline(axis: str) -> dict[str, Any]:
    """Join segments that go on where the one before ended, and paths of one kind that follow each other."""
    file, transform = glass._get_json_and_transform(axis)
    content = json.loads(Path(file).read_text())
    styles: list[tuple[str, float]] = []
    vertices: list[list[Any]] = []
    codes: list[list[int]] = []
    for path in content["paths"]:
        style = (path["edgecolor"], round(path["linewidth"], 6))
        if not styles or styles[-1] != style:
            styles.append(style)
            vertices.append([])
            codes.append([])
        for item in path["items"]:
            goes_on = bool(vertices[-1]) and np.allclose(vertices[-1][-1], item["pts"][0], atol=1e-6)
            code = CURVE if item["type"] == "bezier" else LINE
            vertices[-1] += item["pts"][goes_on:]
            codes[-1] += [MOVE, *[code] * (len(item["pts"]) - 1)][goes_on:]
    return {
        "vertices": transform.transform(np.concatenate(vertices)).astype(np.float32),
        "codes": np.concatenate(codes).astype(np.uint8),
        "lengths": np.array([len(own) for own in vertices]),
        "colours": np.array([colour for colour, _ in styles]),
        "widths": np.array([width for _, width in styles]),
        "bounds": np.array(glass._get_object_bounds(content, transform)),
    }


if __name__ == "__main__":
    target = Path(__file__).parents[2] / "src" / "ntfa" / "study" / "mni152.npz"
    np.savez_compressed(target, **derive())
