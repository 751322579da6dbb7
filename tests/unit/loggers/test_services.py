"""What the loggers of services have in common before they reach one."""

import builtins
import importlib.util
from typing import Any

import pytest

from rltrainer.errors import MissingExtraError, ParamsError
from rltrainer.loggers import MLflowLogger, WandbLogger


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        *((make, "folder", 1) for make in (WandbLogger, MLflowLogger)),
        *((make, "name", value) for make in (WandbLogger, MLflowLogger) for value in (" ", 1)),
        *((make, group, value) for make, group in ((WandbLogger, "project"), (MLflowLogger, "experiment"))
          for value in ("", None)),
        (WandbLogger, "mode", "on"), (WandbLogger, "mode", True), (WandbLogger, "init", ["tags"]),
        (WandbLogger, "init", {"id": "x"}), (MLflowLogger, "tracking_uri", ""), (MLflowLogger, "tracking_uri", 1),
    ],
)  # fmt: skip
def test_bad_arguments(make: Any, field: str, value: Any) -> None:
    with pytest.raises(ParamsError, match=rf"^{make.__name__}\.{field}: must be .*; got ") as caught:
        make(**{field: value})
    assert str(caught.value).endswith(f"; got {value!r} ({type(value).__name__})")


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
