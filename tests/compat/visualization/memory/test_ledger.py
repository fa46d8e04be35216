"""The ledger's sum keeps its limit for every account and thread."""

import gc
import threading
import weakref

import pytest

from frugax.compat.visualization.memory import ByteLedger


def test_reservations_add_up_and_are_refused_at_the_limit():
    ledger = ByteLedger(100)
    a, b, again = (ledger.account(name) for name in ("a", "b", "a"))
    assert a.reserve(60)
    assert b.reserve(30)
    assert again.reserve(10)
    assert ledger.bytes == 100
    assert ledger.by_account() == {"a": 70, "b": 30}
    assert not b.reserve(1)
    assert (ledger.refusals, ledger.bytes) == (1, 100)
    a.release(60)
    assert b.reserve(1)
    assert ledger.peak_bytes == 100
    assert ledger.by_account() == {"a": 10, "b": 31}


def test_others_are_asked_in_order_and_only_as_long_as_needed():
    ledger = ByteLedger(100)
    held = ledger.account("held")
    held.reserve(100)
    asked = []

    def lets_go(name, nbytes):
        def let_go(wanted):
            asked.append((name, wanted))
            freed = min(nbytes, held.bytes)
            held.release(freed)
            return freed

        return let_go

    ledger.reclaim_with(lets_go("first", 10))
    ledger.reclaim_with(lets_go("second", 50))
    new = ledger.account("new")
    assert new.reserve(5)
    assert asked == [("first", 5)]
    assert new.reserve(45)
    assert asked[1:] == [("first", 40), ("second", 30)]
    assert not new.reserve(30, make_room=False)
    assert len(asked) == 3
    assert ledger.bytes <= 100


def test_an_item_that_can_never_fit_evicts_no_others():
    ledger = ByteLedger(100)
    ledger.reclaim_with(lambda wanted: pytest.fail("asked in vain"))
    assert not ledger.account("x").reserve(101)


def test_reserving_ends_when_all_accounts_are_empty():
    ledger = ByteLedger(100)
    ledger.account("x").reserve(100)
    ledger.reclaim_with(lambda wanted: 0)
    assert not ledger.account("y").reserve(1)


def test_amounts_that_make_no_sense_are_refused():
    account = ByteLedger(100).account("x")
    account.reserve(5)
    with pytest.raises(ValueError, match=r"in \[0, 5\].*'x'.*got 6"):
        account.release(6)
    with pytest.raises(ValueError, match="got -1"):
        account.reserve(-1)
    with pytest.raises(ValueError, match="got 0"):
        ByteLedger(0)


def test_accounts_of_deleted_owners_are_closed_without_a_lock():
    ledger = ByteLedger(100)

    class Owner:
        pass

    owner = Owner()
    account = ledger.account("gone")
    account.reserve(40)
    weakref.finalize(owner, account.close_later)
    with ledger._lock:  # a finalizer that waited for it would never come back
        del owner
        gc.collect()
    assert ledger.bytes == 0
    assert ledger.by_account() == {}


def test_many_threads_never_pass_the_limit():
    highest = []
    ledger = ByteLedger(1000, on_change=highest.append)
    accounts = [ledger.account(str(i)) for i in range(8)]

    def work(account):
        for i in range(2000):
            nbytes = i % 400
            if account.reserve(nbytes):
                account.release(nbytes)

    threads = [threading.Thread(target=work, args=(a,)) for a in accounts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.bytes == 0
    assert max(highest) <= ledger.peak_bytes <= 1000
