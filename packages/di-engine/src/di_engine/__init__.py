"""Serving engine for DeepSeek-V4.1: LLM API, step loop, command line."""

from di_model.numerics import Numerics
from di_scheduler import StepPolicy
from di_spec import InvalidParameterError, LogprobEntry, SamplingParams, Usage

from di_engine.config import EngineConfig
from di_engine.engine import LLMEngine
from di_engine.errors import EngineClosedError, EngineConfigError, RequestError
from di_engine.llm import LLM
from di_engine.loading import LoadedModel, StepModel, load_model
from di_engine.outputs import ChoiceResult, RequestOutput, RequestResult
from di_engine.stats import EngineCounters, EngineStats

__all__ = [
    "LLM",
    "ChoiceResult",
    "EngineClosedError",
    "EngineConfig",
    "EngineConfigError",
    "EngineCounters",
    "EngineStats",
    "InvalidParameterError",
    "LLMEngine",
    "LoadedModel",
    "LogprobEntry",
    "Numerics",
    "RequestError",
    "RequestOutput",
    "RequestResult",
    "SamplingParams",
    "StepModel",
    "StepPolicy",
    "Usage",
    "load_model",
]
__version__ = "0.1.0"
