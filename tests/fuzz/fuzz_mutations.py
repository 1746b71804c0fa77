"""Ways to damage a file: any file by its bytes, and tables, JSON, arrays, tensors and images also by what they mean."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

Bytes = Callable[[bytes, random.Random], bytes]

NUMBERS = ["0", "-1", "1e308", "-1e308", "1e400", "nan", "inf", "-inf", "1e-320", "0x10", "1,5", "٣", "1_0", "9" * 400]
WORDS = [
    "",
    "n/a",
    "NA",
    "None",
    " ",
    "é",
    "\ufeff",
    "\u202e",
    "../../x",
    "/etc/passwd",
    "<script>",
    "$\\frac{$",
    "a" * 5000,
]
QUOTED = ['"', '""', '"a', 'a"', "'", '"a\tb"', '"a\nb"', "a\rb", "\x00", "=1+1", "\\", "\t"]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 10**12, 10**30, -(10**30), 0.5, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", "x", "../../x", "/etc/passwd", "\ud800", "<script>alert(1)</script>", "n/a", "1"),
    *([], {}, [[]], [None], {"": None}, [1, 2, 3], "a" * 10_000),
]


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat, insert or overwrite bytes."""
    if not data:
        return rng.randbytes(rng.randint(1, 64))
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5, 50])):
        place = rng.randrange(len(changed)) if changed else 0
        length = rng.choice([1, 1, 2, 4, 8, 64])
        kind = rng.randrange(8)
        if kind <= 2 and changed:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 3:
            changed[place : place + length] = rng.randbytes(length)
        elif kind == 4:
            changed[place : place + length] = rng.choice([b"\x00", b"\xff", b"\x7f", b"\x80"]) * length
        elif kind == 5:
            changed[place:place] = changed[place : place + length]
        elif kind == 6:
            del changed[place : place + length]
        else:
            changed = changed[: rng.choice([place, len(changed) - 1, 0])]
    return bytes(changed)


# --- tables


def mutate_table(data: bytes, rng: random.Random) -> bytes:
    """Damage a TSV table: cells, rows, columns, quotes, line ends, encoding."""
    rows = [line.split("\t") for line in data.decode("utf-8").rstrip("\n").split("\n")]
    for _ in range(rng.choice([1, 1, 2, 4])):
        rng.choice(TABLE)(rows, rng)
    ends = rng.choice(["\n"] * 6 + ["\r\n", "\r", "\n\n", "\t\n"])
    text = ends.join(rng.choice(["\t"] * 30 + [",", " ", "\t\t"]).join(row) for row in rows)
    text += rng.choice(["\n", "\n", "", "\n\n", '"'])
    encoding = rng.choice(["utf-8"] * 10 + ["utf-8-sig", "utf-16", "utf-16-le", "latin-1", "utf-32", "cp037"])
    return text.encode(encoding, errors="replace")


def _cell(rows: list[list[str]], rng: random.Random) -> None:
    row = rng.choice(rows[1:] or rows)
    if row:
        row[rng.randrange(len(row))] = rng.choice(rng.choice([NUMBERS, WORDS, QUOTED]))


def _column(rows: list[list[str]], rng: random.Random) -> None:
    column, value = rng.randrange(len(rows[0])) if rows and rows[0] else 0, rng.choice([*NUMBERS, *WORDS])
    for row in rows[1:]:
        if column < len(row):
            row[column] = value


def _rename(rows: list[list[str]], rng: random.Random) -> None:
    if rows and rows[0]:
        others = rng.choice([rows[0], WORDS, QUOTED])
        rows[0][rng.randrange(len(rows[0]))] = rng.choice(others)


def _drop_column(rows: list[list[str]], rng: random.Random) -> None:
    column = rng.randrange(len(rows[0])) if rows and rows[0] else 0
    for row in rows:
        del row[column : column + 1]


def _double_column(rows: list[list[str]], rng: random.Random) -> None:
    column = rng.randrange(len(rows[0])) if rows and rows[0] else 0
    for row in rows:
        row.append(row[column] if column < len(row) else "")


def _ragged(rows: list[list[str]], rng: random.Random) -> None:
    row = rng.choice(rows)
    if rng.random() < 0.5:
        row.extend(rng.choice(WORDS) for _ in range(rng.randint(1, 3)))
    else:
        del row[rng.randrange(len(row) + 1) :]


def _rows(rows: list[list[str]], rng: random.Random) -> None:
    kind, place = rng.randrange(5), rng.randrange(len(rows))
    if kind == 0:
        rows.insert(place, list(rows[place]))
    elif kind == 1 and len(rows) > 1:
        del rows[place]
    elif kind == 2:
        body = rows[1:]
        rng.shuffle(body)
        rows[1:] = body
    elif kind == 3:
        del rows[1:]
    else:
        rows.insert(place, [])


TABLE = [_cell, _cell, _cell, _column, _rename, _drop_column, _double_column, _ragged, _rows]


