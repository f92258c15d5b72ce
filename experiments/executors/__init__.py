"""Who measures a sweep's prompts: this process, others on this machine, Ray's workers or Slurm's jobs; the rows are the same.

`Executor.rows` is the seam: prompts with the cells to measure go in, rows come out, each once. A prompt is never parted, so that it
is prefilled once. Nobody but the caller writes the rows.
"""

from experiments.executors.executor import Executor, InProcess, Work
from experiments.executors.lost import gathered
from experiments.executors.worker import Setup

__all__ = ["Executor", "InProcess", "Setup", "Work", "gathered"]
