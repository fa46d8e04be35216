"""A verdict is kept or broken only where the noise leaves no doubt."""

import pytest

from frugax.budget import Receipt, Spend, Verdict


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
def test_what_is_no_receipt_is_refused(text):
    with pytest.raises(ValueError, match=r"receipt|spends"):
        Receipt.from_json(text)
