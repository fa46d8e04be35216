"""Read from YAML how much to watch, into frozen dataclasses.

Each level has a config by name, `debug_off` to `debug_full`. Every key is read by what
a `Config` builds; any other key is an error that names the nearest valid one.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, get_args

from frugax.budget import OverheadBudget, WrongValueError, from_plain, suggest
from frugax.configs import parse_config, read_text
from frugax.errors import ConfigError, MissingExtraError
from frugax.watch import Journal, Level, Watcher

from ._host_calls import host_calls
from ._memory import MemoryManager
from ._sizes import to_limit_bytes
from ._storage import CompressedStorage
from ._waiting_watcher import WaitingWatcher

# Taken from the annotation, so that a level added to `watch` cannot be forgotten here.
_NAMES = [f"debug_{level}" for level in get_args(Level)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """Limits on the memory that watching may use.

    Attributes:
        max_cache_mb: most in the cache, in MB of 1,000,000 bytes; > 0.
        max_total_mb: most in all, cache and lazy data; > 0.
        lazy_loading: False: lazy loaders load when they are registered.
        compression: whether time is spent on making stored files small.
    """

    # The defaults of the guide.
    max_cache_mb: float = 100.0
    max_total_mb: float = 500.0
    lazy_loading: bool = True
    compression: bool = True

    def __post_init__(self) -> None:
        for name in ("max_cache_mb", "max_total_mb"):
            to_limit_bytes(name, getattr(self, name))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DebugConfig:
    """How much is watched, and how records are delivered.

    Attributes:
        level: how much; see `frugax.watch.Watcher`.
        async_logging: whether sinks are fed by threads of their own; otherwise each
            record waits for them.
        performance_monitoring: whether the times of callbacks are kept.
        memory_management: limits of the memory that is kept.
    """

    level: Level = "standard"
    async_logging: bool = True
    performance_monitoring: bool = True
    memory_management: MemoryConfig = dataclasses.field(default_factory=MemoryConfig)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How much to watch; from `load_config`, from Hydra, or written down.

    Attributes:
        debug: how much is watched, and how records are delivered.
    """

    debug: DebugConfig = dataclasses.field(default_factory=DebugConfig)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Config":
        """Build a config from settings that another tool has read.

        Args:
            settings: a mapping of mappings, or what Hydra composed:
                `Config.of(cfg.visualization)`. Keys left out keep their defaults.

        Raises:
            ConfigError: a key is unknown or a value impossible; names the key.
        """
        # By the module's name and not by import: OmegaConf is optional, and
        # settings of its types exist only where it is imported already.
        if type(settings).__module__.partition(".")[0] == "omegaconf":
            from omegaconf import OmegaConf

            composed: Any = OmegaConf.to_container(settings, resolve=True)
            settings = composed
        try:
            return from_plain(cls, settings)
        except WrongValueError as e:
            raise ConfigError(str(e)) from e

    def watcher(
        self, journal: Journal | None, budget: OverheadBudget, **options: Any
    ) -> Watcher:
        """A watcher of this level; of callbacks from now on times are kept, or not.

        Args:
            journal: where the records go.
            budget: what watching may cost.
            **options: others of `Watcher`, such as `sinks`.
        """
        host_calls.keeps_times = self.debug.performance_monitoring
        kind = Watcher if self.debug.async_logging else WaitingWatcher
        return kind(journal, budget, level=self.debug.level, **options)

    def memory_manager(self) -> MemoryManager:
        """A memory manager with these limits."""
        memory = self.debug.memory_management
        return MemoryManager(
            memory.max_cache_mb, memory.max_total_mb, lazy_loading=memory.lazy_loading
        )

    def storage(self, path: str | os.PathLike[str]) -> CompressedStorage:
        """Storage in a folder, of small files or quickly written ones."""
        compression = self.debug.memory_management.compression
        return CompressedStorage(path, compression=compression)


def load_config(name_or_path: str | os.PathLike[str], *overrides: str) -> Config:
    """Read a config.

    Args:
        name_or_path: one that comes with frugax, `"debug_off"`, `"debug_minimal"`,
            `"debug_standard"`, `"debug_verbose"` or `"debug_full"`; or a YAML file,
            which ends in `.yaml` or `.yml`. Keys it leaves out are as in
            `debug_standard`.
        overrides: `key=value` texts that replace single values, the key a dotted path
            (`debug.level=full`), the value YAML.

    Raises:
        ConfigError: the config does not exist, is not YAML, or contains something
            unknown or impossible; names file, line and key.
    """
    name = os.fspath(name_or_path)
    if name in _NAMES:
        # Where nothing is watched, nothing is measured either.
        level, monitors = name.removeprefix("debug_"), str(name != _NAMES[0]).lower()
        text = f"debug: {{level: {level}, performance_monitoring: {monitors}}}"
    elif name.endswith((".yaml", ".yml")):
        text = read_text(name)
    else:
        raise ConfigError(
            f"{name}: unknown config.{suggest(name, _NAMES)} There are "
            f"{', '.join(_NAMES)}, and files that end in .yaml."
        )
    return parse_config(Config, text, name, overrides=overrides)


def register_with_hydra(group: str = "visualization") -> None:
    """Register the configs that come with frugax in Hydra's store.

    Then `visualization: debug_standard` in the defaults list of a Hydra config, or
    `+visualization=debug_full` on the command line, gives the same keys, and
    `Config.of(cfg.visualization)` a `Config`, which checks the values.

    Args:
        group: the name of the config group.

    Raises:
        MissingExtraError: hydra-core is not installed.
    """
    try:
        from hydra.core.config_store import ConfigStore
    except ImportError as e:
        raise MissingExtraError(
            'register_with_hydra needs hydra-core: pip install "frugax[hydra]".'
        ) from e
    # Hydra's store is one for the process; registering twice replaces the entry.
    store = ConfigStore.instance()
    for name in _NAMES:
        node = dataclasses.asdict(load_config(name))
        store.store(name=name, node=node, group=group)
