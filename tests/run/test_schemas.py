"""The packaged JSON Schemas describe the JSON of plans and receipts."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import jsonschema
import pytest

from frugax import MemoryBudget, SizeBudget, budget, compress
from frugax.budget import Receipt, Spend, json_schema
from refusals import refuses

ROOT = Path(__file__).parents[2]
SPEND = Spend(name="file", unit="bytes", limit=10, measured=9, source="a scale")


@pytest.fixture(scope="module")
def script():
    path = ROOT / "scripts" / "write_schemas.py"
    spec = importlib.util.spec_from_file_location("write_schemas", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schemas_match_the_classes(script):
    schemas = script.schemas()
    assert {p.stem for p in script.FOLDER.glob("*.json")} == set(schemas)
    for name, schema in schemas.items():
        text = (script.FOLDER / f"{name}.json").read_text()
        assert text == script.render(schema), "run python scripts/write_schemas.py"
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_plan_has_a_schema(script):
    def families(cls):
        return {cls} | {c for sub in cls.__subclasses__() for c in families(sub)}

    # By name: a dataclass with slots replaces its class, and both are subclasses.
    place = lambda cls: f"{cls.__module__}.{cls.__qualname__}"
    found = {place(plan) for plan in families(budget.Plan) - {budget.Plan}}
    ours = {p for p in found if p.startswith("frugax.") and ".compat." not in p}
    assert ours == {place(plan) for plan in script.PLANS.values()}


def test_a_receipt_is_valid_and_one_without_its_limit_is_not(script):
    schema = script.schemas()["receipt"]
    data = json.loads(Receipt((SPEND,)).to_json())
    jsonschema.validate(data, schema)
    del data["spends"][0]["limit"]
    with refuses(jsonschema.ValidationError, "limit"):
        jsonschema.validate(data, schema)


def test_a_plan_is_valid_and_a_misspelt_key_is_not():
    import numpy as np

    plan = compress.plan({"w": np.ones((64, 64), "float32")}, SizeBudget("4x"))
    data, schema = json.loads(plan.to_json()), json_schema(compress.CompressPlan)
    jsonschema.validate(data, schema)
    with refuses(jsonschema.ValidationError, "bugdet"):
        jsonschema.validate(data | {"bugdet": 1}, schema)


@dataclasses.dataclass(frozen=True)
class Everything:
    pair: tuple[int, str]
    many: tuple[MemoryBudget, ...]
    share: float | None
    table: dict[str, list[bool]]


def test_every_kind_of_field_is_described():
    value = Everything((1, "a"), (MemoryBudget("1KiB"),), None, {"x": [True]})
    schema = json_schema(Everything)
    data = json.loads(json.dumps(budget.to_plain(value)))
    jsonschema.validate(data, schema)
    wrong = [
        {"pair": [1]},
        {"pair": [1, "a", 2]},
        {"share": "1%"},
        {"table": {"x": [0]}},
    ]
    for change in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data | change, schema)


def test_a_field_that_json_cannot_hold_is_refused():
    @dataclasses.dataclass
    class Odd:
        value: complex

    with refuses(TypeError, "complex"):
        json_schema(Odd)
