"""
Automations, their runs and items, and what was done to them.
"""

from alembic import op

revision = "0005"
down_revision = "0004"

MYSQL: tuple[str, ...] = ()
SQLITE: tuple[str, ...] = ()


def upgrade() -> None:
    for statement in SQLITE if op.get_context().dialect.name == "sqlite" else MYSQL:
        op.execute(statement)
