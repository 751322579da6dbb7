"""What the loggers of services have in common before they reach one."""

import builtins
import importlib.util
from typing import Any

import pytest

from rltrainer.errors import MissingExtraError
from rltrainer.loggers import MLflowLogger, WandbLogger


@pytest.mark.parametrize(
    ("make", "missing"), [(WandbLogger, "wandb"), (MLflowLogger, "mlflow"), (MLflowLogger, "sqlalchemy")]
)
def test_without_the_extra_its_name_is_told(make: Any, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    imported, found = builtins.__import__, importlib.util.find_spec

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *args, **options)

    if missing == "sqlalchemy":
        pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == missing else found(name))
    with pytest.raises(MissingExtraError) as caught:
        make()
    text = f"{make.__name__} needs a package that is not installed: No module named {missing!r}."
    assert str(caught.value) == f'{text} Run: pip install "rltrainer[{make.service}]"'
