"""
The tables as the queue found them (brief §3); an existing table is adopted as it is.
"""

from alembic import op

revision = "0001"
down_revision = None

MYSQL = (
    """
    CREATE TABLE IF NOT EXISTS codeRunner_executions (
        execution_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        job_id INT UNSIGNED NULL,
        subdomain VARCHAR(500) NULL,
        subdomain_hash CHAR(64) NOT NULL,
        identifier VARCHAR(255) NULL,
        status VARCHAR(16) NOT NULL DEFAULT 'running',
        error_code INT NULL,
        error_message TEXT NULL,
        source_code MEDIUMTEXT NULL,
        debug TINYINT(1) NOT NULL DEFAULT 0,
        started_at DATETIME(3) NOT NULL,
        finished_at DATETIME(3) NULL,
        INDEX idx_subdomain_hash (subdomain_hash),
        INDEX idx_started_at (started_at),
        INDEX idx_job_id (job_id),
        INDEX idx_status_started_at (status, started_at)
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4
    """,
    """
    CREATE TABLE IF NOT EXISTS codeRunner_jobs (
        job_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        subdomain_hash CHAR(64) NOT NULL,
        apikey TEXT NULL,
        async_nonce CHAR(64) NULL,
        payload MEDIUMTEXT NULL,
        started_at DATETIME(3) NOT NULL
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4
    """,
)

SQLITE = (
    """
    CREATE TABLE IF NOT EXISTS codeRunner_executions (
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
        started_at VARCHAR(23) NOT NULL,
        finished_at VARCHAR(23) NULL
    )
    """,
    "CREATE INDEX IF NOT EXISTS idx_subdomain_hash ON codeRunner_executions (subdomain_hash)",
    "CREATE INDEX IF NOT EXISTS idx_started_at ON codeRunner_executions (started_at)",
    "CREATE INDEX IF NOT EXISTS idx_job_id ON codeRunner_executions (job_id)",
    "CREATE INDEX IF NOT EXISTS idx_status_started_at"
    " ON codeRunner_executions (status, started_at)",
    """
    CREATE TABLE IF NOT EXISTS codeRunner_jobs (
        job_id INTEGER PRIMARY KEY AUTOINCREMENT,
        subdomain_hash CHAR(64) NOT NULL,
        apikey TEXT NULL,
        async_nonce CHAR(64) NULL,
        payload TEXT NULL,
        started_at VARCHAR(23) NOT NULL
    )
    """,
)


def upgrade() -> None:
    for statement in SQLITE if op.get_context().dialect.name == "sqlite" else MYSQL:
        op.execute(statement)
