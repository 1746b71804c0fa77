"""How hard real studies are: what was measured off two of them with `benchmarks/measure_presets.py`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from ntfa.errors import StudyError
from ntfa.simulation.brain import Box
from ntfa.simulation.design import Sizes, check_count
from ntfa.simulation.fields import Smoothness, check_smoothness


class Settings(TypedDict, total=False):
    """Keyword arguments that make a study hard, and what may be given for them; `simulate` says what they mean."""

    mean_share: float | None
    stimulus_share: float | None
    individual_mean_share: float | None
    individual_share: float | None
    n_features: int | None
    feature_decay: float | None
    individual_decay: float | None
    category_share: float | None
    response_fwhm: float | Smoothness | None
    individual_fwhm: float | Smoothness | None
    noise_fwhm: float | Smoothness | None
    noise_ar1: float | None
    noise_spread: float | None


SETTINGS = tuple(Settings.__annotations__)
SHARES = ("mean_share", "stimulus_share", "individual_mean_share", "individual_share")
LEAST_NOISE_SHARE = 1e-6
FWHMS = ("response_fwhm", "individual_fwhm", "noise_fwhm")
# Least and largest value; shares are bounded by their sum.
BOUNDS = {
    **dict.fromkeys(SHARES, (0.0, 1.0)),
    "feature_decay": (0.01, 1.0),
    "individual_decay": (0.01, 1.0),
    "category_share": (0.0, 0.99),
    "noise_ar1": (-0.99, 0.99),
    "noise_spread": (0.0, 3.0),
}


@dataclass(frozen=True)
class Realism:
    """What makes a study hard: how the variance of a frame is shared out, and how smooth each part is.

    Attributes are those that `simulate` takes; what is left of the variance is noise.
    """

    mean_share: float
    stimulus_share: float
    individual_mean_share: float
    individual_share: float
    n_features: int
    feature_decay: float
    individual_decay: float
    category_share: float
    response_fwhm: Smoothness
    individual_fwhm: Smoothness
    noise_fwhm: Smoothness
    noise_ar1: float
    noise_spread: float

    @property
    def noise_share(self) -> float:
        """Share of the variance of a frame that is noise, in a participant of median noise."""
        return 1 - sum(getattr(self, name) for name in SHARES)

    def but(self, n_stimuli: int, settings: Mapping[str, object]) -> "Realism":
        """These settings, but for the given ones that are not None, for a study of so many stimuli."""
        given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
        for name in given:
            if name in BOUNDS:
                given[name] = _check_number(name, given[name])
            elif name in FWHMS:
                given[name] = check_smoothness(name, given[name], white=name != "response_fwhm")
        # Features are centred over stimuli, so there is room for one less.
        if "n_features" not in given:
            given["n_features"] = min(self.n_features, n_stimuli - 1)
        elif check_count("n_features", given["n_features"]) >= n_stimuli:
            raise StudyError(f"n_features ({given['n_features']}) must be less than the stimuli ({n_stimuli})")
        found = replace(self, **given)
        if found.noise_share < LEAST_NOISE_SHARE:
            raise StudyError(f"{', '.join(SHARES)} sum to {1 - found.noise_share:g}: less than 1 leaves room for noise")
        return found


def _check_number(name: str, value: Any) -> float:
    low, high = BOUNDS[name]
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise StudyError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
    return number


@dataclass(frozen=True)
class Preset:
    """A real study to be as hard as.

    Attributes
    ----------
    usual_sizes : Sizes
        The study's own sizes; the factors are the blobs of the group's loadings.
    categories : dict of str to str
        The stimuli, in the order shown, and the category of each.
    realism : Realism
        What was measured.
    box : Box, optional
        The part of the MNI152 brain that was recorded; all of it if None.
    """

    usual_sizes: Sizes
    categories: dict[str, str]
    realism: Realism
    box: Box | None = None


_MDTB_TASKS = {
    "GoNoGo": ("NoGo", "Go"),
    "ToM": ("ToM",),
    "actionObservation": ("VideoAct", "VideoKnots"),
    "affective": ("UnpleasantScenes", "PleasantScenes"),
    "arithmetic": ("Math", "DigitJudgement"),
    "checkerBoard": ("CheckerBoard",),
    "emotional": ("SadFaces", "HappyFaces"),
    "intervalTiming": ("IntervalTiming",),
    "motorImagery": ("MotorImagery",),
    "motorSequence": ("FingerSimple", "FingerSeq"),
    "nBack": ("Verbal0Back", "Verbal2Back"),
    "nBackPic": ("Object0Back", "Object2Back"),
    "spatialNavigation": ("SpatialNavigation",),
    "stroop": ("StroopIncon", "StroopCon"),
    "verbGeneration": ("VerbGen", "WordRead"),
    "visualSearch": ("VisualSearchSmall", "VisualSearchMed", "VisualSearchLarge"),
    "rest": ("rest",),
}

PRESETS = {
    # Woo et al. (2014): single-trial maps of pain and rejection, whole brain.
    "woo": Preset(
        Sizes(n_participants=59, n_stimuli=4, n_frames=1, n_voxels=8_209, n_factors=400, n_runs=8),
        categories={"heat": "thermal", "warmth": "thermal", "rejection": "social", "friend": "social"},
        realism=Realism(
            mean_share=0.016,
            stimulus_share=0.021,
            individual_mean_share=0.041,
            individual_share=0.047,
            n_features=3,
            feature_decay=0.081,
            individual_decay=0.371,
            category_share=0.95,
            response_fwhm={16.0: 0.19, 40.0: 0.81},
            individual_fwhm={14.0: 0.57, 35.0: 0.19, 250.0: 0.24},
            noise_fwhm={11.0: 0.62, 30.0: 0.21, 250.0: 0.17},
            noise_ar1=0.178,
            noise_spread=0.272,
        ),
    ),
    # King et al. (2019), multi-domain task battery: maps of conditions in two halves of the runs, cerebellum.
    "mdtb": Preset(
        Sizes(n_participants=16, n_stimuli=29, n_frames=1, n_voxels=5_446, n_factors=400, n_runs=2),
        categories={condition: task for task, conditions in _MDTB_TASKS.items() for condition in conditions},
        box=((-75.0, 75.0), (-110.0, -40.0), (-75.0, -25.0)),
        realism=Realism(
            mean_share=0.0,
            stimulus_share=0.164,
            individual_mean_share=0.001,
            individual_share=0.244,
            n_features=28,
            feature_decay=0.678,
            individual_decay=0.85,
            category_share=0.5,
            response_fwhm={16.0: 0.71, 80.0: 0.29},
            individual_fwhm={6.0: 0.65, 18.0: 0.25, 250.0: 0.10},
            noise_fwhm={4.0: 0.58, 12.0: 0.24, 250.0: 0.18},
            noise_ar1=0.52,
            noise_spread=0.230,
        ),
    ),
}
