"""
What is kept of gates: each closing with its cause, and who waited behind it.
"""

from alembic import op

revision = "0003"
down_revision = "0002"

MYSQL: tuple[str, ...] = ()
SQLITE: tuple[str, ...] = ()


def upgrade() -> None:
    for statement in SQLITE if op.get_context().dialect.name == "sqlite" else MYSQL:
        op.execute(statement)
