"""Trained policies at work: how good one is, and what it looks like."""

from rltrainer.tools.evaluation.evaluating import evaluate_policy
from rltrainer.tools.evaluation.recording import record
from rltrainer.tools.evaluation.video_recorder import VideoRecorder
from rltrainer.tools.evaluation.watching import watch

__all__ = ["VideoRecorder", "evaluate_policy", "record", "watch"]
