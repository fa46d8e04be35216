"""A wrong config is refused with its reason; every valid key has an effect."""

import dataclasses
import subprocess
import sys
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import OverheadBudget, watch
from frugax.compat import visualization
from frugax.compat.visualization import (
    Config,
    DebugConfig,
    MemoryConfig,
    load_config,
    register_with_hydra,
)
from frugax.errors import ConfigError
from frugax.watch import Level
from refusals import refuses


class Listener:
    """A sink that keeps all it gets."""

    name = "listener"

    def __init__(self):
        self.got = []

    def write(self, events):
        self.got += events

    def close(self):
        pass


LEVELS = get_args(Level)


def leaves(value, at=""):
    """Every key that holds no others, as a dotted path, with its value."""
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        path = f"{at}.{field.name}" if at else field.name
        if dataclasses.is_dataclass(inner):
            yield from leaves(inner, path)
        else:
            yield path, inner


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_has_a_config(level):
    assert load_config(f"debug_{level}") == Config(
        debug=DebugConfig(level=level, performance_monitoring=level != "off")
    )


def test_the_values_of_the_guide():
    debug = load_config("debug_standard").debug
    assert debug.async_logging
    assert debug.performance_monitoring
    memory = debug.memory_management
    assert (memory.max_cache_mb, memory.max_total_mb) == (100.0, 500.0)
    assert memory.lazy_loading
    assert memory.compression


def test_values_are_replaced_by_overrides():
    config = load_config(
        "debug_standard",
        "debug.level=full",
        "debug.memory_management.max_total_mb=700",
        "debug.async_logging=false",
    )
    assert config.debug.level == "full"
    assert config.debug.memory_management.max_total_mb == 700.0
    assert not config.debug.async_logging


def test_a_file_may_leave_keys_out(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("debug:\n  level: minimal\n")
    assert load_config(path) == Config(debug=DebugConfig(level="minimal"))
    assert load_config(str(path), "debug.level=off").debug.level == "off"


MEMORY = "debug.memory_management"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (f"{MEMORY}.max_cash_mb=1", [f"{MEMORY}.max_cash_mb", "max_cache_mb"]),
        ("debug.level=verbos", ["debug.level", "'verbos'", "'verbose'"]),
        ("debug.async_logging=yes", ["debug.async_logging", "'yes'"]),
        (f"{MEMORY}.max_total_mb=0", [f"{MEMORY}.max_total_mb", 0.0]),
        (f"{MEMORY}.max_cache_mb=.inf", [f"{MEMORY}.max_cache_mb", "inf"]),
        ("debug.level.deeper=3", ["debug.level"]),
        ("debug..level=off", ["key=value"]),
    ],
)
def test_an_error_names_the_wrong_value_and_its_place(override, named):
    with refuses(ConfigError, *named):
        load_config("debug_standard", override)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"debug:\n  level: fall\n", ["mine.yaml:2", "debug.level", "'fall'"]),
        (b"a: !!python/object/apply:os.getcwd []\n", ["mine.yaml", "YAML"]),
        (b"\xff\xfe\x00", ["mine.yaml"]),
    ],
)
def test_an_error_names_the_file_and_the_line(tmp_path, text, named):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text)
    with refuses(ConfigError, *named):
        load_config(path)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("debug_standart", ["debug_standart", "'debug_standard'"]),
        ("full", ["full", "debug_off", "debug_full"]),
        ("/no/such/file.yaml", ["/no/such/file.yaml"]),
    ],
)
def test_missing_configs_are_refused(name, named):
    with refuses(ConfigError, *named):
        load_config(name)


def test_a_config_from_a_mapping():
    config = Config.of({"debug": {"level": "full"}})
    assert config == Config(debug=DebugConfig(level="full"))
    with refuses(ConfigError, "debug.levle", "level"):
        Config.of({"debug": {"levle": "full"}})


# --- every key is read by something ---------------------------------------------------


