"""SIGTERM: a watched run is whole, and the process ends or goes on as without it."""

import json
import signal

import pytest

from forked import python
from frugax import watch

_PROGRAM = """
import hashlib, os, signal, sys, threading, time
from frugax import watch

def end():
    os.kill(os.getpid(), signal.SIGTERM)

how, folder = sys.argv[1:]
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
if how in ("own", "ignored"):
    mine = signal.SIG_IGN if how == "ignored" else lambda *_: print("mine")
    signal.signal(signal.SIGTERM, mine)
with watch.run(folder, level="full") as run:
    for step in range(50):
        run.record(step, {"loss": 1.0})
    if how == "later":
        signal.signal(signal.SIGTERM, lambda *_: print("mine"))
    if how == "child":
        child = os.fork()
        if child == 0:
            time.sleep(600)
        os.kill(child, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    elif how == "compiled code":
        threading.Timer(0.1, end).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
    else:
        end()
    for step in range(50, 100):
        run.record(step, {"loss": 1.0})
        time.sleep(0.01 if how in ("own", "ignored", "later", "child") else 1)
if how in ("own", "ignored", "later"):
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
else:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
"""


@pytest.mark.parametrize(
    ("how", "code", "out", "steps"),
    [
        ("training", -signal.SIGTERM, "", None),
        ("compiled code", -signal.SIGTERM, "", 50),
        ("own", 0, "mine\n", 100),
        ("later", 0, "mine\n", 100),
        ("ignored", 0, "", 100),
        ("child", 0, f"{-signal.SIGTERM}\n", 100),
    ],
)
def test_a_run_that_sigterm_ends_is_whole(tmp_path, how, code, out, steps):
    ended = python(_PROGRAM, how, tmp_path / "run")
    assert (ended.returncode, ended.stdout) == (code, out), ended.stderr
    back = watch.read(tmp_path / "run" / "journal", strict=True)
    assert len(back) == steps or (steps is None and len(back) >= 50)
    receipt = json.loads((tmp_path / "run" / "receipt.json").read_text())
    assert receipt.get("stopped_because") == ((code and "SIGTERM") or None)
