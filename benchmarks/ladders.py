"""
How long an execution holds its slot when the API refuses and refuses: both ladders, in real time,
on our executor under gunicorn and on deploy/php under PHP-FPM.

    python -m benchmarks.ladders        # four minutes
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from crq.database import Cursor
from tests.acceptance.site import Site
from tests.fake_api import Answer, Call, FakeApi
from tests.installation import Installation
from tests.servers import MariaDB, Memcached

WITHIN = 280.0  # s; two waits of 104 s, and what surrounds them
LADDERS = {
    "429, Retry-After: 10": Answer(429, {}, {"Retry-After": "10"}),
    "429, Retry-After: 99": Answer(429, {}, {"Retry-After": "99"}),
    "429, Retry-After: 3600": Answer(429, {}, {"Retry-After": "3600"}),
    "401, API limit reached": Answer(401, {"error": "API limit reached for this method"}),
}


class RefusingApi(FakeApi):
    """
    Refuses each call by the ladder that its path names, for ever.
    """

    def _take(self, call: Call) -> Answer:
        self.calls.append(call)
        return list(LADDERS.values())[int(call.path.rpartition("/")[2])]


def measure(
    installation: Installation, api: RefusingApi, script: Callable[[int], str]
) -> list[Any]:
    """
    Run one script for each ladder, at once, each with an account and a key of its own.

    :return: for each ladder: attempts, seconds, code and message of its execution.
    """
    numbers = [
        installation.submit(
            subdomain=f"ladder{number}", apikey=f"key-{number}", source_code=script(number)
        )[1]["executionId"]
        for number in range(len(LADDERS))
    ]
    over = time.monotonic() + WITHIN
    while True:
        rows = {row[0]: row[1:] for row in _ended(installation)}
        if rows.keys() >= set(numbers) or time.monotonic() > over:
            break
        time.sleep(0.2)
    return [
        (sum(call.path.endswith(f"/{place}") for call in api.calls), *rows[number])
        for place, number in enumerate(numbers)
    ]


def _ended(installation: Installation) -> list[tuple[Any, ...]]:
    database = installation.config.open_database()
    connection = database.connect()

    def read(txn: Cursor) -> list[tuple[Any, ...]]:
        from crq import records

        found = records.page(txn, records.Filters()).records
        return [
            (one.execution_id, one.seconds, one.error_code, one.error_message)
            for one in found
            if one.finished_at is not None
        ]

    try:
        return database.read(connection, read)
    finally:
        connection.close()


def _php() -> list[Any]:
    with (
        MariaDB() as mariadb,
        Memcached() as memcached,
        RefusingApi() as api,
        Site(mariadb, memcached, "ladders", 1.0, api=api) as site,
    ):
        return measure(site.installation, api, "GET /{}".format)


def _ours() -> list[Any]:
    with (
        tempfile.TemporaryDirectory(prefix="crq-ladders-") as folder,
        RefusingApi() as api,
        Installation(Path(folder), {"api": {"base_url": api.url}}) as installation,
    ):
        installation.start_executor()
        installation.start_daemon()
        return measure(installation, api, 'api.get("/{}")'.format)


@click.command()
def main() -> None:
    """
    Measure both ladders on both executors.
    """
    with ThreadPoolExecutor(2) as pool:
        php, ours = pool.submit(_php), pool.submit(_ours)
        found = {"gunicorn": ours.result(), "PHP-FPM": php.result()}
    click.echo("| the API answers, for ever | executor | attempts | seconds | code |")
    click.echo("|---|---|---|---|---|")
    for place, ladder in enumerate(LADDERS):
        for executor, rows in found.items():
            attempts, seconds, code, _ = rows[place]
            click.echo(f"| {ladder} | {executor} | {attempts} | {seconds:.1f} | {code} |")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.ladders")
