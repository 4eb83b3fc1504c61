"""
What operators set and did: pauses, caps, tokens, the audit, and the series of the last hours.
"""

from alembic import op

revision = "0004"
down_revision = "0003"

MYSQL: tuple[str, ...] = ()
SQLITE: tuple[str, ...] = ()


def upgrade() -> None:
    for statement in SQLITE if op.get_context().dialect.name == "sqlite" else MYSQL:
        op.execute(statement)
