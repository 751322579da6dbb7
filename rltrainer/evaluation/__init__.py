"""Trained policies at work: how good one is, and what it looks like."""

from rltrainer.evaluation.evaluating import evaluate_policy
from rltrainer.evaluation.recording import record
from rltrainer.evaluation.watching import watch

__all__ = ["evaluate_policy", "record", "watch"]
