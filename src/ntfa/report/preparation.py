"""How data were prepared, for a methods section: one function per sentence, from what is recorded with a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ntfa.study.provenance import Provenance


def preparation_paragraph(known: Provenance) -> str:
    """Write the paragraph on images, denoising, voxels, trials, standardisation and losses."""
    return " ".join(filter(None, (sentence(known) for sentence in SENTENCES)))


def source_sentence(known: Provenance) -> str:
    """Say which images went in."""
    if known.n_runs is None:
        return ""
    t_r = " to ".join(f"{value:g}" for value in sorted({*known.t_r[:1], *known.t_r[-1:]}))
    made = f"acquired with a repetition time of {t_r} s"
    if known.preprocessing is not None:
        cite = " (Esteban et al., 2019)" if known.preprocessing.lower().startswith("fmriprep") else ""
        made += f" and preprocessed with {known.preprocessing}{cite}"
    space = f" in {known.space} space" if known.space else ""
    whose = f"{known.n_participants or 0:,} participants ({known.n_runs:,} runs)"
    return f"Functional images of {whose}{space}, {made}, were analysed."


def denoising_sentence(known: Provenance) -> str:
    """Say what was done to the images before trials were cut out."""
    done, fwhm = [], known.smoothing_fwhm
    if fwhm is not None:
        done.append(f"Images were smoothed with a Gaussian kernel of {fwhm:g} mm full width at half maximum.")
    if known.confounds in CONFOUNDS:
        done.append(CONFOUNDS[known.confounds])
    if known.high_pass is not None:
        done.append(f"Time series were high-pass filtered at {known.high_pass:g} Hz (Butterworth filter).")
    if done:
        return " ".join([*done, "This was done with nilearn (Abraham et al., 2014)."])
    if known.confounds == "none":
        return "No spatial smoothing, temporal filtering or regression of confounds was applied after preprocessing."
    return ""


_MOTION = "24 motion parameters (six realignment parameters, their derivatives, and squares of both)"
_REGRESSED = f"The following were regressed out of the time series of each voxel: {_MOTION}"
_COSINES = "and cosine functions for high-pass filtering. Volumes before the signal was in steady state were discarded."
CONFOUNDS = {
    "simple": f"{_REGRESSED}, mean signals of white matter and cerebrospinal fluid, {_COSINES}",
    "scrubbing": "Volumes with a framewise displacement above 0.5 mm or standardised DVARS above 1.5, and segments of "
    f"fewer than five volumes between them, were discarded (Power et al., 2012). {_REGRESSED}, mean signals of white "
    f"matter and cerebrospinal fluid with their derivatives and squares of both, {_COSINES}",
    "compcor": f"{_REGRESSED}, all anatomical CompCor components of the combined mask of white matter and "
    f"cerebrospinal fluid (Behzadi et al., 2007), {_COSINES}",
    "given": "User-supplied confounds were regressed out of the time series of each voxel.",
}
"""What nilearn's strategies for fMRIPrep's confounds come to; a test compares them with nilearn's own settings."""


def voxels_sentence(known: Provenance) -> str:
    """Say which voxels were used, and how many were lost."""
    if known.mask is None:
        return ""
    if known.mask == "greyordinates":
        return f"Analyses were of the vertices and voxels of the images{_voxels_lost(known)}."
    share = known.min_coverage if known.min_coverage is not None else 1.0
    inside = {
        "given": "inside a predefined mask",
        "computed": "inside a brain mask computed from the mean images with nilearn (Abraham et al., 2014)",
        "brain masks": "inside the brain masks of "
        + ("all runs" if share == 1 else f"at least {share:.0%} of participants"),
    }.get(known.mask, "inside a mask")
    if known.white_matter_removed:
        inside += " and outside the white matter of the MNI152 template"
    resampled = " Images on another voxel grid than the mask were resampled to it." * (known.other_grid == "resample")
    return f"Analyses were restricted to voxels {inside}{_voxels_lost(known)}.{resampled}"


