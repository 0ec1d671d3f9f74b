"""Golden checks: values that the released model's own code computed, against anything that can run the model.

A check reads one golden file and yields one :class:`CaseResult` a case. :func:`classify` says which check a file
name asks for. Formats of the files: ``golden/README.md`` of the workspace's shared data.
"""

from di_model.golden.files import CaseResult, GoldenFile, GoldenKind, classify
from di_model.golden.layers import check_layers, check_quantized_layers
from di_model.golden.logits import check_decode, check_logits, check_lowprec
from di_model.golden.operations import (
    OperationSet,
    check_operations,
    dispatched_operations,
    reference_operations,
)
from di_model.golden.runners import (
    DecodeResult,
    ForwardResult,
    LayerInputs,
    LayerRunner,
    ReferenceRunner,
    Runner,
)
from di_model.golden.text import check_engram, check_tokenizer

__all__ = [
    "CaseResult",
    "DecodeResult",
    "ForwardResult",
    "GoldenFile",
    "GoldenKind",
    "LayerInputs",
    "LayerRunner",
    "OperationSet",
    "ReferenceRunner",
    "Runner",
    "check_decode",
    "check_engram",
    "check_layers",
    "check_logits",
    "check_lowprec",
    "check_operations",
    "check_quantized_layers",
    "check_tokenizer",
    "classify",
    "dispatched_operations",
    "reference_operations",
]
