"""A verdict is kept or broken only where the noise leaves no doubt."""

import dataclasses
import json

import pytest

from frugax.budget import (
    Receipt,
    Spend,
    Verdict,
    WrongValueError,
    from_plain,
    to_plain,
)
from refusals import refuses


def spend(measured, *, noise=0.0, limit=10.0):
    return Spend(
        name="x", unit="bytes", limit=limit, measured=measured, noise=noise, source="y"
    )


@pytest.mark.parametrize(
    ("measured", "noise", "verdict"),
    [
        (10.0, 0.0, Verdict.KEPT),
        (10.5, 0.0, Verdict.BROKEN),
        (9.0, 1.0, Verdict.KEPT),
        (9.5, 1.0, Verdict.CANNOT_TELL),
        (10.5, 1.0, Verdict.CANNOT_TELL),
        (12.0, 1.0, Verdict.BROKEN),
        (None, 0.0, Verdict.CANNOT_TELL),
        (float("nan"), 0.0, Verdict.CANNOT_TELL),
    ],
)
def test_verdicts(measured, noise, verdict):
    assert spend(measured, noise=noise).verdict is verdict


def test_a_limit_that_is_not_there_is_a_dash():
    unlimited = str(Receipt((spend(1.0, limit=float("nan")),)))
    assert unlimited.splitlines()[-1].split() == [
        "x",
        "-",
        "-",
        "1",
        "B",
        "cannot",
        "tell",
    ]


def test_the_worst_verdict_is_the_receipts():
    kept, broken, unsure = spend(1.0), spend(11.0), spend(None)
    assert Receipt(()).verdict is Verdict.KEPT
    assert Receipt((kept, unsure)).verdict is Verdict.CANNOT_TELL
    assert Receipt((unsure, kept, broken)).verdict is Verdict.BROKEN


def test_a_receipt_survives_json_and_prints_its_verdicts():
    receipt = Receipt((spend(2048.0, limit=4096.0), spend(None)))
    assert Receipt.from_json(receipt.to_json()) == receipt
    assert "2 KiB" in str(receipt)
    assert "cannot tell" in str(receipt)


@pytest.mark.parametrize("text", ["{}", "[]", '{"spends": [3]}', '{"spends": 3}'])
def test_an_invalid_receipt_is_refused(text):
    with pytest.raises(ValueError, match=r"receipt|spends"):
        Receipt.from_json(text)


@pytest.mark.parametrize("field", ["measured", "noise", "limit", "predicted"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_json_is_strict_and_a_number_that_is_not_finite_gives_cannot_tell(
    field, number
):
    doubtful = dataclasses.replace(spend(1.0), **{field: number})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = Receipt((doubtful,)).to_json()
    assert json.loads(text, parse_constant=refuse)["spends"][0][field] is None
    (back,) = Receipt.from_json(text).spends
    if field != "predicted":
        assert back.verdict is Verdict.CANNOT_TELL
    # Written again it is the same text, apart from the verdict of infinite limits.
    again = json.loads(Receipt((back,)).to_json())["spends"][0]
    assert {**again, "verdict": ""} == {**json.loads(text)["spends"][0], "verdict": ""}


def test_a_missing_number_in_a_config_is_not_read_as_nan():
    with refuses(WrongValueError, "noise", None):
        from_plain(Spend, {**to_plain(spend(1.0)), "noise": None})
