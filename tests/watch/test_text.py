"""Texts and tables are arrays of a journal, made by programs or outside of them."""

import jax.numpy as jnp
import pytest

from frugax import OverheadBudget, watch
from frugax.watch.journal import decode_text
from refusals import refuses


def watched(tmp_path, fn, *calls):
    path = tmp_path / "journal"
    with (
        watch.Journal.create(path, {}) as journal,
        watch.Watcher(journal, OverheadBudget("1%"), level="full"),
    ):
        step = watch.jit(fn)
        for argument in calls:
            step(argument)
    return watch.read(path).streams


def test_texts_of_any_length_share_a_stream(tmp_path):
    def step(letters):
        watch.text("sample", letters, max_bytes=8)
        watch.text("fixed", "grün" * 3, max_bytes=8)
        return letters

    streams = watched(tmp_path, step, jnp.array([72, 105]), jnp.arange(97, 122))
    told = [decode_text(row) for row in streams["sample"]["utf8"]]
    assert told == ["Hi", "abcdefgh"]
    # A letter of two bytes is not cut in half.
    assert decode_text(streams["fixed"]["utf8"][0]) == "grüngr"


def test_a_table_has_its_columns(tmp_path):
    def step(losses):
        worst = jnp.argsort(-losses)[:2]
        watch.table("worst", {"index": worst, "loss": losses[worst]})
        return losses

    streams = watched(tmp_path, step, jnp.array([0.1, 3.0, 2.0]))
    assert streams["worst"]["index"].tolist() == [[1, 2]]
    assert streams["worst"]["loss"].tolist() == [[3.0, 2.0]]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: watch.text("a", 1.5), "bytes"),
        (lambda: watch.text("a", "b", max_bytes=0), 0),
        (lambda: watch.table("a", {}), "columns"),
        (lambda: watch.table("a", {"x": jnp.ones(2), "y": jnp.ones(3)}), "(3,)"),
    ],
)
def test_wrong_text_and_tables_are_refused(call, named):
    with refuses((TypeError, ValueError), named):
        call()
