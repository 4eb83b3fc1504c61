"""
What the queue needs (brief §5, §8): when a row was queued and claimed, by whom, for which key,
under which nonce, the lane index, and the lock rows of claim and admission.

The nonce lives on the execution, so that a start is one row's conditional update; the job keeps its
own nonce columns for callers that still dispatch inline.
"""

from alembic import op
from sqlalchemy import inspect

revision = "0002"
down_revision = "0001"

_ASCII = "CHARACTER SET ascii COLLATE ascii_bin"

_MYSQL_COLUMNS = f"""
    ALTER TABLE codeRunner_executions
        MODIFY subdomain_hash CHAR(64) {_ASCII} NOT NULL,
        MODIFY status VARCHAR(16) {_ASCII} NOT NULL DEFAULT 'running',
        MODIFY subdomain VARCHAR(500) CHARACTER SET utf8mb4 NULL,
        MODIFY identifier VARCHAR(255) CHARACTER SET utf8mb4 NULL,
        MODIFY error_message TEXT CHARACTER SET utf8mb4 NULL,
        MODIFY source_code MEDIUMTEXT CHARACTER SET utf8mb4 NULL,
        MODIFY started_at DATETIME(3) NULL,
        ADD COLUMN apikey_hash CHAR(64) {_ASCII} NULL,
        ADD COLUMN idempotency_key CHAR(64) {_ASCII} NULL,
        ADD COLUMN times INT UNSIGNED NOT NULL DEFAULT 1,
        ADD COLUMN queued_at DATETIME(3) NULL,
        ADD COLUMN claimed_at DATETIME(3) NULL,
        ADD COLUMN claim_epoch BIGINT NULL,
        ADD COLUMN drainer_id VARCHAR(64) {_ASCII} NULL,
        ADD COLUMN nonce_hash CHAR(64) {_ASCII} NULL,
        ADD COLUMN worker_id VARCHAR(128) {_ASCII} NULL,
        ADD INDEX idx_lane (status, subdomain_hash, apikey_hash, queued_at),
        ADD INDEX idx_status_queued_at (status, queued_at),
        ADD INDEX idx_queued_at (queued_at),
        ADD INDEX idx_account_queued_at (subdomain_hash, queued_at),
        ADD UNIQUE INDEX uniq_idempotency (subdomain_hash, idempotency_key)
"""
_MYSQL_JOBS = f"""
    ALTER TABLE codeRunner_jobs
        MODIFY subdomain_hash CHAR(64) {_ASCII} NOT NULL,
        MODIFY apikey TEXT {_ASCII} NULL,
        MODIFY payload MEDIUMTEXT CHARACTER SET utf8mb4 NULL,
        ADD INDEX idx_apikey (apikey(1))
"""
_BACK_FILL = "UPDATE codeRunner_executions SET queued_at = started_at WHERE queued_at IS NULL"
_SEED = "INSERT INTO {0} (id, epoch) SELECT 1, 0 WHERE NOT EXISTS (SELECT 1 FROM {0})"

