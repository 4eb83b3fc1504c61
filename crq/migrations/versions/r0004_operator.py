"""
What operators set and did: pauses, caps, tokens, the audit, and the series of the last hours; the
heartbeat by which a dead drainer is known; the caller's trace; an index on the end of executions.
"""

from alembic import op
from sqlalchemy import inspect

revision = "0004"
down_revision = "0003"

_ASCII = "CHARACTER SET ascii COLLATE ascii_bin"
_TEXT = "CHARACTER SET utf8mb4"

_MYSQL_EXECUTIONS = f"""
    ALTER TABLE codeRunner_executions
        ADD COLUMN traceparent CHAR(55) {_ASCII} NULL,
        ADD INDEX idx_finished_at (finished_at)
"""
MYSQL = (
    f"""
    CREATE TABLE IF NOT EXISTS codeRunner_controls (
        kind VARCHAR(16) {_ASCII} NOT NULL,
        name VARCHAR(64) {_ASCII} NOT NULL,
        value INT UNSIGNED NULL,
        subdomain_hash CHAR(64) {_ASCII} NULL,
        apikey_hash CHAR(64) {_ASCII} NULL,
        set_at DATETIME(3) NOT NULL,
        set_by VARCHAR(128) {_TEXT} NOT NULL,
        note VARCHAR(500) {_TEXT} NULL,
        PRIMARY KEY (kind, name)
    ) ENGINE=InnoDB
    """,
    f"""
    CREATE TABLE IF NOT EXISTS codeRunner_tokens (
        token_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        name VARCHAR(64) {_ASCII} NOT NULL,
        sha256 CHAR(64) {_ASCII} NOT NULL,
        scopes VARCHAR(64) {_ASCII} NOT NULL,
        accounts TEXT {_ASCII} NULL,
        created_at DATETIME(3) NOT NULL,
        revoked_at DATETIME(3) NULL,
        UNIQUE INDEX uniq_token_name (name),
        UNIQUE INDEX uniq_token_sha256 (sha256)
    ) ENGINE=InnoDB
    """,
    f"""
    CREATE TABLE IF NOT EXISTS codeRunner_audit (
        audit_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        done_at DATETIME(3) NOT NULL,
        who VARCHAR(128) {_TEXT} NOT NULL,
        action VARCHAR(32) {_ASCII} NOT NULL,
        target VARCHAR(80) {_ASCII} NOT NULL,
        note VARCHAR(500) {_TEXT} NULL,
        before_state TEXT {_TEXT} NULL,
        after_state TEXT {_TEXT} NULL,
        INDEX idx_audit_target (target, audit_id),
        INDEX idx_audit_done_at (done_at)
    ) ENGINE=InnoDB
    """,
    f"""
    CREATE TABLE IF NOT EXISTS codeRunner_series (
        minute DATETIME(3) NOT NULL PRIMARY KEY,
        verdict VARCHAR(16) {_ASCII} NOT NULL,
        depth INT UNSIGNED NOT NULL,
        oldest_age DOUBLE NULL,
        in_flight INT UNSIGNED NOT NULL,
        gates_closed INT UNSIGNED NOT NULL,
        starts INT UNSIGNED NOT NULL,
        rejected INT UNSIGNED NOT NULL,
        success INT UNSIGNED NOT NULL,
        failed INT UNSIGNED NOT NULL,
        outcome_unknown INT UNSIGNED NOT NULL,
        never_started INT UNSIGNED NOT NULL,
        cancelled INT UNSIGNED NOT NULL
    ) ENGINE=InnoDB
    """,
    f"""
    CREATE TABLE IF NOT EXISTS codeRunner_drainers (
        drainer_id VARCHAR(64) {_ASCII} NOT NULL PRIMARY KEY,
        started_at DATETIME(3) NOT NULL,
        beat_at DATETIME(3) NOT NULL,
        last_good_age DOUBLE NULL,
        unstarted DOUBLE NULL,
        backing_off_until DATETIME(3) NULL,
        alarm VARCHAR(400) {_TEXT} NULL,
        gates_reachable TINYINT(1) NOT NULL,
        stopping TINYINT(1) NOT NULL
    ) ENGINE=InnoDB
    """,
)
SQLITE = (
    "ALTER TABLE codeRunner_executions ADD COLUMN traceparent CHAR(55) NULL",
    "CREATE INDEX idx_finished_at ON codeRunner_executions (finished_at)",
    """
    CREATE TABLE codeRunner_controls (
        kind VARCHAR(16) NOT NULL,
        name VARCHAR(64) NOT NULL,
        value INTEGER NULL,
        subdomain_hash CHAR(64) NULL,
        apikey_hash CHAR(64) NULL,
        set_at VARCHAR(23) NOT NULL,
        set_by VARCHAR(128) NOT NULL,
        note VARCHAR(500) NULL,
        PRIMARY KEY (kind, name)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE codeRunner_tokens (
        token_id INTEGER PRIMARY KEY AUTOINCREMENT,
        name VARCHAR(64) NOT NULL,
        sha256 CHAR(64) NOT NULL,
        scopes VARCHAR(64) NOT NULL,
        accounts TEXT NULL,
        created_at VARCHAR(23) NOT NULL,
        revoked_at VARCHAR(23) NULL
    )
    """,
    "CREATE UNIQUE INDEX uniq_token_name ON codeRunner_tokens (name)",
    "CREATE UNIQUE INDEX uniq_token_sha256 ON codeRunner_tokens (sha256)",
    """
    CREATE TABLE codeRunner_audit (
        audit_id INTEGER PRIMARY KEY AUTOINCREMENT,
        done_at VARCHAR(23) NOT NULL,
        who VARCHAR(128) NOT NULL,
        action VARCHAR(32) NOT NULL,
        target VARCHAR(80) NOT NULL,
        note VARCHAR(500) NULL,
        before_state TEXT NULL,
        after_state TEXT NULL
    )
    """,
    "CREATE INDEX idx_audit_target ON codeRunner_audit (target, audit_id)",
    "CREATE INDEX idx_audit_done_at ON codeRunner_audit (done_at)",
    """
    CREATE TABLE codeRunner_series (
        minute VARCHAR(23) PRIMARY KEY,
        verdict VARCHAR(16) NOT NULL,
        depth INTEGER NOT NULL,
        oldest_age REAL NULL,
        in_flight INTEGER NOT NULL,
        gates_closed INTEGER NOT NULL,
        starts INTEGER NOT NULL,
        rejected INTEGER NOT NULL,
        success INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        outcome_unknown INTEGER NOT NULL,
        never_started INTEGER NOT NULL,
        cancelled INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE codeRunner_drainers (
        drainer_id VARCHAR(64) PRIMARY KEY,
        started_at VARCHAR(23) NOT NULL,
        beat_at VARCHAR(23) NOT NULL,
        last_good_age REAL NULL,
        unstarted REAL NULL,
        backing_off_until VARCHAR(23) NULL,
        alarm VARCHAR(400) NULL,
        gates_reachable INTEGER NOT NULL,
        stopping INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
)


def _columns() -> set[str]:
    return {
        column["name"] for column in inspect(op.get_bind()).get_columns("codeRunner_executions")
    }


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        for statement in SQLITE:
            op.execute(statement)
        return
    if op.get_context().as_sql or "traceparent" not in _columns():
        op.execute(_MYSQL_EXECUTIONS)
    for statement in MYSQL:
        op.execute(statement)