def _voxels_lost(known: Provenance) -> str:
    if known.n_voxels_in_mask is None or not known.n_voxels_lost:
        return "" if known.n_voxels_in_mask is None else f" ({known.n_voxels_in_mask:,} voxels)"
    left = known.n_voxels_in_mask - known.n_voxels_lost
    if (known.min_coverage or 1) < 1:
        return (
            f" ({known.n_voxels_in_mask:,} voxels); {known.n_voxels_lost:,} of these were measured (finite and varying "
            f"in all runs) in fewer than {known.min_coverage:.0%} of participants and were excluded, leaving {left:,} "
            "voxels"
        )
    return (
        f" ({known.n_voxels_in_mask:,} voxels); {known.n_voxels_lost:,} of these had a value that was not finite, or "
        f"no variance, in at least one run and were excluded for all participants, leaving {left:,} voxels"
    )


def trials_sentence(known: Provenance) -> str:
    """Say which volumes make a trial."""
    lasting = "the duration of the event" if known.trial_duration is None else f"{known.trial_duration:g} s"
    delay, gap = known.delay, known.merge_gap
    begin = f"{delay:g} s after its onset, to allow for the haemodynamic delay" if delay else "at its onset"
    merged = "" if gap is None else f" Events of one stimulus no more than {gap:g} s apart were merged."
    ignored = f" Events of {quoted(known.ignore)} were not analysed." if known.ignore else ""
    return f"The trial of an event comprised the volumes acquired during {lasting}, starting {begin}.{merged}{ignored}"


def standardisation_sentence(known: Provenance) -> str:
    """Say what voxels were z-scored against."""
    if known.standardize == "none":
        return "Time series were not standardised."
    if known.standardize == "run":
        return "The time series of each voxel was z-scored by its mean and standard deviation over each run."
    rest = "outside all events"
    if known.rest:
        rest = f"of the baseline condition {quoted(known.rest)} (in runs without it, {rest})"
    counted = "" if known.n_rest_volumes is None else f" ({known.n_rest_volumes:,} volumes in total)"
    trials = " The baseline was also modelled as a stimulus." if known.include_rest and known.rest else ""
    delay = f", with the same delay of {known.delay:g} s" if known.delay else ""
    return (
        "The time series of each voxel was z-scored, run by run, by the mean and standard deviation of the volumes "
        f"{rest}{delay}{counted}.{trials}"
    )


def losses_sentence(known: Provenance) -> str:
    """Say how many volumes and trials were lost, and how many are left."""
    if known.n_trials is None or known.n_volumes is None or known.n_volumes_kept is None:
        return ""
    lost = known.n_volumes - known.n_volumes_kept
    said = [f"{lost:,} of {known.n_volumes:,} volumes ({lost / max(known.n_volumes, 1):.1%}) were discarded"]
    for count, one, what in (
        (known.n_trials_dropped, "trial", "without a remaining volume {was} dropped"),
        (known.n_events_truncated, "event", "{was} truncated at the end of the run"),
        (known.n_volumes_in_two_events, "volume", "that belonged to two events {was} assigned to the later one"),
    ):
        if count:
            said.append(
                f"{count:,} {one}{'' if count == 1 else 's'} {what.format(was='was' if count == 1 else 'were')}"
            )
    return f"{joined(said)}. This left {known.n_trial_volumes or 0:,} volumes in {known.n_trials:,} trials."


SENTENCES: Sequence[Callable[[Provenance], str]] = (
    source_sentence,
    denoising_sentence,
    voxels_sentence,
    trials_sentence,
    standardisation_sentence,
    losses_sentence,
)


def joined(texts: Sequence[str]) -> str:
    """Join texts as in a sentence: "a, b and c"."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def quoted(labels: Sequence[str]) -> str:
    """Join labels in quotes."""
    return joined([f'"{label}"' for label in labels])
