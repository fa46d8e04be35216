from ._checkpoints import Checkpoints as Checkpoints
