"""
``crq logs --follow``: what comes, and what changes, line by line.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from crq.cli.base import State, visible

if TYPE_CHECKING:
    from crq.records import Filters
    from crq.recordvalues import Record

EVERY = 1.0  # s between two looks
LOOKED_AT = 500  # newest rows that are looked at each time


def follow(state: State, filters: Filters, first: int, as_json: bool) -> None:
    """
    Show the newest rows, then each row that is new or has another state, until Ctrl-C.

    :param first: how many rows to begin with.
    """
    from crq import records

    seen: dict[int, str] | None = None
    with state.database() as (database, connection):
        try:
            while True:
                limit = first if seen is None else LOOKED_AT
                page = database.read(connection, records.page, filters, None, limit)
                known = seen or {}
                for record in reversed(page.records):
                    if known.get(record.execution_id) != record.shown:
                        click.echo(_line(record, as_json))
                # Rows that have left the page are not looked at any more.
                seen = {record.execution_id: record.shown for record in page.records}
                state.sleep(EVERY)
        except KeyboardInterrupt:
            return


def _line(record: Record, as_json: bool) -> str:
    if as_json:
        return json.dumps(record.as_json(), ensure_ascii=False, default=str)
    at = record.finished_at or record.started_at or record.claimed_at or record.queued_at or "-"
    parts = [
        at[:19],
        f"{record.execution_id:>8}",
        f"{record.shown:<15}",
        record.subdomain or "-",
        record.identifier or "-",
    ]
    if record.error_code is not None:
        parts.append(f"{record.error_code} {record.error_message or ''}".rstrip())
    return visible("  ".join(parts))
