"""Loggers: files, TensorBoard and the terminal, where the numbers of a run go."""

from rltrainer.loggers.console import ConsoleLogger
from rltrainer.loggers.csv_file import CSVLogger
from rltrainer.loggers.json_lines import JSONLinesLogger
from rltrainer.loggers.logger import Logger
from rltrainer.loggers.multi import MultiLogger
from rltrainer.loggers.tensorboard import TensorBoardLogger

__all__ = ["CSVLogger", "ConsoleLogger", "JSONLinesLogger", "Logger", "MultiLogger", "TensorBoardLogger"]