def test_every_key_reaches_the_built_object(monkeypatch, tmp_path, journal):
    seen = {}

    def record(name):
        def build(*args, **options):
            seen[name] = (args, options)

        monkeypatch.setattr(f"{visualization.__name__}._config.{name}", build)

    for name in ("WaitingWatcher", "MemoryManager", "CompressedStorage"):
        record(name)
    memory = MemoryConfig(
        max_cache_mb=1.0, max_total_mb=2.0, lazy_loading=False, compression=False
    )
    debug = DebugConfig(
        level="verbose",
        async_logging=False,
        performance_monitoring=False,
        memory_management=memory,
    )
    config = Config(debug=debug)
    assert len(list(leaves(config))) == 7
    config.watcher(journal, OverheadBudget("3%"), sinks=())
    config.memory_manager()
    config.storage(tmp_path)
    assert seen == {
        "WaitingWatcher": (
            (journal, OverheadBudget("3%")),
            {"level": "verbose", "sinks": ()},
        ),
        "MemoryManager": ((1.0, 2.0), {"lazy_loading": False}),
        "CompressedStorage": ((tmp_path,), {"compression": False}),
    }
    jax.jit(lambda: visualization.jax_debug_callback(lambda: None))()
    jax.effects_barrier()
    (totals,) = visualization.get_callback_performance_stats().values()
    assert totals["total_calls"] == 0


def test_without_async_logging_each_record_waits_for_the_sinks(journal):
    sink = Listener()
    config = load_config("debug_full", "debug.async_logging=false")
    watcher = config.watcher(journal, OverheadBudget("1%"), sinks=[sink])
    watcher.record(0, {"loss": 1.0})
    assert len(sink.got) == 1
    with watcher:
        watch.jit(lambda x: watch.frame("x", x) or x)(jnp.ones(2))
        assert len([e for e in sink.got if e.kind == "frame"]) == 1
        watcher.ingest_callback("summary", "s", {"x": np.ones(())})
        assert len([e for e in sink.got if e.stream == "s"]) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_the_real_watcher_takes_every_level(level, journal):
    config = load_config(f"debug_{level}", "debug.async_logging=false")
    watcher = config.watcher(journal, OverheadBudget("1%"))
    watcher.record(0, {"loss": 1.0})
    watcher.finish()


def test_the_real_objects_keep_to_the_limits(tmp_path):
    config = load_config(
        "debug_standard", f"{MEMORY}.max_total_mb=0.5", f"{MEMORY}.max_cache_mb=0.25"
    )
    report = config.memory_manager().get_memory_report()
    assert report["monitor_stats"]["limit_mb"] == 0.5
    assert report["cache_stats"]["max_memory_mb"] == 0.25
    sizes = []
    for compression in ("true", "false"):
        config = load_config("debug_full", f"{MEMORY}.compression={compression}")
        path = config.storage(tmp_path).save(np.arange(10_000), compression)
        sizes.append(path.stat().st_size)
    assert sizes[0] < sizes[1] < 80_000


# --- Hydra ----------------------------------------------------------------------------


@pytest.fixture
def compose():
    hydra = pytest.importorskip("hydra")
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra

    before = dict(ConfigStore.instance().repo)
    register_with_hydra()
    with hydra.initialize(version_base=None, config_path=None):
        yield lambda *overrides: hydra.compose(overrides=list(overrides)).visualization
    ConfigStore.instance().repo = before
    GlobalHydra.instance().clear()


@pytest.mark.parametrize("level", LEVELS)
def test_hydra_gives_the_same_config(compose, level):
    composed = compose(f"+visualization=debug_{level}")
    assert Config.of(composed) == load_config(f"debug_{level}")


def test_hydra_overrides_are_checked(compose):
    from hydra.errors import ConfigCompositionException

    ask = "+visualization=debug_standard"
    key = "visualization.debug.memory_management.max_cache_mb"
    composed = compose(ask, f"{key}=7", "visualization.debug.level=off")
    config = Config.of(composed)
    assert config.debug.memory_management.max_cache_mb == 7.0
    assert config.debug.level == "off"
    with refuses(ConfigCompositionException, "max_cash_mb"):
        compose(ask, key.replace("cache", "cash") + "=7")
    added = compose(ask, "+" + key.replace("cache", "cash") + "=7")
    with refuses(ConfigError, f"{MEMORY}.max_cash_mb", "max_cache_mb"):
        Config.of(added)
    with refuses(ConfigError, f"{MEMORY}.max_cache_mb", "'much'"):
        Config.of(compose(ask, f"{key}=much"))
    with refuses(ConfigError, "debug.level", "'bogus'"):
        Config.of(compose(ask, "visualization.debug.level=bogus"))


@pytest.mark.slow
def test_hydra_is_imported_lazily():
    code = """
import sys
from frugax.compat import visualization
visualization.load_config("debug_full")
print([name for name in ("hydra", "omegaconf") if name in sys.modules])
sys.modules["hydra.core.config_store"] = None
try: visualization.register_with_hydra()
except ImportError as e: print(type(e).__name__, e)
"""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    first, second = out.stdout.splitlines()
    assert first == "[]"
    assert second.startswith("MissingExtraError register_with_hydra needs hydra-core")
