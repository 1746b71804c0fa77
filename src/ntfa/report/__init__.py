"""The report of a fit: one HTML file that needs nothing beside it."""

from ntfa.report.build import embeddings_figure, write_report

__all__ = ["embeddings_figure", "write_report"]
