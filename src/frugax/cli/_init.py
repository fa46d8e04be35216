"""`frugax init`: write a script, a model and its config, to run and to change."""

from importlib import resources
from pathlib import Path

from frugax.errors import ConfigError

from ._consoles import say

_FILES = ("train.py", "model.py", "model.yaml")


def write_example(folder: Path) -> None:
    """Write the files and print the command that runs them.

    Raises:
        ConfigError: one of the files exists, or the folder cannot be written.
    """
    for name in _FILES:
        if (folder / name).exists():
            raise ConfigError(
                f"{folder / name} exists and is not replaced: name another folder, "
                "such as frugax init mine."
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            text = (resources.files("frugax.cli") / "example" / name).read_text()
            (folder / name).write_text(text)
    except OSError as e:
        raise ConfigError(
            f"{e.filename} cannot be written ({e.strerror}): name another folder."
        ) from e
    script, config = folder / "train.py", folder / "model.yaml"
    say(
        f"Wrote {script}, {folder / 'model.py'} and {config}.\n"
        f"Try: frugax plan {script}, or frugax run {config}"
    )
