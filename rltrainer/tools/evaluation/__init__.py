"""Trained policies at work: evaluated, recorded, watched."""

from rltrainer.tools.evaluation.playing import evaluate_policy, record, watch
from rltrainer.tools.evaluation.video_recorder import VideoRecorder

__all__ = ["VideoRecorder", "evaluate_policy", "record", "watch"]
