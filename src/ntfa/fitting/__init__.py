"""The orchestration of a fit: arranging a study, taking steps, keeping checkpoints, dividing the work."""
