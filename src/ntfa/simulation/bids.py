"""Write a simulated study as a BIDS dataset, with derivatives laid out as fMRIPrep lays them out.

The images are in the units of a scanner, ``baseline + gain * frames`` with a baseline and a gain for every voxel of a
run, so z-scoring each run against its rest gives the z-scored frames of the simulator again. Nothing else is done to
the frames: the confounds are drawn apart from them.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from nibabel import Nifti1Image
from numpy.typing import NDArray
from tqdm import tqdm

from ntfa.errors import StudyError
from ntfa.files.folders import write_folder
from ntfa.simulation.brain import FloatArray, IntArray
from ntfa.simulation.design import Stream, stream
from ntfa.simulation.simulator import Simulator
from ntfa.study.checks import FrameArray
from ntfa.version import __version__

BIDS_VERSION = "1.9.0"
SPACE = "MNI152NLin2009cAsym"
REST = "rest"
MISSING = "n/a"
SHORTEST_TR = 0.1

BASELINE = (800.0, 1200.0)
GAIN = (8.0, 12.0)
AIR = 5.0

HEAD_RADIUS_MM = 50.0
STEP_MM = 0.01
SPIKE_MM = (0.8, 1.5)
MOTION = ("trans_x", "trans_y", "trans_z", "rot_x", "rot_y", "rot_z")
TISSUES = {"csf": 1100.0, "white_matter": 900.0, "global_signal": 1000.0}
N_COMPONENTS = 5
HIGH_PASS_SECONDS = 128.0
# Scrubbing also removes what is left between spikes when it is shorter than this.
SHORTEST_SEGMENT = 5


@dataclass(frozen=True)
class Timing:
    """When frames are acquired, and how much later than an event its frames are: all in seconds."""

    t_r: float
    start_time: float
    delay: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.t_r, self.start_time, self.delay))):
            raise StudyError(f"t_r, start_time and delay must be finite, not {self}")
        if self.t_r < SHORTEST_TR:
            raise StudyError(f"t_r must be at least {SHORTEST_TR} s, not {self.t_r}")
        if self.start_time < 0:
            raise StudyError(f"start_time must be 0 or more, not {self.start_time}")

    def onsets(self, frames: "pd.Series[int]") -> "pd.Series[float]":
        """Onsets, in whole milliseconds, of events whose first frames are these.

        A delayed event begins a quarter of a TR before its first frame and ends as long before the first frame after
        it, so that rounding cannot move a frame into or out of it.
        """
        first = round(self.start_time - self.delay - self.t_r / 4, 3)
        return (first + frames * self.t_r).round(3)


def write_bids(
    simulator: Simulator,
    folder: str | os.PathLike[str],
    *,
    t_r: float = 2.0,
    start_time: float | None = None,
    delay: float = 3.0,
    rest_events: bool = True,
    overwrite: bool = False,
    quiet: bool = True,
) -> None:
    """Write a simulated study as a BIDS dataset with fMRIPrep-like derivatives, one participant at a time.

    The folder appears complete or not at all. A frame belongs to an event if its time, ``start_time + i * t_r``, lies
    in ``[onset + delay, onset + delay + duration)``; by this rule the events have exactly the simulator's frames.

    Parameters
    ----------
    simulator : Simulator
        What to draw; its voxels must be those of a mask.
    folder : path
        Where the dataset goes.
    t_r : float, default=2.0
        Seconds from frame to frame.
    start_time : float, optional
        Time of the first frame in seconds; half a TR if not given, as after fMRIPrep's slice timing correction.
    delay : float, default=3.0
        Seconds from an event to its frames, so that the events of the first frames may begin before 0.
    rest_events : bool, default=True
        Whether rest is listed among the events, as `rest`; otherwise it is what lies outside of them.
    overwrite : bool, default=False
        Whether to replace what is at `folder`.
    quiet : bool, default=True
        Whether to show no progress bar.
    """
    timing = Timing(t_r, t_r / 2 if start_time is None else start_time, delay)
    if simulator.mask_img is None:
        raise StudyError(
            "A BIDS dataset needs images, but this simulation has voxels without a mask: give no coordinates"
        )
    if simulator.realism is not None:
        raise StudyError(
            f"A study like {simulator.like} consists of maps without rest, and images of it could not be z-scored "
            "against rest: write it as a study"
        )
    with write_folder(Path(folder), overwrite, mark="dataset_description.json") as root:
        _write_dataset(root, simulator, timing)
        _write_truth(root / "derivatives" / "truth", simulator, {**asdict(timing), "rest_events": rest_events})
        for participant in tqdm(simulator.participants, unit="participant", disable=True if quiet else None):
            _write_events(root, simulator, participant, timing, rest_events)
            _write_derivatives(root / "derivatives" / "fmriprep", simulator, participant, timing)


# --- what describes the dataset


def _write_dataset(root: Path, simulator: Simulator, timing: Timing) -> None:
    """Write the files on top of the raw dataset and of the derivatives."""
    like = simulator.like
    ntfa = {"Name": "ntfa", "Version": __version__, "Description": "Simulated by ntfa simulate"}
    _describe(root, f"Simulated study '{like}', seed {simulator.seed}", "raw", ntfa)
    # Tools look for the name fMRIPrep; the version tells people that it was not run.
    fmriprep = {"Name": "fMRIPrep", "Version": "0.0.0+simulated", "Description": "Not run: simulated in its layout"}
    _describe(root / "derivatives" / "fmriprep", f"Simulated fMRIPrep output of '{like}'", "derivative", fmriprep, ntfa)
    _describe(root / "derivatives" / "truth", f"What is true of '{like}'", "derivative", {**ntfa, "Name": "truth"})
    (root / "README").write_text(_readme(simulator, timing), encoding="utf-8")
    groups = simulator.truth.participant_groups.rename("group").rename_axis("participant_id").reset_index()
    _write_table(root / "participants.tsv", groups)
    _write_json(root / "participants.json", {"group": {"Description": "Group that the participant was drawn from"}})
    _write_json(root / f"task-{like}_bold.json", {"TaskName": like, "RepetitionTime": timing.t_r})
    columns = {
        "trial_type": {"Description": f"The stimulus shown, or '{REST}'"},
        "category": {"Description": "Kind of stimulus"},
    }
    _write_json(root / f"task-{like}_events.json", columns)


def _describe(folder: Path, name: str, kind: str, *generated_by: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    description = {"Name": name, "BIDSVersion": BIDS_VERSION, "DatasetType": kind, "License": "CC0"}
    _write_json(folder / "dataset_description.json", {**description, "GeneratedBy": list(generated_by)})


def _readme(simulator: Simulator, timing: Timing) -> str:
    return f"""Simulated study '{simulator.like}'

