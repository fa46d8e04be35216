"""A wrong config is refused with its reason; every valid key has an effect."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from frugax.compat import visualization
from frugax.compat.visualization import (
    BudgetConfig,
    Config,
    DebugConfig,
    MemoryConfig,
    MemoryManager,
    load_config,
    register_with_hydra,
)
from frugax.errors import ConfigError
from frugax.watch import Journal, Level, Watcher

LEVELS = get_args(Level)
CONFIGS = Path(visualization.__file__).parent / "conf" / "visualization"


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
def test_the_files_that_come_with_it_say_every_key(level):
    config = load_config(f"debug_{level}")
    assert config.debug.level == level
    text = (CONFIGS / f"debug_{level}.yaml").read_text()
    for path, _ in leaves(config):
        assert f"{path.rpartition('.')[2]}:" in text
    assert config == Config(
        debug=DebugConfig(level=level, performance_monitoring=level != "off")
    )


def test_there_are_only_the_listed_files():
    assert sorted(p.name for p in CONFIGS.iterdir()) == sorted(
        f"debug_{level}.yaml" for level in LEVELS
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
        "budget.overhead=2e-2",
        "debug.memory_management.max_total_mb=700",
        "debug.async_logging=false",
    )
    assert config.debug.level == "full"
    assert config.budget.overhead == 0.02
    assert config.debug.memory_management.max_total_mb == 700.0
    assert not config.debug.async_logging


def test_a_file_may_leave_keys_out(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("debug:\n  level: minimal\n")
    assert load_config(path) == Config(debug=DebugConfig(level="minimal"))
    assert load_config(str(path), "debug.level=off").debug.level == "off"


@pytest.mark.parametrize(
    ("override", "match"),
    [
        (
            "debug.memory_management.max_cash_mb=1",
            r"override 'debug\.memory_management\.max_cash_mb=1': "
            r".*unknown key\. Did you mean 'max_cache_mb'\? Valid keys here: .*",
        ),
        ("debug.levle=full", "Did you mean 'level'"),
        ("debugg.level=full", "Did you mean 'debug'"),
        ("debug.level=verbos", r"one of off, .*, got 'verbos'\. Did you mean 'verb"),
        ("debug.level=7", "debug.level: expected text, got 7"),
        ("debug.level=off#", r"got 'off#'"),
        ("debug.async_logging=1", "debug.async_logging: expected true or false, got 1"),
        ("debug.memory_management.max_total_mb=0", r"max_total_mb: must be > 0 .* 0"),
        ("debug.memory_management.max_cache_mb=.inf", "max_cache_mb: must be > 0"),
        ("budget.overhead=1.5", r"budget.overhead: must be in \[0, 1\].* 1\.5"),
        ("budget.overhead=-1", "budget.overhead: must be"),
        ("debug.memory_management=3", "mapping with the keys max_cache_mb"),
        ("debug.level.deeper=3", "level is not a mapping"),
        ("debug.level", "write key=value"),
        ("=3", "write key=value"),
        ("debug..level=off", "write key=value"),
        ("debug.level=[", "not YAML"),
    ],
)
def test_an_error_names_the_wrong_value_and_its_place(override, match):
    with pytest.raises(ConfigError, match=match):
        load_config("debug_standard", override)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "debug:\n  level: full\n  async_loging: true\n",
            r"mine\.yaml:3: debug\.async",
        ),
        ("debug:\n  level: fall\n", r"mine\.yaml:2: debug\.level"),
        (
            "debug:\n  level: full\n  level: off\n",
            "mine.yaml:3: .*repeated.*line 2",
        ),
        ("defaults: [debug_full]\n", r"mine\.yaml:1: defaults: unknown key"),
        ("- a\n", "a config is a mapping"),
        ("a: [\n", r"mine\.yaml:2: this is not YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "not YAML"),
    ],
)
def test_an_error_names_the_file_and_the_line(tmp_path, text, match):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        load_config(path)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("debug_standart", "unknown config. Did you mean 'debug_standard'"),
        ("full", "There are debug_off, .*debug_full, and files"),
        ("/no/such/file.yaml", "/no/such/file.yaml: there is no such file"),
        (Path("debug_standard"), "unknown config"),
    ],
)
def test_missing_configs_are_refused(name, match):
    with pytest.raises(ConfigError, match=match):
        load_config(name)


def test_binary_files_are_refused(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        load_config(path)


def test_off_is_a_word_and_no_boolean():
    """YAML 1.1 reads a bare `off` as false, which is not a level."""
    assert load_config("debug_full", "debug.level=off").debug.level == "off"


def test_only_true_and_false_are_booleans():
    for text in ("yes", "on", "y"):
        with pytest.raises(ConfigError, match=f"true or false, got '{text}'"):
            load_config("debug_full", f"debug.async_logging={text}")


def test_a_config_from_a_mapping():
    config = Config.of({"debug": {"level": "full"}})
    assert config == Config(debug=DebugConfig(level="full"))
    with pytest.raises(ConfigError, match=r"budget\.overhed: .*'overhead'"):
        Config.of({"budget": {"overhed": 1}})


# --- every key is read by something ---------------------------------------------------


@pytest.fixture
def journal(tmp_path):
    with Journal.create(tmp_path / "journal", {}) as made:
        yield made


def test_every_key_reaches_the_built_object(monkeypatch, tmp_path, journal):
    seen = {}

    class FakeWatcher(Watcher):
        def __init__(self, journal, budget, **options):
            seen.update(options, budget=budget)

    class FakeManager(MemoryManager):
        def __init__(self, *limits, **options):
            seen.update(options, limits=limits)

    monkeypatch.setattr(f"{visualization.__name__}._config.Watcher", FakeWatcher)
    monkeypatch.setattr(f"{visualization.__name__}._config.MemoryManager", FakeManager)
    config = Config(
        debug=DebugConfig(
            level="verbose",
            async_logging=False,
            performance_monitoring=False,
            memory_management=MemoryConfig(
                max_cache_mb=1.0,
                max_total_mb=2.0,
                lazy_loading=False,
                compression=False,
            ),
        ),
        budget=BudgetConfig(overhead=0.03),
    )
    read = set()
    for cls in (MemoryConfig, DebugConfig, BudgetConfig, Config):

        def spy(self, name, get=cls.__getattribute__):
            read.add(name)
            return get(self, name)

        monkeypatch.setattr(cls, "__getattribute__", spy)
    config.watcher(journal)
    config.memory_manager(tmp_path)
    keys = {path.rpartition(".")[2] for path, _ in leaves(config)}
    assert len(keys) == 8
    assert keys <= read
    assert seen["level"] == "verbose"
    assert not seen["asynchronous"]
    assert not seen["monitor"]
    assert seen["budget"].share == 0.03
    assert seen["limits"] == (1.0, 2.0, tmp_path)
    assert not seen["lazy_loading"]
    assert not seen["compression"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_real_watcher_takes_every_level(level, journal):
    config = load_config(f"debug_{level}", "debug.async_logging=false")
    watcher = config.watcher(journal)
    watcher.record(0, {"loss": 1.0})
    watcher.finish()


def test_the_real_manager_keeps_to_the_limits():
    memory = "debug.memory_management"
    config = load_config(
        "debug_standard", f"{memory}.max_total_mb=0.5", f"{memory}.max_cache_mb=0.25"
    )
    manager = config.memory_manager()
    assert manager.ledger.limit_bytes == 500_000
    assert manager.get_memory_report()["cache_stats"]["max_memory_mb"] == 0.25


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
    from omegaconf import OmegaConf

    composed = compose(f"+visualization=debug_{level}")
    config = load_config(f"debug_{level}")
    assert Config.of(composed) == OmegaConf.to_object(composed) == config


def test_hydra_overrides_are_checked(compose):
    from hydra.errors import ConfigCompositionException

    ask = "+visualization=debug_standard"
    key = "visualization.debug.memory_management.max_cache_mb"
    composed = compose(ask, f"{key}=7", "visualization.debug.level=off")
    config = Config.of(composed)
    assert config.debug.memory_management.max_cache_mb == 7.0
    assert config.debug.level == "off"
    with pytest.raises(ConfigCompositionException, match="max_cash_mb"):
        compose(ask, key.replace("cache", "cash") + "=7")
    added = compose(ask, "+" + key.replace("cache", "cash") + "=7")
    with pytest.raises(ConfigError, match=r"max_cash_mb: .*Did you mean 'max_cache"):
        Config.of(added)
    with pytest.raises(ConfigCompositionException, match=f"{key}=much"):
        compose(ask, f"{key}=much")
    with pytest.raises(ConfigError, match=r"debug\.level: must be one of .*'bogus'"):
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


def test_an_empty_config_has_the_defaults_and_errors_name_the_remedy(tmp_path):
    file = tmp_path / "watch.yaml"
    file.write_text("# nothing yet\n")
    assert load_config(file) == Config()
    with pytest.raises(ConfigError, match=r"Write 0.01 for 1%"):
        load_config(file, "budget.overhead=1%")
    with pytest.raises(ConfigError, match="max_cache_mb: must be at most max_total_mb"):
        load_config(file, "debug.memory_management.max_total_mb=5")
