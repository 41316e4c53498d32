"""Runs migrations on the connection and in the transaction of the caller."""

from alembic import context

from hub.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True, transactional_ddl=False
)
context.run_migrations()
