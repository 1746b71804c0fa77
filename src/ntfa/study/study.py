"""The study: voxel positions, a table of trials, and each participant's frames."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ntfa.errors import StudyError
from ntfa.study.checks import (
    FloatArray,
    FrameArray,
    OneOrMoreLabels,
    as_list,
    check_coordinates,
    check_frames,
    check_mask,
    check_trials,
    check_trials_fit,
    mask_coordinates,
    some,
)
from ntfa.study.coverage import (
    MIN_COVERAGE,
    Coverage,
    check_min_coverage,
    coverage_table,
    kept_voxels,
    look_over,
    restricted,
    shares,
    warn_of_coverage,
)
from ntfa.study.cutting import Preparation
from ntfa.study.folder import MappedFrames, StudyWriter, read_study
from ntfa.study.greyordinates import Greyordinates, positions_of, reach_of
from ntfa.study.images import keep_voxels
from ntfa.study.plausible import check_plausible
from ntfa.study.preparing import Prepared, as_runs, assemble, mask_of, prepare_participant, warn_of_losses
from ntfa.study.provenance import KEY, Provenance
from ntfa.study.splitting import diagonal
from ntfa.study.surfaces import SurfaceFiles, Surfaces

Booleans = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """An fMRI experiment: who saw what, when, and what every voxel did.

    Make one with `from_arrays` or `open`, which check everything; the constructor checks nothing.

    Attributes
    ----------
    coordinates : array of shape (V, 3)
        Positions of the voxels, in mm.
    trials : DataFrame
        One row per trial: `participant`, `stimulus`, `start`, `stop` (its frames are start, ..., stop - 1 of that
        participant), and any labels.
    frames : mapping of str to array of shape (frames, V)
        Each participant's frames, float32, in memory or memory-mapped. Frames in no trial are allowed. Zero in voxels
        that the participant lacks.
    mask_img : nibabel image, Greyordinates or None
        A mask whose voxels, in C order, are those of `coordinates`; of a study with cortical surfaces, its vertices and
        voxels, as `ntfa.study.greyordinates.Greyordinates`.
    notes : mapping
        Anything worth keeping with the study; under "preparation", how it was made from images.
    coverage : mapping of str to boolean array of shape (V,)
        Of participants who lack voxels, which they have; everybody else has all. Empty if nobody lacks any.
    """

    coordinates: FloatArray
    trials: pd.DataFrame
    frames: Mapping[str, FrameArray]
    mask_img: Any = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=dict)

    @classmethod
    def from_arrays(
        cls,
        frames: Mapping[Any, ArrayLike],
        trials: pd.DataFrame,
        coordinates: ArrayLike,
        mask_img: Any = None,
        *,
        min_coverage: float = MIN_COVERAGE,
    ) -> "Study":
        """Make a study from arrays, checking them.

        Voxels that are NaN, or zero in all frames of a participant, are *unseen* by that participant: not zero, and
        not dropped for the others.

        Parameters
        ----------
        frames : dict of participant to array of shape (frames, V)
            Arrays that are float32 and complete are shared, not copied. Participants without a trial are left out.
        trials : DataFrame
            Columns `participant`, `stimulus`, `start`, `stop`; further columns are labels and kept.
        coordinates : array of shape (V, 3)
            Positions of the voxels, in mm.
        mask_img : nibabel image or Greyordinates, optional
            A mask of exactly these voxels, in C order; or vertices and voxels, in the order of the columns.
        min_coverage : float, default=0.5
            Share of the participants who must have a voxel; voxels that fewer have are dropped. 0 keeps all, for
            newcomers to a model, whose voxels must be the model's.

        Raises
        ------
        StudyError
            If anything is missing, inconsistent, infinite, constant but not zero, or absurdly large, or if a frame is
            NaN in most voxels; the message says where. What only looks wrong (indices for mm, raw units, seconds for
            frames) is a warning.
        """
        positions = check_coordinates(coordinates)
        check_mask(mask_img, positions)
        study = cls(positions, check_trials(trials), check_frames(frames, len(positions)), mask_img)
        lengths = {label: len(array) for label, array in study.frames.items()}
        check_trials_fit(study.trials, lengths)
        study = study._keep(np.ones(study.n_trials, dtype=bool))._with_coverage(check_min_coverage(min_coverage))
        check_plausible(study.coordinates, study.trials, study.frames, lengths, study.mask_img)
        return study

    def _with_coverage(self, min_coverage: float) -> "Study":
        """Find who lacks which voxels, and drop those that too many lack."""
        frames, coverage, partly = look_over({label: self.frames[label] for label in self.participants})
        if not coverage:
            return self
        kept = kept_voxels(coverage, len(frames), self.n_voxels, min_coverage)
        warn_of_coverage(restricted(coverage, kept), partly, int((~kept).sum()), min_coverage, len(frames))
        return replace(self, frames=frames, coverage=coverage).at(kept)

    def at(self, kept: Booleans) -> "Study":
        """Keep some of the voxels, given as booleans [V]; frames are copied."""
        if kept.all():
            return self
        frames = {label: np.ascontiguousarray(self.frames[label][:, kept]) for label in self.participants}
        mask_img = None if self.mask_img is None else keep_voxels(self.mask_img, kept)
        coverage = restricted(self.coverage, kept)
        return replace(self, coordinates=self.coordinates[kept], frames=frames, mask_img=mask_img, coverage=coverage)

    def on_shared_voxels(self) -> "Study":
        """Keep the voxels that every participant has; this study itself if that is all of them."""
        if not self.coverage:
            return self
        return self.at(kept_voxels(self.coverage, len(self.participants), self.n_voxels, 1.0))

    @property
    def coverage_share(self) -> FloatArray:
        """Share of the participants who have each voxel, [V]."""
        return shares(self.coverage, len(self.participants), self.n_voxels)

    @property
    def coverage_table(self) -> pd.DataFrame:
        """How many voxels each participant has, and lacks: `voxels`, `unseen`, `share`."""
        return coverage_table(self)

    @classmethod
    def from_images(
        cls,
        imgs: Sequence[Any],
        events: Sequence[Any],
        participants: Sequence[str] | None = None,
        mask: Any = None,
        confounds: Sequence[Any] | None = None,
        sample_masks: Sequence[Any] | None = None,
        t_r: float | None = None,
        *,
        start_time: float = 0.0,
        runs: Sequence[str] | None = None,
        min_coverage: float = MIN_COVERAGE,
        surfaces: Surfaces | None = None,
        surface_distance: str = "sphere",
        **preparation: Any,
    ) -> "Study":
        """Make a study from images and events, one entry per run, in nilearn's shapes.

        Parameters
        ----------
        imgs : list of paths or 4-D images
            Of cortex: SurfaceImages, pairs of GIFTI files (left, right), or dense CIFTI (`.dtseries.nii`).
        events : list of DataFrames or paths of TSV files
            With `onset` and `duration` in seconds, and a column that names the stimulus.
        participants : list of labels, optional
            Whose run each is; one participant if not given.
        mask : path or image, optional
            Voxels to use; by default nilearn's brain mask of all runs, or the vertices and voxels that there are.
        confounds : list of arrays, tables or None, optional
            Regressed out of each run.
        sample_masks : list of arrays or None, optional
            Frames of each run to keep.
        t_r : float, optional
            Seconds from frame to frame; by default the image headers'.
        start_time : float, default=0
            Time that the first frame stands for, in seconds; fMRIPrep's StartTime.
        runs : list of labels, optional
        min_coverage : float, default=0.5
            Share of the participants who must have a voxel: one that is finite and varies in all of their runs.
        surfaces : Surfaces, optional
            Where vertices are: `ntfa.study.surfaces.Surfaces.open`; by default the fsaverage template of nilearn.
        surface_distance : {"sphere", "straight"}
            Whether factors of cortex are round over the sphere of their hemisphere, or in a straight line.
        **preparation
            Fields of `ntfa.study.cutting.Preparation`: `rest`, `delay`, `standardize`, `stimulus_column`, ...
        """
        how = Preparation(**preparation)
        by_participant = as_runs(
            imgs, events, participants, confounds, sample_masks, runs, t_r=t_r, start_time=start_time
        )
        mask_img = mask_of(imgs, mask, surfaces, surface_distance)
        prepared = [prepare_participant(own, mask_img, how) for own in by_participant.values()]
        computed = "greyordinates" if isinstance(mask_img, Greyordinates) else "computed"
        origin: dict[str, Any] = {"mask": computed if mask is None else "given", "white_matter_removed": False}
        origin["min_coverage"] = check_min_coverage(min_coverage)
        provenance = Provenance.of(how, confounds="none" if confounds is None else "given", **origin)
        return cls._from_prepared(prepared, mask_img, min_coverage, provenance)

    @classmethod
    def from_maps(
        cls,
        imgs: Sequence[Any],
        tables: Any,
        participants: Sequence[str] | None = None,
        mask: Any = None,
        *,
        stimulus_column: str = "stimulus",
        run_column: str | None = None,
        scale: bool = True,
        min_coverage: float = MIN_COVERAGE,
        surfaces: Surfaces | None = None,
        surface_distance: str = "sphere",
        **settings: Any,
    ) -> "Study":
        """Make a study from maps that were estimated before: betas or contrasts, one per trial or condition.

        Parameters
        ----------
        imgs : list of paths or images
            One per participant (or several): 4-D, dense CIFTI (`.dscalar.nii`), SurfaceImage, or a pair of GIFTI files.
        tables : table or list of tables
            One row per map, in their order; a DataFrame or the path of a TSV file, for all images or one each. Columns
            are kept as labels of the trials.
        participants : list of labels, optional
            Whose maps each image has; by default the `sub-` of its file name.
        mask : path or image, optional
            Voxels to use; by default a CIFTI file's own, or nilearn's brain mask.
        stimulus_column, run_column : str
            Columns that name each map's stimulus and, if there are several, its run: maps of one run share noise.
        scale : bool, default=True
            Divide each participant's maps by their root mean square.
        min_coverage : float, default=0.5
            Share of the participants who must have a voxel: one that is finite and varies in all of their maps.
        surfaces, surface_distance : optional
            As for `from_images`. Vertices of a CIFTI file that have no place are left out, if it has voxels too.
        **settings
            `smoothing_fwhm` and `other_grid` of `ntfa.study.cutting.Preparation`.
        """
        from ntfa.study.maps import maps_as_lists, prepare_maps, scaled

        imgs, tables, participants = maps_as_lists(imgs, tables, participants)
        mask_img = mask_of(imgs, mask, surfaces, surface_distance)
        prepared = prepare_maps(imgs, tables, participants, mask_img, stimulus_column, run_column, **settings)
        study = cls._from_prepared(prepared, mask_img, check_min_coverage(min_coverage))
        return replace(study, frames=scaled(study.frames, study.coverage)) if scale else study

    @classmethod
    def from_bids(
        cls,
        bids_dir: str | os.PathLike[str],
        derivatives: str | os.PathLike[str] | None = None,
        task: OneOrMoreLabels | None = None,
        space: str | None = None,
        *,
        participants: OneOrMoreLabels | None = None,
        exclude: OneOrMoreLabels | None = None,
        sessions: OneOrMoreLabels | None = None,
        res: str | None = None,
        confounds: str = "none",
        mask: Any = None,
        min_coverage: float = MIN_COVERAGE,
        keep_white_matter: bool = False,
        filters: Mapping[str, Any] | None = None,
        den: str | None = None,
        surfaces: SurfaceFiles | None = None,
        **preparation: Any,
    ) -> "Study":
        """Make a study from a BIDS dataset and its fMRIPrep derivatives.

        Parameters
        ----------
        bids_dir : path
        derivatives : path, optional
            fMRIPrep's output; by default `derivatives/fmriprep` in the dataset.
        task, participants, sessions : label or labels, optional
            All there are, if not given.
        exclude : label or labels, optional
            Participants to leave out.
        space, res : str, optional
            Needed where there are images in several.
        confounds : {"none", "simple", "scrubbing", "compcor"}
            nilearn's denoising strategy.
        mask : path or image, optional
            By default the participants' brain masks less, in MNI space, white matter. A participant's is what those of
            their runs have in common; what is outside of it is unseen in that participant.
        min_coverage : float, default=0.5
            Share of the participants who must have a voxel.
        keep_white_matter : bool, default=False
        filters : mapping, optional
            Further BIDS entities by suffix, as in a BIDS filter file.
        den : str, optional
            Density of images on cortical surfaces, whose `space` is fsLR or one of fsaverage's.
        surfaces : SurfaceFiles, optional
            Where vertices are, if neither nilearn nor TemplateFlow nor fMRIPrep's output has their surfaces.
        **preparation
            Fields of `ntfa.study.cutting.Preparation`: `rest`, `delay`, `standardize`, `stimulus_column`, ...
        """
        from ntfa.study.bids import Selection
        from ntfa.study.bids_masks import describe_runs, mask_for, own_masks
        from ntfa.study.locating import locate
        from ntfa.study.participants import with_participant_labels
        from ntfa.study.survey import find_sound_runs

        how, min_coverage = Preparation(**preparation), check_min_coverage(min_coverage)
        bids_dir, derivatives = locate(bids_dir, derivatives)
        chosen = (as_list(participants), as_list(sessions), as_list(task), space, res, confounds, filters or {})
        wanted = Selection(derivatives, *chosen, excluded=as_list(exclude), den=den)
        found, mask = find_sound_runs(bids_dir, wanted, how, mask, surfaces or SurfaceFiles())
        mask_img = mask_for(found, mask, min_coverage, keep_white_matter)
        by_participant: dict[str, list[Any]] = {}
        for one in found:
            by_participant.setdefault(one.run.participant, []).append(one.with_confounds())
        own = own_masks(found, mask, mask_img)
        prepared = [prepare_participant(runs, mask_img, how, own.get(label)) for label, runs in by_participant.items()]
        provenance = describe_runs(found, how, given_mask=mask, min_coverage=min_coverage, keep_white=keep_white_matter)
        return cls._from_prepared(with_participant_labels(prepared, bids_dir), mask_img, min_coverage, provenance)

    @classmethod
    def _from_prepared(
        cls, prepared: "Sequence[Prepared]", mask_img: Any, min_coverage: float, provenance: Provenance | None = None
    ) -> "Study":
        frames, trials = assemble(prepared)
        quality = pd.concat([one.quality for one in prepared])
        warn_of_losses(quality)
        positions = mask_coordinates(mask_img)
        study = cls.from_arrays(frames, trials, positions, mask_img, min_coverage=min_coverage)
        if provenance is None:
            return study
        record = provenance.with_counts(quality, len(positions), len(positions) - study.n_voxels)
        return replace(study, notes={KEY: record.as_notes()})

    @property
    def participants(self) -> list[str]:
        """Sorted labels of the participants."""
        return sorted(self.trials["participant"].unique().tolist())

    @property
    def stimuli(self) -> list[str]:
        """Sorted labels of the stimuli."""
        return sorted(self.trials["stimulus"].unique().tolist())

    @property
    def positions(self) -> FloatArray:
        """Positions that factors know straight lines between, [V, 3]: `coordinates`, unless cortex is on spheres."""
        return positions_of(self.coordinates, self.mask_img)

    @property
    def reach(self) -> float | None:
        """How far factors may reach at the start of a fit, mm, where positions put structures apart; else None."""
        return reach_of(self.mask_img)

    @property
    def n_voxels(self) -> int:
        """Number of voxels, V."""
        return len(self.coordinates)

    @property
    def n_trials(self) -> int:
        """Number of trials, N."""
        return len(self.trials)

    @property
    def n_trial_frames(self) -> int:
        """Number of frames that belong to a trial."""
        return int((self.trials["stop"] - self.trials["start"]).sum())

    @property
    def n_data(self) -> int:
        """Number of recorded values in trials: trial frames x the voxels that their participant has."""
        lengths = (self.trials["stop"] - self.trials["start"]).groupby(self.trials["participant"]).sum()
        unseen = sum(int(lengths[label]) * int((~seen).sum()) for label, seen in self.coverage.items())
        return self.n_trial_frames * self.n_voxels - unseen

    def __repr__(self) -> str:
        return (
            f"Study({len(self.participants)} participants, {len(self.stimuli)} stimuli, "
            f"{self.n_trials} trials, {self.n_trial_frames:,} trial frames, {self.n_voxels:,} voxels"
            + (f", {len(self.coverage)} participants lack some)" if self.coverage else ")")
        )

    def select(
        self,
        participants: OneOrMoreLabels | None = None,
        stimuli: OneOrMoreLabels | None = None,
        trials: "pd.Series[bool] | Booleans | None" = None,
    ) -> "Study":
        """Take some of the trials; the arrays are shared with this study.

        Parameters
        ----------
        participants, stimuli : label or labels, optional
            Keep only trials of these.
        trials : boolean Series indexed as `trials`, optional
            Keep only trials that are True.
        """
        keep = np.ones(self.n_trials, dtype=bool)
        if participants is not None:
            keep &= self._has_label("participant", participants)
        if stimuli is not None:
            keep &= self._has_label("stimulus", stimuli)
        if trials is not None:
            keep &= self._booleans(trials)
        if not keep.any():
            raise StudyError("The selection leaves no trials")
        return self._keep(keep)

    def split(self, test: "str | pd.Series[bool] | Booleans") -> tuple["Study", "Study"]:
        """Split into a training and a test study, which share this study's arrays.

        Parameters
        ----------
        test : "diagonal" or boolean Series indexed as `trials`
            The trials to hold out. "diagonal": trials of participant number p and stimulus number s (in sorted order,
            S stimuli) with p mod S = s; every participant and every stimulus must keep training trials.

        Returns
        -------
        train, test : Study
        """
        if not isinstance(test, str):
            held_out = self._booleans(test)
        elif test == "diagonal":
            held_out = diagonal(self.trials, self.participants, self.stimuli)
        else:
            raise StudyError(f'split takes "diagonal" or a boolean Series indexed as trials, not {test!r}')
        if held_out.all() or not held_out.any():
            side = "training" if held_out.all() else "test"
            raise StudyError(f"The split leaves the {side} set without trials")
        return self._keep(~held_out), self._keep(held_out)

    def mean_images(self) -> FrameArray:
        """Average each trial over its frames: [N, V], in the order of `trials`; NaN in voxels that are unseen."""
        trials = zip(self.trials["participant"], self.trials["start"], self.trials["stop"], strict=True)
        images = np.stack([self.frames[who][start:stop].mean(0) for who, start, stop in trials])
        for label, seen in self.coverage.items():
            images[np.ix_((self.trials["participant"] == label).to_numpy(), ~seen)] = np.nan
        return images

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the study as a folder, complete or not at all.

        Parameters
        ----------
        folder : path
            Refused when something is there, unless `overwrite`; then replaced once the new one is complete.
        overwrite : bool, default=False
            Whether to replace what is there.
        notes : mapping, optional
            Anything else worth keeping in `study.json`, such as where the data are from.
        """
        kept = {**self.notes, **(notes or {})}
        with StudyWriter(
            folder,
            self.coordinates,
            self.trials,
            mask_img=self.mask_img,
            notes=kept,
            coverage=self.coverage,
            overwrite=overwrite,
        ) as writer:
            for participant in self.participants:
                writer.add(participant, self.frames[participant])

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Study":
        """Open a saved study; frames stay on disk (memory-mapped) until they are used.

        Everything is checked as in `from_arrays`, except the values of the frames, which a fit looks at.
        """
        return cls(**read_study(folder))

    def _keep(self, keep: Booleans) -> "Study":
        trials = self.trials.loc[keep]
        left = set(trials["participant"])
        coverage = {label: seen for label, seen in self.coverage.items() if label in left}
        if isinstance(self.frames, MappedFrames):
            return replace(self, trials=trials, frames=self.frames.only(left), coverage=coverage)
        frames = {label: array for label, array in self.frames.items() if label in left}
        return replace(self, trials=trials, frames=frames, coverage=coverage)

    def _has_label(self, column: str, labels: OneOrMoreLabels) -> Booleans:
        wanted = {str(label) for label in ([labels] if isinstance(labels, str) else labels)}
        unknown = sorted(wanted.difference(self.trials[column]))
        if unknown:
            raise StudyError(f"No trials have the {column} {some(unknown)}")
        return self.trials[column].isin(wanted).to_numpy(dtype=bool)

    def _booleans(self, values: "pd.Series[bool] | Booleans") -> Booleans:
        """Booleans in the order of `trials`, from a Series (by index) or an array (by position)."""
        if not isinstance(values, pd.Series):
            values = np.asarray(values)
            if values.shape != (self.n_trials,):
                raise StudyError(f"Expected {self.n_trials} booleans, one per trial, not shape {values.shape}")
            values = pd.Series(values, index=self.trials.index)
        if not pd.api.types.is_bool_dtype(values) or values.isna().any():
            raise StudyError(f"The trials to take must be a boolean Series without gaps, not {values.dtype}")
        if not values.index.equals(self.trials.index):
            values = self._aligned(values)
        return values.to_numpy(dtype=bool)

    def _aligned(self, values: "pd.Series[bool]") -> "pd.Series[bool]":
        index = self.trials.index
        comparable = values.index.is_unique and index.is_unique and len(values) == len(index)
        if not comparable or not values.index.isin(index).all():
            raise StudyError(
                f"The boolean Series ({len(values)} rows) is not indexed as trials ({len(index)} rows); "
                "make it from the trials table, for example trials['run'] == 2"
            )
        return values.loc[index]
