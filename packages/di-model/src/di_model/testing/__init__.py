"""Small random checkpoints of our own, complete in the released layout, for tests and examples.

``write_checkpoint(directory)`` writes ``config.json``, ``tokenizer.json`` and weights; ``tiny_config`` gives the
configuration to vary. Nothing outside this package is read.
"""

from di_model.testing.configs import tiny_config
from di_model.testing.tokenizer import tiny_tokenizer
from di_model.testing.writer import random_tensors, write_checkpoint

__all__ = ["random_tensors", "tiny_config", "tiny_tokenizer", "write_checkpoint"]
