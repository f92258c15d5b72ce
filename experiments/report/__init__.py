"""Result rows -> tables, comparisons and one page that shows them with their pictures (`experiments.pictures`)."""

from experiments.report.markdown import markdown
from experiments.report.tables import Line, Score, Table, column, tables

__all__ = ["Line", "Score", "Table", "column", "markdown", "tables"]
