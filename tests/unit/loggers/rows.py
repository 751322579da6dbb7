"""What the tests of loggers write."""

from rltrainer.interval import Every

EACH = Every(1, "update_step")
PROGRESS = {
    "epoch": 1,
    "env_step": 20_000_001,  # beyond float32
    "update_step": 2,
    "gradient_step": 32,
    "best_score": 0.1 + 0.2,
    "best_return": 21.5,
    "best_return_std": None,
    "best_epoch": 0,
    "is_stopped": 0,
}