# --- JSON


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Damage JSON: a value anywhere in it, a key, its nesting, its encoding."""
    kind = rng.randrange(12)
    if kind == 0:
        return b"[" * 20_000 + b"]" * 20_000
    if kind == 1:
        return b'{"a":' * 20_000 + b"1" + b"}" * 20_000
    if kind == 2:
        return json.dumps(copy.deepcopy(rng.choice(VALUES))).encode()
    if kind == 3:
        return data.decode().encode(rng.choice(["utf-8-sig", "utf-16", "latin-1", "utf-32"]), errors="replace")
    tree = json.loads(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        _change(tree, rng)
    return json.dumps(tree).encode()


def _change(tree: Any, rng: random.Random) -> None:
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(tree[key], dict | list) or rng.random() < 0.3:
            break
        tree = tree[key]
    kind = rng.randrange(6)
    if kind == 0:
        del tree[key]
    elif kind == 1 and isinstance(tree, dict):
        tree[rng.choice(["", "x", "../../x", "\ud800", "__class__"])] = tree.pop(key)
    elif kind == 1 and isinstance(tree, list):
        tree.append(tree[key])
    elif kind == 2:
        tree[key] = [tree[key]] if rng.random() < 0.5 else str(tree[key])
    else:
        tree[key] = copy.deepcopy(rng.choice(VALUES))


# --- arrays and tensors


def mutate_array(data: bytes, rng: random.Random) -> bytes:
    """Damage an .npy file: values, type, shape, header; or put another kind of numpy file in its place."""
    array = np.load(io.BytesIO(data))
    kind, out = rng.randrange(8), io.BytesIO()
    if kind == 0:
        return _claim(data, rng)
    if kind == 1:
        np.savez(out, array) if rng.random() < 0.5 else np.savez_compressed(out, frames=array)
        return out.getvalue()
    if kind == 2:
        np.save(out, np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
        return out.getvalue()
    np.save(out, changed_array(array, rng))
    return out.getvalue()


def _claim(data: bytes, rng: random.Random) -> bytes:
    """Let the header claim another shape or type, with the values as they were."""
    length = struct.unpack("<H", data[8:10])[0]
    shape = rng.choice(["(1000000, 1000000)", "(1000000000000,)", "(-1, 3)", "()", "(0, 3)", "(2, 3, 4)", "3", "None"])
    kind = rng.choice(["<f4", "<f8", "|O", "|V8", "<i8", "<c16", "<U9", "[('a','<f4')]", "bogus", ">f4"])
    header = f"{{'descr': '{kind}', 'fortran_order': {rng.choice(['True', 'False', 'None'])}, 'shape': {shape}, }}"
    text = header.encode().ljust(length - 1)[: length - 1] + b"\n"
    return data[:10] + text + data[10 + length :]


def changed_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """Change an array's values, type or shape."""
    array, kind = array.copy(), rng.randrange(10)
    if kind <= 2 and array.size and array.dtype.kind == "f":
        values = [np.nan, np.inf, -np.inf, 1e300, -1e300, 1e38, 1e-300, 0.0]
        with np.errstate(over="ignore"):
            array.reshape(-1)[rng.randrange(array.size)] = rng.choice(values)
    elif kind == 3:
        return array[: rng.randrange(len(array) + 1)] if array.ndim else array
    elif kind == 4:
        return array.T.copy() if rng.random() < 0.5 else np.asfortranarray(array)
    elif kind == 5:
        with np.errstate(all="ignore"):
            return array.astype(rng.choice(["f2", "f8", "i4", "u1", "?"]))
    elif kind == 6:
        return array[None] if rng.random() < 0.5 else array.reshape(-1)
    elif kind == 7:
        array[:] = 0
    elif kind == 8 and len(array):
        array[rng.randrange(len(array))] = array[0]
    else:
        return np.concatenate([array, array]) if array.ndim else array
    return array


def mutate_tensors(data: bytes, rng: random.Random) -> bytes:
    """Damage a safetensors file: its tensors' values, types, shapes and names, or what its header claims."""
    tensors = load(data)
    name = rng.choice(sorted(tensors))
    kind = rng.randrange(8)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[rng.choice(["x", "../../x", ""])] = tensors.pop(name)
    elif kind == 2:
        return _header(data, rng)
    elif kind == 3:
        other = rng.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    elif kind == 4:
        with np.errstate(all="ignore"):
            tensors = {key: value * rng.choice([1e3, 1e100, -1.0, 0.0]) for key, value in tensors.items()}
    else:
        change = changed_array if rng.random() < 0.2 and tensors[name].ndim else _same_shape
        tensors[name] = change(tensors[name], rng)
    return bytes(save({key: np.ascontiguousarray(value) for key, value in tensors.items()}))


def _same_shape(array: np.ndarray, rng: random.Random) -> np.ndarray:
    array = array.copy()
    if array.dtype.kind != "f" or not array.size:
        return array
    value = rng.choice([np.nan, np.inf, -np.inf, 1e308, -1e308, 1e4, -1e4, 1e20, -1e20, 700.0, -700.0])
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        flat[slice(None) if rng.random() < 0.3 else rng.randrange(array.size)] = value
    return flat.reshape(array.shape)