_SQLITE = (
    """
    CREATE TABLE codeRunner_executions_new (
        execution_id INTEGER PRIMARY KEY AUTOINCREMENT,
        job_id INTEGER NULL,
        subdomain VARCHAR(500) NULL,
        subdomain_hash CHAR(64) NOT NULL,
        identifier VARCHAR(255) NULL,
        status VARCHAR(16) NOT NULL DEFAULT 'running',
        error_code INTEGER NULL,
        error_message TEXT NULL,
        source_code TEXT NULL,
        debug INTEGER NOT NULL DEFAULT 0,
        started_at VARCHAR(23) NULL,
        finished_at VARCHAR(23) NULL,
        apikey_hash CHAR(64) NULL,
        idempotency_key CHAR(64) NULL,
        times INTEGER NOT NULL DEFAULT 1,
        queued_at VARCHAR(23) NOT NULL,
        claimed_at VARCHAR(23) NULL,
        claim_epoch INTEGER NULL,
        drainer_id VARCHAR(64) NULL,
        nonce_hash CHAR(64) NULL,
        worker_id VARCHAR(128) NULL
    )
    """,
    """
    INSERT INTO codeRunner_executions_new
        (execution_id, job_id, subdomain, subdomain_hash, identifier, status, error_code,
         error_message, source_code, debug, started_at, finished_at, queued_at)
    SELECT execution_id, job_id, subdomain, subdomain_hash, identifier, status, error_code,
           error_message, source_code, debug, started_at, finished_at, started_at
      FROM codeRunner_executions
    """,
    "DROP TABLE codeRunner_executions",
    "ALTER TABLE codeRunner_executions_new RENAME TO codeRunner_executions",
    "CREATE INDEX idx_started_at ON codeRunner_executions (started_at)",
    "CREATE INDEX idx_job_id ON codeRunner_executions (job_id)",
    "CREATE INDEX idx_status_started_at ON codeRunner_executions (status, started_at)",
    "CREATE INDEX idx_lane"
    " ON codeRunner_executions (status, subdomain_hash, apikey_hash, queued_at)",
    "CREATE INDEX idx_status_queued_at ON codeRunner_executions (status, queued_at)",
    "CREATE INDEX idx_queued_at ON codeRunner_executions (queued_at)",
    "CREATE INDEX idx_account_queued_at ON codeRunner_executions (subdomain_hash, queued_at)",
    "CREATE UNIQUE INDEX uniq_idempotency"
    " ON codeRunner_executions (subdomain_hash, idempotency_key)",
    "CREATE INDEX idx_apikey ON codeRunner_jobs (job_id) WHERE apikey IS NOT NULL",
    "CREATE TABLE codeRunner_drain (id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL)",
    "CREATE TABLE codeRunner_admit (id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL)",
    """
    CREATE TABLE codeRunner_gates (
        apikey_hash CHAR(64) PRIMARY KEY,
        closed_until VARCHAR(23) NOT NULL,
        closed_at VARCHAR(23) NOT NULL
    ) WITHOUT ROWID
    """,
)


def _mysql() -> None:
    offline = op.get_context().as_sql
    columns = set() if offline else _columns("codeRunner_executions")
    if "queued_at" not in columns:
        op.execute(_MYSQL_COLUMNS)
    op.execute(_BACK_FILL)
    op.execute("ALTER TABLE codeRunner_executions MODIFY queued_at DATETIME(3) NOT NULL")
    if offline or "idx_subdomain_hash" in _indexes("codeRunner_executions"):
        # (subdomain_hash, queued_at) does all that this one did.
        op.execute("ALTER TABLE codeRunner_executions DROP INDEX idx_subdomain_hash")
    if offline or "idx_apikey" not in _indexes("codeRunner_jobs"):
        op.execute(_MYSQL_JOBS)
    for table in ("codeRunner_drain", "codeRunner_admit"):
        op.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (id TINYINT UNSIGNED NOT NULL PRIMARY KEY,"
            " epoch BIGINT NOT NULL) ENGINE=InnoDB"
        )
    op.execute(
        f"CREATE TABLE IF NOT EXISTS codeRunner_gates (apikey_hash CHAR(64) {_ASCII} NOT NULL"
        " PRIMARY KEY, closed_until DATETIME(3) NOT NULL, closed_at DATETIME(3) NOT NULL)"
        " ENGINE=InnoDB"
    )


def _columns(table: str) -> set[str]:
    return {column["name"] for column in inspect(op.get_bind()).get_columns(table)}


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in inspect(op.get_bind()).get_indexes(table)}


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        for statement in _SQLITE:
            op.execute(statement)
    else:
        _mysql()
    for table in ("codeRunner_drain", "codeRunner_admit"):
        op.execute(_SEED.format(table))