Nobody was scanned: ntfa {__version__} simulated this dataset (`ntfa simulate --bids`, seed {simulator.seed}).

- There are no raw images, only events. The images that fMRIPrep would make of them are in derivatives/fmriprep; they
  were simulated too, in the units of a scanner, and fMRIPrep was not run.
- The frames of an event are those whose time, {timing.start_time:g} s + i * {timing.t_r:g} s, lies in
  [onset + {timing.delay:g} s, onset + {timing.delay:g} s + duration).
- The confounds have nothing to do with the images. A few frames of each run have a framewise displacement above 0.5 mm.
- What the frames were drawn from is in derivatives/truth.
"""


def _write_truth(folder: Path, simulator: Simulator, settings: Mapping[str, Any]) -> None:
    simulator.truth.save(folder)
    simulation = {"ntfa_version": __version__, "like": simulator.like, "seed": simulator.seed}
    _write_json(folder / "simulation.json", {**simulation, "run_frames": simulator.run_frames, **settings})


# --- one participant


def _runs(simulator: Simulator) -> Iterator[tuple[int, str, slice]]:
    """Number of each run, its label for file names, and its frames among the participant's."""
    width = max(2, len(str(len(simulator.run_frames))))
    stop = 0
    for run, n_frames in enumerate(simulator.run_frames, start=1):
        start, stop = stop, stop + n_frames
        yield run, f"task-{simulator.like}_run-{run:0{width}d}", slice(start, stop)