def _header(data: bytes, rng: random.Random) -> bytes:
    length = struct.unpack("<Q", data[:8])[0]
    if rng.random() < 0.3:
        return struct.pack("<Q", rng.choice([0, 2**63, 2**40, length + 8, 10**8])) + data[8:]
    header = mutate_json(data[8 : 8 + length].rstrip(b" "), rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


# --- images

FIELDS = [(0, "i")] + [(40 + 2 * i, "h") for i in range(8)] + [(70, "h"), (72, "h")]
FIELDS += [(76 + 4 * i, "f") for i in range(8)] + [
    (108, "f"),
    (112, "f"),
    (116, "f"),
    (123, "b"),
    (252, "h"),
    (254, "h"),
]
FIELDS += [(256 + 4 * i, "f") for i in range(18)] + [(344, "i")]
FLOATS = [0.0, -0.0, 1.0, -1.0, 2.5, 1e-38, 1e38, -1e38, float("nan"), float("inf"), -float("inf"), 352.0, 1e6]
WHOLE = [0, 1, 2, 3, 4, 5, 7, 8, 16, 64, 128, 256, 512, 1024, 1536, 2304, -1, -32768, 32767, 127, 24]


def mutate_image(data: bytes, rng: random.Random, zipped: bool) -> bytes:
    """Damage a NIfTI file: header fields, values, or its compression."""
    raw = gzip.decompress(data) if zipped else data
    kind = rng.randrange(10)
    if kind <= 4:
        raw = _fields(raw, rng)
    elif kind == 5:
        raw = _voxels(raw, rng)
    elif kind == 6:
        raw = huge(raw, rng)
    elif kind == 7:
        raw = mutate_bytes(raw[:400], rng) + raw[400:]
    elif kind == 8:
        raw = raw[: rng.choice([0, 4, 100, 347, 348, 352, len(raw) // 2, len(raw) - 1])]
    else:
        return mutate_bytes(data, rng)
    if not zipped or rng.random() < 0.02:
        return raw
    packed = gzip.compress(raw, 1)
    cut = rng.random()
    if cut < 0.05:
        return packed[: rng.randrange(len(packed))]
    return packed + rng.randbytes(9) if cut < 0.1 else packed


def _fields(raw: bytes, rng: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 3])):
        place, code = rng.choice(FIELDS)
        value = rng.choice(FLOATS) if code == "f" else rng.choice(WHOLE)
        if code == "b":
            value = max(-128, min(127, int(value)))
        struct.pack_into("<" + code, changed, place, value)
    return bytes(changed)


def huge(raw: bytes, rng: random.Random) -> bytes:
    """Let the header claim up to 32767^4 voxels."""
    changed = bytearray(raw)
    dims = [rng.choice([3, 4, 5, 7]), *(rng.choice([32767, 10000, 1000, 100, 5]) for _ in range(7))]
    struct.pack_into("<8h", changed, 40, *dims)
    return bytes(changed)


def _voxels(raw: bytes, rng: random.Random) -> bytes:
    """Make some float32 voxels, or a whole part of the image, something else."""
    n_values = (len(raw) - 352) // 4
    values = np.frombuffer(raw[352 : 352 + 4 * n_values], dtype="<f4").copy()
    value = rng.choice([np.nan, np.inf, -np.inf, 0.0, 3e38, -3e38, 1e-45])
    if rng.random() < 0.5:
        values[rng.randrange(max(1, len(values)))] = value
    else:
        first = rng.randrange(len(values))
        values[first : first + rng.choice([5, 100, len(values)])] = value
    if rng.random() < 0.1:
        values[:] = value
    return raw[:352] + values.tobytes() + raw[352 + 4 * n_values :]


# --- files


def mutate_file(path: Path, rng: random.Random) -> str:
    """Damage a file in place, in a way that its name suggests; say what was done."""
    kind = rng.random()
    if kind < 0.01:
        path.unlink()
        return "missing"
    if kind < 0.02:
        path.unlink()
        path.mkdir()
        return "a folder"
    if kind < 0.03:
        path.unlink()
        os.symlink(rng.choice([path.name, "/nowhere", "/dev/null", "/dev/zero"]), path)
        return "a link"
    if kind < 0.035:
        path.unlink()
        os.mkfifo(path)
        return "a pipe"
    data = path.read_bytes()
    by_meaning = None if kind < 0.25 else _by_meaning(path.name)
    path.write_bytes(mutate_bytes(data, rng) if by_meaning is None else by_meaning(data, rng))
    return "bytes" if by_meaning is None else by_meaning.__name__


def _by_meaning(name: str) -> Bytes | None:
    def image(data: bytes, rng: random.Random) -> bytes:
        return mutate_image(data, rng, zipped=name.endswith(".gz"))

    kinds: dict[str, Bytes] = {".tsv": mutate_table, ".json": mutate_json, ".npy": mutate_array}
    kinds |= {".safetensors": mutate_tensors, ".nii": image, ".nii.gz": image}
    return next((mutate for suffix, mutate in kinds.items() if name.endswith(suffix)), None)


def remove(path: Path) -> None:
    """Remove whatever is at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
