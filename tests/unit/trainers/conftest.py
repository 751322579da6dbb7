"""What the tests of trainers share."""

from typing import Any

import pytest

from rltrainer.checkpoint import CheckpointStore


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float | None]]:
    """Step and score of every save."""
    found: list[tuple[int, float | None]] = []
    save = CheckpointStore.save

    def noted(self: Any, parts: Any, step: int, score: float | None) -> None:
        found.append((step, score))
        save(self, parts, step, score)

    monkeypatch.setattr(CheckpointStore, "save", noted)
    return found
