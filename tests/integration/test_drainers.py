"""
Two real daemons on one database, killed at random; ``python -m benchmarks drainers`` is the long
form.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.effects import script
from tests.installation import Installation, companion
from tests.servers import MariaDB
from tests.site import Site

ACCOUNTS = ("acme", "bravo", "carla")
SETTINGS = {"drainer": {"tick": 0.2, "drain_limit": 2.0, "stop_limit": 4.0}}


@pytest.fixture
def site(tmp_path: Path, mariadb: MariaDB) -> Iterator[Site]:
    """
    A queue with its executor running; no daemon.
    """
    mariadb.create_database("drainers")
    made = Site(tmp_path, mariadb.dsn("drainers"), SETTINGS)
    try:
        made.installation.start_executor()
        yield made
    finally:
        made.close()


@pytest.fixture
def other(site: Site, tmp_path: Path) -> Iterator[Installation]:
    """
    A second daemon, not started.
    """
    with companion(site.installation, tmp_path / "other", "other") as made:
        yield made


@pytest.mark.slow
def test_two_daemons_under_kills(site: Site, other: Installation) -> None:
    """
    Nothing is lost, nothing runs twice and no cap is broken while either is killed or restarted
    every second.
    """
    draw = random.Random(4)
    daemons = (site.installation, other)
    for daemon in daemons:
        daemon.start_daemon(wait=False)
    for number in range(1, 41):
        site.admit(number, ACCOUNTS[number % 3], draw.uniform(0.05, 0.3))
    for _ in range(8):
        daemon = draw.choice(daemons)
        if daemon.runs("daemon"):
            daemon.stop("daemon") if draw.random() < 0.25 else daemon.kill("daemon")
        time.sleep(draw.uniform(0.1, 0.9))
        for each in daemons:
            if not each.runs("daemon"):
                each.start_daemon(wait=False)
    site.until(site.all_ended, "not all have ended")
    assert site.problems() == []
    assert site.statuses() == {"success": 40}


@pytest.mark.slow
def test_a_rolling_restart_has_no_gap(site: Site, other: Installation) -> None:
    """
    Each is stopped in order and started again; work goes on starting all the while, and both are
    listed as alive in the end.
    """
    for daemon in (site.installation, other):
        daemon.start_daemon()
    for number in range(1, 61):
        site.admit(number, ACCOUNTS[number % 3], 0.2)
    for daemon in (site.installation, other):
        assert daemon.stop("daemon") in (0, -15)
        daemon.start_daemon()
    site.until(site.all_ended, "not all have ended")
    assert site.problems() == []
    rows = site.ask("SELECT UNIX_TIMESTAMP(started_at) FROM codeRunner_executions ORDER BY 1")
    starts = [float(row[0]) for row in rows]
    gaps = [later - one for one, later in itertools.pairwise(starts)]
    assert max(gaps) < 2.0
    status, text = other.get("/drainers")
    assert status == 200
    found = {each["id"]: each["state"] for each in json.loads(text)["drainers"]}
    assert found == {"site": "alive", "other": "alive"}


@pytest.mark.slow
def test_a_second_daemon_of_a_name_is_not_ready(site: Site, tmp_path: Path) -> None:
    """
    It serves its door, says why it does nothing, and starts work when the first one has stopped.
    """
    site.installation.start_daemon()
    with companion(site.installation, tmp_path / "twin", "site") as twin:
        twin.start_daemon(wait=False)
        site.until(lambda: "is in use by a daemon on" in twin.log("daemon"), "it says nothing")
        assert twin.get("/health/ready")[0] == 503
        site.admit(1, "acme", 0.05)
        site.until(site.all_ended, "the first does not work")
        site.installation.stop("daemon")
        site.until(lambda: twin.get("/health/ready")[0] == 200, "it does not take over")
        site.admit(2, "acme", 0.05)
        site.until(site.all_ended, "the second does not work")
    assert site.problems() == []


@pytest.mark.slow
def test_admission_survives_its_drainer(tmp_path: Path, mariadb: MariaDB) -> None:
    """
    A process that only admits goes on while the drainer is dead, and says that the queue is stalled
    once that is so; a new drainer is poked by each admission, and starts it long before its tick.
    """
    mariadb.create_database("roles")
    slow = {"drainer": {**SETTINGS["drainer"], "tick": 20.0, "wake_socket": str(tmp_path / "wake")}}
    site = Site(tmp_path, mariadb.dsn("roles"), slow)
    # Its own tick only says how long nothing may start before that is called stalled.
    door = companion(site.installation, tmp_path / "door", "site", {"drainer": {"tick": 1.0}})
    try:
        site.installation.start_executor()
        door.start_daemon(roles="admit")

        def submitted(number: int) -> None:
            identifier = f"{number}/1"
            key, text = "acme.0", script(number, 0.05)
            fields = {"subdomain": "acme", "apikey": key, "source_code": text}
            status, answer = door.submit(identifier=identifier, **fields)
            assert status == 202, answer
            site.answers[identifier] = "queued"

        submitted(1)
        site.until(
            lambda: json.loads(door.get("/health/verdict")[1])["verdict"] == "stalled",
            "nobody says that it is stalled",
        )
        assert json.loads(door.get("/status")[1])["because"].endswith("nobody has reported")
        site.installation.start_daemon(roles="drain")
        site.until(site.all_ended, "what was admitted meanwhile is not done")
        assert site.installation.submit(subdomain="acme")[0] == 404
        for number in range(2, 7):
            submitted(number)
            assert site.until(site.all_ended, "not poked") < 10
        site.installation.kill("daemon")
        submitted(7)
        assert door.get("/health/ready")[0] == 200
        site.installation.start_daemon(roles="drain")
        site.until(site.all_ended, "not all have ended")
        assert site.problems() == []
    finally:
        door.close()
        site.close()
