"""
Who wrote a drainer's row: which process, of which host and version, under which lock file; so that
two daemons of one name are told apart. A daemon of the version before may go on writing its row.
"""

from alembic import op
from sqlalchemy import inspect

revision = "0006"
down_revision = "0005"

_ASCII = "CHARACTER SET ascii COLLATE ascii_bin"

_MYSQL = f"""
    ALTER TABLE codeRunner_drainers
        ADD COLUMN incarnation CHAR(32) {_ASCII} NOT NULL DEFAULT '',
        ADD COLUMN host VARCHAR(64) CHARACTER SET utf8mb4 NOT NULL DEFAULT '',
        ADD COLUMN version VARCHAR(32) {_ASCII} NOT NULL DEFAULT '',
        ADD COLUMN lock_of CHAR(32) {_ASCII} NOT NULL DEFAULT ''
"""
SQLITE = (
    ("incarnation", "CHAR(32) NOT NULL DEFAULT ''"),
    ("host", "VARCHAR(64) NOT NULL DEFAULT ''"),
    ("version", "VARCHAR(32) NOT NULL DEFAULT ''"),
    ("lock_of", "CHAR(32) NOT NULL DEFAULT ''"),
)


def _columns() -> set[str]:
    return {column["name"] for column in inspect(op.get_bind()).get_columns("codeRunner_drainers")}


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        for name, kind in SQLITE:
            op.execute(f"ALTER TABLE codeRunner_drainers ADD COLUMN {name} {kind}")
        return
    if op.get_context().as_sql or "incarnation" not in _columns():
        op.execute(_MYSQL)
