"""Loggers: files, TensorBoard, services and the terminal, where the numbers of a run go."""

from rltrainer.loggers.file_logger import CSVLogger
from rltrainer.loggers.json_lines import JSONLinesLogger
from rltrainer.loggers.logger import Logger, MultiLogger
from rltrainer.loggers.run_folder import RunFolder, generate_exp_name, get_logger
from rltrainer.loggers.services import MLflowLogger, WandbLogger
from rltrainer.loggers.tensorboard import TensorBoardLogger
from rltrainer.loggers.terminal import ConsoleLogger

__all__ = [
    "CSVLogger", "ConsoleLogger", "JSONLinesLogger", "Logger", "MLflowLogger", "MultiLogger", "RunFolder",
    "TensorBoardLogger", "WandbLogger", "generate_exp_name", "get_logger",
]  # fmt: skip
