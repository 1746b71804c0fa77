"""Numbers as they are written on the command line."""

from __future__ import annotations

import argparse


def dimensions(text: str) -> int | tuple[int, int] | str:
    """Read "auto", a number, or two of them with a comma between."""
    if text == "auto":
        return text
    numbers = [count(part) for part in text.split(",")]
    if len(numbers) > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto, a number, nor two numbers as in 2,8")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def counts(text: str) -> list[int]:
    """Read numbers with commas between."""
    return [count(part) for part in text.split(",")]


def number(text: str) -> int | str:
    """Read "auto" or a number."""
    return text if text == "auto" else count(text)


def count(text: str) -> int:
    """Read a whole number, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, at least 1")
    return int(text)


def smoothness(text: str) -> float | dict[float, float]:
    """A width in mm, or several as ``width:share,width:share``."""
    try:
        if ":" not in text:
            return float(text)
        pairs = [part.split(":") for part in text.split(",")]
        return {float(width): float(share) for width, share in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a width in mm nor like 10:0.8,100:0.2") from None


def seed(text: str) -> int:
    """Read a seed."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {2**32 - 1}")
    return int(text)
