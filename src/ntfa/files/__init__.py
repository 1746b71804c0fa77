"""Files: output folders that are complete or not at all, and careful reading of what anybody may have written."""
