"""What was recorded: frames of voxels, cut into trials of a participant looking at a stimulus."""

from ntfa.study.folder import StudyWriter
from ntfa.study.study import Study

__all__ = ["Study", "StudyWriter"]
