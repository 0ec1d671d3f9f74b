"""Serving engine for DeepSeek-V4.1: LLM API, step loop, command line.

Names are imported when they are first used: ``di --help`` and other light uses do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from di_model.numerics import Numerics
    from di_model.packed import WeightLayout
    from di_scheduler import StepPolicy
    from di_spec import InvalidParameterError, LogprobEntry, SamplingParams, Usage

    from di_engine.config import EngineConfig
    from di_engine.engine import LLMEngine
    from di_engine.errors import (
        EngineBusyError,
        EngineClosedError,
        EngineConfigError,
        ForkedProcessError,
        RequestError,
        StepTimeoutError,
    )
    from di_engine.llm import LLM
    from di_engine.loading import LoadedModel, StepModel, load_model
    from di_engine.outputs import ChoiceResult, RequestOutput, RequestResult
    from di_engine.request import RequestOptions
    from di_engine.stats import EngineCounters, EngineStats

__all__ = [
    "LLM",
    "ChoiceResult",
    "EngineBusyError",
    "EngineClosedError",
    "EngineConfig",
    "EngineConfigError",
    "EngineCounters",
    "EngineStats",
    "ForkedProcessError",
    "InvalidParameterError",
    "LLMEngine",
    "LoadedModel",
    "LogprobEntry",
    "Numerics",
    "RequestError",
    "RequestOptions",
    "RequestOutput",
    "RequestResult",
    "SamplingParams",
    "StepModel",
    "StepPolicy",
    "StepTimeoutError",
    "Usage",
    "WeightLayout",
    "load_model",
]
__version__ = "0.1.0"

_EXPORTS = {
    "di_model.numerics": ("Numerics",),
    "di_model.packed": ("WeightLayout",),
    "di_scheduler": ("StepPolicy",),
    "di_spec": (
        "InvalidParameterError",
        "LogprobEntry",
        "SamplingParams",
        "Usage",
    ),
    "di_engine.config": ("EngineConfig",),
    "di_engine.engine": ("LLMEngine",),
    "di_engine.errors": (
        "EngineBusyError",
        "EngineClosedError",
        "EngineConfigError",
        "ForkedProcessError",
        "RequestError",
        "StepTimeoutError",
    ),
    "di_engine.llm": ("LLM",),
    "di_engine.loading": (
        "LoadedModel",
        "StepModel",
        "load_model",
    ),
    "di_engine.outputs": (
        "ChoiceResult",
        "RequestOutput",
        "RequestResult",
    ),
    "di_engine.request": ("RequestOptions",),
    "di_engine.stats": (
        "EngineCounters",
        "EngineStats",
    ),
}
"""Names of the package by the module that defines them."""

_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
