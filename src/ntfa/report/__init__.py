"""Reports: one HTML file each that needs nothing beside it."""

from ntfa.report.build import generate_report, write_report
from ntfa.report.figures import embeddings_figure
from ntfa.report.images import write_images
from ntfa.report.page import Report

__all__ = [
    "Report",
    "embeddings_figure",
    "generate_report",
    "write_images",
    "write_report",
]
