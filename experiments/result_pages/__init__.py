"""`kvjax results`: the pages of docs/results, each made from rows that are committed and from nothing else."""
