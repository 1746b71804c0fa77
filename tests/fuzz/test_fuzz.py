"""A minute of what `make fuzz` does for long: damaged files, each known by its number, fed to every reader."""

from pathlib import Path

import pytest
from fuzz_readers import READERS
from fuzz_run import Fuzzed, fuzz

# So many that each reader takes a second or two.
INPUTS = {"events": 400, "participants": 300, "sidecars": 300, "saved study": 200, "prepared": 40, "comparison": 50}
FEW = {"BIDS dataset": 3}
USUAL = 100


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    count = (INPUTS | FEW).get(name, USUAL)
    found = fuzz(name, 0, count, tmp_path)
    assert not found.bugs, "\n".join(f"{name}, input {number}: {text}" for number, text in found.bugs.items())
    assert sum(found.counts.values()) == count
    if name not in FEW:
        # Neither everything read (nothing was damaged) nor nothing (nothing was tested behind the first check).
        assert 0 < found.counts["success"] < count


@pytest.mark.parametrize("name", ["events", "saved study", "NTFA"])
def test_an_input_is_known_by_its_number(name: str, tmp_path: Path) -> None:
    contents = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        fuzzed = Fuzzed(name, folder)
        for number in (5, 3) if folder.name == "one" else (3,):
            fuzzed.damage(number)
        sound = {path.relative_to(folder): data for path, data in fuzzed.sound.items()}
        damaged = {path.relative_to(folder) for path in fuzzed.damaged}
        contents.append({name: (folder / name).read_bytes() for name in sound if (folder / name).is_file()})
        assert all(contents[-1].get(name) == sound[name] for name in sound if name not in damaged)
    # A model's config.json has nothing of the place or time of its writing, history.tsv has seconds.
    differing = {str(path) for path in contents[0] if contents[0][path] != contents[1].get(path)}
    assert differing <= {"model/history.tsv"}
