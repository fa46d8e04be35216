"""A campaign that is kept loses at most one question if its process is killed."""

import os
import signal
import sys
import time

import pytest

from frugax import ExperimentBudget, causal
from frugax.causal.campaign import Campaign, _file
from frugax.errors import OutputError
from refusals import refuses

LIMIT = 4.0


def go_on(path, pipe):
    """The child: continues the campaign, and prints each answer that it has told."""
    campaign = Campaign.load(path)
    campaign.keep(path)
    while True:
        ask = campaign.pending[0] if campaign.pending else campaign.ask()
        if ask is None:
            return
        os.write(pipe, f"ask {ask.id}\n".encode())
        campaign.tell(ask, {"x": [0.5], "y": [float(ask.id)]})
        os.write(pipe, f"told {ask.id}\n".encode())


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_killed_campaign_keeps_every_answer(tmp_path):
    path = tmp_path / "c"
    campaign = Campaign(
        variables={"x": (-1.0, 1.0), "z": (-1.0, 1.0)},
        target="y",
        budget=ExperimentBudget(cost=LIMIT, costs={"x": 0.1, "z": 0.3}),
        num_posterior_samples=8,
    )
    campaign.tell_observations(
        causal.sample(causal.SCM.linear({"x": {}, "z": {}, "y": {"x": 1.0}}), 6, seed=0)
    )
    campaign.save(path)
    answered: set[int] = set()
    for round_ in range(8):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            try:
                go_on(path, write)
            finally:
                os._exit(0)
        os.close(write)
        heard = b""
        # Until it has printed that many lines, then at a random moment.
        while heard.count(b"\n") <= round_ and (more := os.read(read, 1)):
            heard += more
        time.sleep(0.002 * round_)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(read, "rb") as lines:
            said = (heard + lines.read()).decode().splitlines()
        answered |= {int(s.split()[1]) for s in said if s.startswith("told")}
        asked = {int(s.split()[1]) for s in said if s.startswith("ask")}
        campaign = Campaign.load(path)
        kept = {e.id for e in campaign.experiments if e.status == "answered"}
        assert answered <= kept  # nothing that was told is lost
        assert asked <= {
            e.id for e in campaign.experiments
        }  # every proposed experiment is paid for
        assert len(campaign.pending) <= 1
        assert campaign.spent + campaign.reserved <= LIMIT
    assert campaign.experiments, "no child had the time to ask"


def test_two_that_save_at_once_do_not_lose_an_answer(tmp_path, monkeypatch):
    path = tmp_path / "c"
    begun = Campaign(
        variables={"x": (-1.0, 1.0)},
        target="y",
        budget=ExperimentBudget(n=2),
        num_posterior_samples=8,
    )
    begun.ask(2)
    begun.save(path)
    first, second = Campaign.load(path), Campaign.load(path)
    first.tell(0, 1.0)
    second.tell(1, 2.0)
    write = _file.write_state

    def save_in_between(path, state):
        monkeypatch.undo()
        with refuses(OutputError, path.name):
            second.save(path)
        write(path, state)

    # The second saves between the check of the first and its write.
    monkeypatch.setattr(_file, "write_state", save_in_between)
    first.save(path)
    assert [one.status for one in Campaign.load(path).experiments] == [
        *("answered", "pending"),
    ]
    with refuses(OutputError, path.name):
        second.save(path)  # read it again, and tell the answer again