def _write_events(root: Path, simulator: Simulator, participant: str, timing: Timing, rest_events: bool) -> None:
    """Write the events of a participant's runs."""
    folder = _func(root, participant)
    own = simulator.trials[simulator.trials["participant"] == participant]
    for run, label, rows in _runs(simulator):
        blocks = pd.DataFrame(
            _blocks(own[own["run"] == run], rows), columns=["start", "stop", "trial_type", "category"]
        )
        if not rest_events:
            blocks = blocks[blocks["trial_type"] != REST]
        onset = timing.onsets(blocks["start"])
        timed = pd.DataFrame({"onset": onset, "duration": timing.onsets(blocks["stop"]) - onset})
        events = timed.join(blocks[["trial_type", "category"]])
        _write_table(folder / f"{participant}_{label}_events.tsv", events, "%.3f")


def _blocks(trials: pd.DataFrame, rows: slice) -> Iterator[tuple[int, int, str, str]]:
    """First frame in the run, first frame after, stimulus and category of all its trials and the rest around them."""
    done = 0
    for trial in trials.sort_values("start").to_dict("records"):
        start, stop = trial["start"] - rows.start, trial["stop"] - rows.start
        if start > done:
            yield done, start, REST, MISSING
        yield start, stop, trial["stimulus"], trial["category"]
        done = stop
    if rows.stop - rows.start > done:
        yield done, rows.stop - rows.start, REST, MISSING


def _write_derivatives(root: Path, simulator: Simulator, participant: str, timing: Timing) -> None:
    """Draw a participant's frames and write its runs' images, masks and confounds."""
    folder = _func(root, participant)
    index = simulator.participants.index(participant)
    scanner, nuisance = (stream(simulator.seed, s, index) for s in (Stream.SCANNER, Stream.CONFOUNDS))
    frames = simulator.frames(participant)
    inside = np.asarray(simulator.mask_img.dataobj) > 0
    bold = {
        "TaskName": simulator.like,
        "RepetitionTime": timing.t_r,
        "StartTime": timing.start_time,
        "SkullStripped": False,
        "SliceTimingCorrected": True,
    }
    for _, label, rows in _runs(simulator):
        name = f"{participant}_{label}_space-{SPACE}_desc"
        _write_image(folder / f"{name}-preproc_bold", _scan(frames[rows], inside, scanner), simulator, bold, timing.t_r)
        _write_image(folder / f"{name}-brain_mask", inside.astype(np.uint8), simulator, {"Type": "Brain"})
        table, description = _confounds(rows.stop - rows.start, timing.t_r, nuisance)
        name = f"{participant}_{label}_desc-confounds_timeseries"
        _write_table(folder / f"{name}.tsv", table, "%.9g")
        _write_json(folder / f"{name}.json", description)


def _scan(frames: FrameArray, inside: NDArray[np.bool_], rng: np.random.Generator) -> FrameArray:
    """Images [x, y, z, frames] in the units of a scanner, with noise around the brain."""
    n_voxels = frames.shape[1]
    volumes = rng.standard_normal((*inside.shape, len(frames)), dtype=np.float32)
    np.abs(volumes, out=volumes)
    volumes *= np.float32(AIR)
    baseline = np.asarray(rng.uniform(*BASELINE, size=n_voxels), dtype=np.float32)
    gain = np.asarray(rng.uniform(*GAIN, size=n_voxels), dtype=np.float32)
    volumes[inside] = (baseline + gain * frames).T
    return volumes


def _write_image(
    path: Path, data: NDArray[Any], simulator: Simulator, sidecar: Mapping[str, Any], t_r: float | None = None
) -> None:
    affine = simulator.mask_img.affine
    image = Nifti1Image(data, affine)
    for set_form in (image.set_sform, image.set_qform):
        set_form(affine, code="mni")
    image.header.set_xyzt_units("mm", "sec")
    if t_r is not None:
        image.header.set_zooms((*image.header.get_zooms()[:3], t_r))
    image.to_filename(f"{path}.nii.gz")
    _write_json(path.with_name(f"{path.name}.json"), sidecar)


