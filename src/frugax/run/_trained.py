"""`load_trained`: the trained model of a finished run, from its `.fxz` file."""

import os
from pathlib import Path

import jax
import optax

from frugax import compress, train, trees
from frugax.errors import ConfigError
from frugax.trees import PyTree

from ._bound_task import BoundTask
from ._folder import RunFolder, reopen
from ._task import Task, load_task


def load_trained(path: str | os.PathLike[str]) -> tuple[PyTree, Task]:
    """Load the model that a run trained: built by `init`, with the weights of its file.

    Args:
        path: the run's folder, such as `runs/digits`.

    Returns:
        The model and its task: `task.evaluate(model)`, and `task.apply(model, inputs)`
        for the built-in ones and those of your own that have it.

    Raises:
        ConfigError: the folder has no finished run, or the task's code has changed and
            builds another model.
        CorruptFileError: the model file is damaged.
    """
    folder, config = reopen(Path(path))
    if not folder.model.is_file():
        raise ConfigError(
            f"{folder.path}: this run is not finished, it has no {folder.model.name}; "
            f"continue it with: frugax run --resume {folder.path}"
        )
    task = load_task(config, config_folder=folder.config_folder())
    # The file holds trained and carried arrays only; `init` makes the rest again from
    # the same seed.
    bound = BoundTask.build(task, task.init(jax.random.key(config.seed)))
    state = train.init_state(bound.model, optax.identity(), carried=bound.carried)
    return bound.with_file_tree(
        state, read_weights(bound.file_tree(state), folder)
    ), task


def read_weights(arrays: PyTree, folder: RunFolder) -> PyTree:
    """Read the weights of a run's model file into the structure of `arrays`."""
    leaves = []
    with compress.open(folder.model) as file:
        for name, leaf in trees.named_leaves(arrays):
            found = file.get(name)
            # Names do not suffice: a wider layer has the same one.
            if found is None or (found.shape, found.dtype) != (leaf.shape, leaf.dtype):
                there = "absent"
                if found is not None:
                    there = f"{found.dtype}{found.shape}"
                raise ConfigError(
                    f"{folder.model} was trained with another model: {name} is {there} "
                    f"there and {leaf.dtype}{leaf.shape} in the code as it is now."
                )
            leaves.append(jax.numpy.asarray(found))
    return jax.tree.unflatten(jax.tree.structure(arrays), leaves)
