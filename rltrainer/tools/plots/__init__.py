"""Pictures of runs, from their logs: learning curves, comparisons, profiles, a page of a run; of buffers, of sweeps.

They need Matplotlib, the extra `plot`: without it each raises a `MissingExtraError`.
"""

from rltrainer.tools.plots.buffer_overview import buffer
from rltrainer.tools.plots.comparisons import aggregate_scores, performance_profiles, probability_of_improvement, table
from rltrainer.tools.plots.curves import learning_curve, learning_curves, metrics
from rltrainer.tools.plots.html_page import page
from rltrainer.tools.plots.run_data import run_scores
from rltrainer.tools.plots.sweep_overview import sweep

__all__ = [
    "aggregate_scores", "buffer", "learning_curve", "learning_curves", "metrics", "page", "performance_profiles",
    "probability_of_improvement", "run_scores", "sweep", "table",
]  # fmt: skip
