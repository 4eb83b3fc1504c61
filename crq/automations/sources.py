"""
Where the subjects of `run_script` come from: a paged JSON answer, or a table.

# Note [Paging]

Both are read in the order of one unique field, and the cursor is the value of that field: it means
the same tomorrow, whatever was added or deleted meanwhile. Paging by a position ("page 7") would
skip records when earlier ones vanish; paging by an instant would lose all but one page of those
that share it. A source that is not in that order, or whose field is not unique, is refused as soon
as a page shows it. A source that brings cursors of its own (``next``) is trusted with its order.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from attrs import frozen

from crq.automations.model import Json, Unfit
from crq.database import Cursor

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.A)


class SourceFault(Exception):
    """
    A source does not answer as it must. Asking again does not help.
    """


@frozen
class Page:
    """
    Some subjects.

    :ivar subjects: id and record, in order.
    """

    subjects: tuple[tuple[str, Mapping[str, Json]], ...]
    cursor: Json
    more: bool


@frozen
class JsonSource:
    """
    How a paged JSON answer is read.

    :ivar path: of the API, from its address on.
    :ivar items: where in the answer the records are, names with dots; empty: the answer itself.
    :ivar id_field: the unique field of a record.
    :ivar next_field: where in the answer its own cursor is; empty: it goes on after the last id.
    """

    path: str
    items: str
    id_field: str
    after_parameter: str
    limit_parameter: str
    next_field: str

    def address(self, cursor: Json, limit: int) -> str:
        """
        Path and query of a page.
        """
        query: list[tuple[str, object]] = [(self.limit_parameter, limit)]
        if cursor is not None:
            query.append((self.after_parameter, cursor))
        return f"{self.path}{'&' if '?' in self.path else '?'}{urlencode(query)}"

    def page(self, answer: Json, cursor: Json, limit: int) -> Page:
        """
        Read the answer to a page.

        :raise SourceFault: it is not what it must be.
        """
        found = _within(answer, self.items)
        if not isinstance(found, list):
            where = f"at {self.items!r} in the answer" if self.items else "the answer"
            raise SourceFault(f"{where} is no list of records")
        if self.next_field:
            if len(found) > limit:
                raise SourceFault(f"the source sent {len(found)} records, asked for {limit}")
            following = _within(answer, self.next_field)
            if following is not None and not isinstance(following, (str, int)):
                raise SourceFault(f"at {self.next_field!r} in the answer is no cursor")
            more = following is not None and following != ""
            return Page(self._subjects(found), following if more else cursor, more)
        subjects = self._subjects(found[:limit])
        ids = [record[self.id_field] for _, record in subjects]
        _ascending(([] if cursor is None else [cursor]) + ids, self.id_field)
        # A source may send less than it was asked for: only an empty page is the end.
        return Page(subjects, ids[-1] if ids else cursor, bool(ids))

    def _subjects(self, found: Sequence[Json]) -> tuple[tuple[str, Mapping[str, Json]], ...]:
        subjects = []
        for record in found:
            name = record.get(self.id_field) if isinstance(record, dict) else None
            if not isinstance(name, (str, int)) or isinstance(name, bool) or name == "":
                raise SourceFault(f"a record has no {self.id_field!r} that tells it from others")
            subjects.append((str(name), record))
        return tuple(subjects)


@frozen
class Table:
    """
    A table that the operator has named, with the columns that tell tenants and records apart.
    """

    name: str
    tenant_column: str
    id_column: str

    @classmethod
    def of(cls, text: str) -> Table:
        """
        Read ``table:tenant_column:id_column``, as the operator writes it.

        :raise ValueError: it is not that.
        """
        parts = text.split(":")
        if len(parts) != 3 or not all(_NAME.fullmatch(part) for part in parts):
            raise ValueError(f"{text!r}: write table:tenant_column:id_column")
        return cls(*parts)

    def page(
        self, txn: Cursor, tenant: str, columns: Sequence[str], cursor: Json, limit: int
    ) -> Page:
        """
        Read a page of a tenant's rows.

        :raise SourceFault: the id column is not unique.
        """
        names = list(dict.fromkeys((self.id_column, *columns)))
        after, parameters = "", [tenant]
        if cursor is not None:
            after = f"AND `{self.id_column}` > ?"
            parameters.append(cursor)
        rows = txn.execute(
            f"SELECT {', '.join(f'`{name}`' for name in names)} FROM `{self.name}`"  # noqa: S608
            f" WHERE `{self.tenant_column}` = ? {after} ORDER BY `{self.id_column}` LIMIT ?",
            (*parameters, limit + 1),
        ).all()
        ids = [row[0] for row in rows]
        if len(set(ids)) != len(ids):
            raise SourceFault(f"{self.name}.{self.id_column} is not unique")
        subjects = tuple(
            (str(row[0]), {name: _json(value) for name, value in zip(names, row, strict=True)})
            for row in rows[:limit]
        )
        last = _json(ids[limit - 1 : limit][0] if len(ids) >= limit else ids[-1]) if ids else cursor
        return Page(subjects, last, len(rows) > limit)


def checked_columns(columns: Sequence[str]) -> str | None:
    """
    What is wrong with names of columns, or None.
    """
    for column in columns:
        if _NAME.fullmatch(column) is None:
            return f"{column!r} is no name of a column; use letters, digits and underscores"
    return None


def found_table(tables: Mapping[str, Table], name: str) -> Table:
    """
    A table that the operator allows.

    :raise Unfit: it is not among them.
    """
    if name not in tables:
        known = ", ".join(sorted(tables)) or "none"
        raise Unfit("table", f"{name!r} is not allowed", f"allowed by automations.tables: {known}")
    return tables[name]


def _within(value: Json, path: str) -> Json:
    for name in path.split(".") if path else ():
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _ascending(ids: Sequence[Any], field: str) -> None:
    # Texts are in an order that only the source knows; repeated they are at least not.
    if len(set(map(str, ids))) != len(ids):
        raise SourceFault(f"the source repeats a record's {field!r}")
    if all(isinstance(one, int) for one in ids) and list(ids) != sorted(ids):
        raise SourceFault(f"the source is not in the order of {field!r}")


def _json(value: Any) -> Json:
    """
    A column's value as JSON has it: what JSON has not becomes a text.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)
