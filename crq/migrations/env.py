"""
Alembic's entry: runs the revisions over the connection `crq.schema` hands in, or prints them.
"""

from alembic import context

if context.is_offline_mode():
    context.configure(
        dialect_name=context.config.attributes["dialect"],
        as_sql=True,
        transaction_per_migration=True,
    )
else:
    context.configure(
        connection=context.config.attributes["connection"], transaction_per_migration=True
    )
with context.begin_transaction():
    context.run_migrations()
