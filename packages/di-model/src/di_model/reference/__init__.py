"""The whole text model in plain differentiable torch: one sequence, no cache, no native kernels.

The oracle of the cached model, from the same weights and configuration.
"""

from di_model.reference.draft import DraftOutput
from di_model.reference.model import ReferenceModel, ReferenceOutput
from di_model.reference.state import SequenceState

__all__ = ["DraftOutput", "ReferenceModel", "ReferenceOutput", "SequenceState"]