# --- confounds


def _confounds(n_frames: int, t_r: float, rng: np.random.Generator) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A run's confounds as fMRIPrep names and describes them, drawn without looking at the images."""
    spikes = _spikes(n_frames, rng)
    signals = {name: level + 5 * rng.standard_normal(n_frames) for name, level in TISSUES.items()}
    steps = _steps(n_frames, spikes, rng)
    position = np.cumsum(steps, axis=0) / np.where(np.arange(6) < 3, 1.0, HEAD_RADIUS_MM)
    signals.update(zip(MOTION, position.T, strict=True))
    columns = {name: column for signal in signals for name, column in _expand(signal, signals[signal]).items()}
    columns["std_dvars"] = _but_first(1 + np.clip(0.05 * rng.standard_normal(n_frames), -0.2, 0.2))
    columns["std_dvars"][spikes] += 1
    columns["dvars"] = 25 * columns["std_dvars"]
    columns["framewise_displacement"] = _but_first(np.abs(steps).sum(axis=1))
    components = {f"a_comp_cor_{k:02d}": rng.standard_normal(n_frames) / n_frames**0.5 for k in range(N_COMPONENTS)}
    description: dict[str, Any] = {name: {"Method": "Mean"} for name in TISSUES}
    description.update({name: _component(k) for k, name in enumerate(components)})
    return pd.DataFrame({**columns, **components, **_cosines(n_frames, t_r)}), description


def _spikes(n_frames: int, rng: np.random.Generator) -> IntArray:
    """Two frames of sudden movement, if the run has room for scrubbing to remove these and no others."""
    places = np.arange(SHORTEST_SEGMENT, n_frames - SHORTEST_SEGMENT, SHORTEST_SEGMENT + 1)
    return np.sort(rng.choice(places, size=min(2, len(places)), replace=False))


def _steps(n_frames: int, spikes: IntArray, rng: np.random.Generator) -> FloatArray:
    """Movement from the frame before [frames x 6], in mm on the head's surface: small, and large at the spikes."""
    steps = STEP_MM * np.clip(rng.standard_normal((n_frames, 6)), -3, 3)
    steps[0] = 0
    jumps = rng.choice([-1, 1], size=len(spikes)) * rng.uniform(*SPIKE_MM, size=len(spikes))
    steps[spikes, rng.integers(6, size=len(spikes))] += jumps
    return steps


def _expand(name: str, signal: FloatArray) -> dict[str, FloatArray]:
    change = _but_first(np.diff(signal, prepend=0))
    return {
        name: signal,
        f"{name}_derivative1": change,
        f"{name}_power2": signal**2,
        f"{name}_derivative1_power2": change**2,
    }


def _but_first(values: FloatArray) -> FloatArray:
    """The values, but none in the first frame, which has no frame before it."""
    return np.concatenate([[np.nan], values[1:]])


def _component(k: int) -> dict[str, Any]:
    share, cumulative = 0.2 * 0.7**k, sum(0.2 * 0.7**j for j in range(k + 1))
    return {
        "Method": "aCompCor",
        "Mask": "combined",
        "Retained": True,
        "SingularValue": 100 * share**0.5,
        "VarianceExplained": share,
        "CumulativeVarianceExplained": cumulative,
    }


def _cosines(n_frames: int, t_r: float) -> dict[str, FloatArray]:
    """Cosines slower than the high-pass filter, at least one."""
    count = max(1, int(2 * n_frames * t_r / HIGH_PASS_SECONDS))
    phase = np.pi * (np.arange(n_frames) + 0.5) / n_frames
    return {f"cosine{k:02d}": np.sqrt(2 / n_frames) * np.cos((k + 1) * phase) for k in range(count)}


# --- files


def _func(root: Path, participant: str) -> Path:
    folder = root / participant / "func"
    folder.mkdir(parents=True)
    return folder


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_table(path: Path, table: pd.DataFrame, float_format: str | None = None) -> None:
    table.to_csv(path, sep="\t", index=False, na_rep=MISSING, float_format=float_format, lineterminator="\n")
