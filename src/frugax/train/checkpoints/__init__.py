"""Checkpoints of a training state: complete or ignored, and verified before loading."""

from ._checkpoints import Checkpoints

__all__ = ["Checkpoints"]
