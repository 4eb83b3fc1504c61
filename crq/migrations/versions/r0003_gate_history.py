"""
What is kept of gates: each closing with its cause, and who waited behind it.

The key is (API key, its n-th closing): two workers that are refused in the same instant make one
row, since both want the same number.
"""

from alembic import op

revision = "0003"
down_revision = "0002"

_ASCII = "CHARACTER SET ascii COLLATE ascii_bin"

MYSQL = (
    f"""
    CREATE TABLE IF NOT EXISTS codeRunner_gate_history (
        apikey_hash CHAR(64) {_ASCII} NOT NULL,
        number INT UNSIGNED NOT NULL,
        closed_at DATETIME(3) NOT NULL,
        closed_until DATETIME(3) NOT NULL,
        opened_at DATETIME(3) NULL,
        cause VARCHAR(200) CHARACTER SET utf8mb4 NOT NULL,
        execution_id INT UNSIGNED NULL,
        limits INT UNSIGNED NOT NULL,
        held INT UNSIGNED NULL,
        limits_after INT UNSIGNED NULL,
        PRIMARY KEY (apikey_hash, number),
        INDEX idx_closed_at (closed_at),
        INDEX idx_unfinished (limits_after, closed_until)
    ) ENGINE=InnoDB
    """,
)
SQLITE = (
    """
    CREATE TABLE codeRunner_gate_history (
        apikey_hash CHAR(64) NOT NULL,
        number INTEGER NOT NULL,
        closed_at VARCHAR(23) NOT NULL,
        closed_until VARCHAR(23) NOT NULL,
        opened_at VARCHAR(23) NULL,
        cause VARCHAR(200) NOT NULL,
        execution_id INTEGER NULL,
        limits INTEGER NOT NULL,
        held INTEGER NULL,
        limits_after INTEGER NULL,
        PRIMARY KEY (apikey_hash, number)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX idx_closed_at ON codeRunner_gate_history (closed_at)",
    "CREATE INDEX idx_unfinished ON codeRunner_gate_history (limits_after, closed_until)",
)


def upgrade() -> None:
    for statement in SQLITE if op.get_context().dialect.name == "sqlite" else MYSQL:
        op.execute(statement)
