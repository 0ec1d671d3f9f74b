"""Sampling, logprobs, stop conditions and incremental detokenisation."""

from di_spec.commit import (
    Alternative,
    FinishReason,
    LogprobEntry,
    RequestClosedError,
    RequestDelta,
    RequestOutputState,
    Usage,
)
from di_spec.detokenizer import IncrementalDetokenizer, TokenBytes, UnsupportedTokenizerError
from di_spec.drafting import DraftContext, Drafter, Proposal
from di_spec.logprobs import NonFiniteLogitsError, TokenLogprobs, prompt_logprobs, token_logprobs
from di_spec.params import InvalidParameterError, SamplingParams, child_seed
from di_spec.sampler import Sampler, SamplerOutput
from di_spec.state import SamplingState
from di_spec.stops import StopMatcher
from di_spec.verify import SampledTokens, drawn_tokens, sample_tokens, verify_coupled

__all__ = [
    "Alternative",
    "DraftContext",
    "Drafter",
    "FinishReason",
    "IncrementalDetokenizer",
    "InvalidParameterError",
    "LogprobEntry",
    "NonFiniteLogitsError",
    "Proposal",
    "RequestClosedError",
    "RequestDelta",
    "RequestOutputState",
    "SampledTokens",
    "Sampler",
    "SamplerOutput",
    "SamplingParams",
    "SamplingState",
    "StopMatcher",
    "TokenBytes",
    "TokenLogprobs",
    "UnsupportedTokenizerError",
    "Usage",
    "child_seed",
    "drawn_tokens",
    "prompt_logprobs",
    "sample_tokens",
    "token_logprobs",
    "verify_coupled",
]
__version__ = "0.1.0"
