"""The sight of training: a bar, and one line per epoch."""

from collections.abc import Mapping
from typing import Any

from rltrainer.progress import make_bar
from rltrainer.trainers.run_stats import Best, EpochStats

SHOWN_FIRST = ("score", "best", "return", "length")
"""Values that go before others: a narrow terminal cuts off the last ones."""


class ProgressBar:
    """One bar over all steps of the run, if it is shown; and lines, if `verbose`."""

    def __init__(self, total: int, shown: bool, verbose: bool, unit: str) -> None:
        self._bar: Any = None
        if shown:
            self._bar = make_bar(total=total, unit=f" {unit.replace('_', ' ')}s", unit_scale=True, dynamic_ncols=True)
        self._verbose = verbose
        self._values: dict[str, str] = {}

    def advance_to(self, step: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def show(self, values: Mapping[str, float | None]) -> None:
        """Show these values beside the bar; earlier ones stay."""
        if self._bar is not None:
            self._values |= {name: f"{value:.4g}" for name, value in values.items() if value is not None}
            first = {name: self._values[name] for name in SHOWN_FIRST if name in self._values}
            self._bar.set_postfix({**first, **self._values}, refresh=False)

    def wants_values(self) -> bool:
        """Return whether the bar is about to be drawn, so that numbers are worth fetching from the device."""
        bar = self._bar
        return bar is not None and bar._time() - bar.last_print_t >= bar.mininterval

    def say(self, line: str) -> None:
        """Print a line."""
        if not self._verbose:
            return
        if self._bar is not None:
            self._bar.write(line)
        else:
            print(line)

    def end_epoch(self, stats: EpochStats, score: float | None, best: Best, recent_return: float | None) -> None:
        """Print the epoch's line."""
        parts = [f"epoch {stats.epoch}"]
        if score is not None:
            parts.append(f"score {score:.4g}")
        if best.score is not None:
            parts.append(f"best {best.score:.4g} (epoch {best.epoch})")
        if stats.collect_stats is not None:
            parts.append(f"{stats.collect_stats.num_env_steps:,} env steps")
        parts.append(f"{stats.update.num_gradient_steps:,} gradient steps in {stats.timing.total:.1f} s")
        if recent_return is not None:
            parts.append(f"return {recent_return:.4g}")
        self.say(", ".join(parts))

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
