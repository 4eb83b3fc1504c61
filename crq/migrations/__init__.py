"""
The history of the schema, one Alembic revision a file, for SQLite and MySQL/MariaDB alike.

Each revision is literal SQL, so that a DBA can read it (``crq db sql``). DDL commits by itself on
MySQL: a step there is one ALTER, guarded so that a revision that was cut off can be run again.
"""

HEAD = "0006"  # the revision this version of crqueue works with
KNOWN = ("0001", "0002", "0003", "0004", "0005", "0006")
