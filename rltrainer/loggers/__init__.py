"""Loggers: files, TensorBoard, services and the terminal, where the numbers of a run go."""

from rltrainer.loggers.by_name import get_logger
from rltrainer.loggers.console import ConsoleLogger
from rltrainer.loggers.csv_file import CSVLogger
from rltrainer.loggers.json_lines import JSONLinesLogger
from rltrainer.loggers.logger import Logger
from rltrainer.loggers.mlflow_logger import MLflowLogger
from rltrainer.loggers.multi import MultiLogger
from rltrainer.loggers.run_folder import RunFolder, generate_exp_name
from rltrainer.loggers.tensorboard import TensorBoardLogger
from rltrainer.loggers.wandb_logger import WandbLogger

__all__ = [
    "CSVLogger", "ConsoleLogger", "JSONLinesLogger", "Logger", "MLflowLogger", "MultiLogger", "RunFolder",
    "TensorBoardLogger", "WandbLogger", "generate_exp_name", "get_logger",
]  # fmt: skip
