"""Write the JSON Schemas of plans and receipts into the package.

    python scripts/write_schemas.py

`tests/run/test_schemas.py` compares the files with the classes.
"""

import copy
import json
from pathlib import Path
from typing import Any

from frugax import capture, causal, compress, fit, remat, run, train, watch
from frugax.budget import Receipt, Verdict, json_schema

FOLDER = Path(__file__).parent.parent / "src" / "frugax" / "run" / "schemas"
PLANS: dict[str, type] = {
    "campaign-plan": causal.CampaignPlan,
    "compress-plan": compress.CompressPlan,
    "fit-plan": fit.FitPlan,
    "jit-plan": capture.JitPlan,
    "remat-plan": remat.RematPlan,
    "run-plan": run.RunPlan,
    "train-plan": train.TrainPlan,
    "watch-plan": watch.WatchPlan,
}


def schemas() -> dict[str, dict[str, Any]]:
    """Every schema by the name of its file."""
    receipt = with_verdicts(json_schema(Receipt))
    # A run's receipt is a receipt with further keys, so that a reader of receipts can
    # read it, too.
    outcome = json_schema(run.Outcome, title="RunReceipt")
    del outcome["properties"]["receipt"], outcome["$defs"]["Receipt"]
    outcome["properties"] = receipt["properties"] | outcome["properties"]
    outcome["required"] = list(outcome["properties"])
    outcome["$defs"] |= receipt["$defs"]
    plans = {name: json_schema(plan) for name, plan in PLANS.items()}
    return {"receipt": receipt, "run-receipt": outcome, **plans}


def with_verdicts(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the verdicts, which are derived when a receipt is written."""
    schema = copy.deepcopy(schema)
    for part in (schema, schema["$defs"]["Spend"]):
        verdict = {"enum": [str(v) for v in Verdict]}
        part["properties"] = {"verdict": verdict} | part["properties"]
        part["required"] = ["verdict", *part["required"]]
    return schema


def render(schema: dict[str, Any]) -> str:
    """The text of a schema's file."""
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / f"{name}.json").write_text(render(schema))
        print(FOLDER / f"{name}.json")
