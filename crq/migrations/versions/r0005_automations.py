"""
Automations, their runs and items, and what was done to them.
"""

from alembic import op

revision = "0005"
down_revision = "0004"

_ASCII = "CHARACTER SET ascii COLLATE ascii_bin"
_TEXT = "CHARACTER SET utf8mb4"
_EXACT = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

MYSQL = (
    # The lock of a tenant: claims and changes of its automations take it first.
    f"""
    CREATE TABLE IF NOT EXISTS automation_tenants (
        tenant VARCHAR(63) {_ASCII} NOT NULL PRIMARY KEY,
        lease_token CHAR(32) {_ASCII} NULL,
        lease_until DATETIME(3) NULL,
        served_at DATETIME(3) NULL
    ) ENGINE=InnoDB
    """,
    f"""
    CREATE TABLE IF NOT EXISTS automations (
        automation_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        automation_uuid CHAR(36) {_ASCII} NOT NULL,
        tenant VARCHAR(63) {_ASCII} NOT NULL,
        name VARCHAR(100) {_EXACT} NOT NULL,
        type VARCHAR(64) {_ASCII} NOT NULL,
        config_json MEDIUMTEXT {_TEXT} NOT NULL,
        config_revision INT UNSIGNED NOT NULL DEFAULT 1,
        mode VARCHAR(16) {_ASCII} NOT NULL DEFAULT 'observe',
        enabled TINYINT(1) NOT NULL DEFAULT 0,
        cron VARCHAR(255) {_ASCII} NOT NULL,
        zone VARCHAR(64) {_ASCII} NOT NULL,
        next_run_at_utc DATETIME(3) NULL,
        max_items_per_run INT UNSIGNED NOT NULL,
        max_changes_per_run INT UNSIGNED NOT NULL,
        owner VARCHAR(100) {_TEXT} NOT NULL DEFAULT '',
        problem VARCHAR(500) {_TEXT} NULL,
        skipped_count BIGINT UNSIGNED NOT NULL DEFAULT 0,
        promoted_by VARCHAR(255) {_TEXT} NULL,
        promoted_at DATETIME(3) NULL,
        promoted_revision INT UNSIGNED NULL,
        promoted_run_id BIGINT UNSIGNED NULL,
        promoted_would_count INT UNSIGNED NULL,
        last_run_id BIGINT UNSIGNED NULL,
        last_run_status VARCHAR(16) {_ASCII} NULL,
        last_run_at DATETIME(3) NULL,
        last_run_summary VARCHAR(500) {_TEXT} NULL,
        created_at DATETIME(3) NOT NULL,
        changed_at DATETIME(3) NOT NULL,
        UNIQUE INDEX uniq_automations_uuid (automation_uuid),
        UNIQUE INDEX uniq_automations_name (tenant, name),
        INDEX idx_automations_due (next_run_at_utc, tenant),
        INDEX idx_automations_tenant (tenant, next_run_at_utc)
    ) ENGINE=InnoDB
    """,
    f"""
    CREATE TABLE IF NOT EXISTS automation_runs (
        run_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        automation_id BIGINT UNSIGNED NOT NULL,
        tenant VARCHAR(63) {_ASCII} NOT NULL,
        idempotency_key CHAR(64) {_ASCII} NOT NULL,
        trigger_kind VARCHAR(16) {_ASCII} NOT NULL,
        scheduled_for_utc DATETIME(3) NOT NULL,
        skipped BIGINT UNSIGNED NOT NULL DEFAULT 0,
        type VARCHAR(64) {_ASCII} NOT NULL,
        config_json MEDIUMTEXT {_TEXT} NOT NULL,
        config_revision INT UNSIGNED NOT NULL,
        max_items_per_run INT UNSIGNED NOT NULL,
        max_changes_per_run INT UNSIGNED NOT NULL,
        mode VARCHAR(16) {_ASCII} NOT NULL,
        status VARCHAR(16) {_ASCII} NOT NULL,
        why VARCHAR(500) {_TEXT} NULL,
        waits_for VARCHAR(500) {_TEXT} NULL,
        cursor_json TEXT {_EXACT} NULL,
        cursor_anchor CHAR(64) {_ASCII} NULL,
        cursor_steps INT UNSIGNED NOT NULL DEFAULT 0,
        cursor_power INT UNSIGNED NOT NULL DEFAULT 1,
        ended TINYINT(1) NOT NULL DEFAULT 0,
        chunk_count INT UNSIGNED NOT NULL DEFAULT 0,
        item_count INT UNSIGNED NOT NULL DEFAULT 0,
        declined_count INT UNSIGNED NOT NULL DEFAULT 0,
        would_count INT UNSIGNED NOT NULL DEFAULT 0,
        intended_count INT UNSIGNED NOT NULL DEFAULT 0,
        approved_count INT UNSIGNED NOT NULL DEFAULT 0,
        failed_count INT UNSIGNED NOT NULL DEFAULT 0,
        unknown_count INT UNSIGNED NOT NULL DEFAULT 0,
        withdrawn_count INT UNSIGNED NOT NULL DEFAULT 0,
        reason_counts_json MEDIUMTEXT {_TEXT} NOT NULL,
        notices_json MEDIUMTEXT {_TEXT} NOT NULL,
        lease_token CHAR(32) {_ASCII} NULL,
        lease_until DATETIME(3) NULL,
        created_at DATETIME(3) NOT NULL,
        started_at DATETIME(3) NULL,
        advanced_at DATETIME(3) NULL,
        finished_at DATETIME(3) NULL,
        duration_ms BIGINT UNSIGNED NULL,
        UNIQUE INDEX uniq_automation_runs_idem (idempotency_key),
        INDEX idx_runs_open (status, tenant, advanced_at),
        INDEX idx_runs_lease (status, lease_until),
        INDEX idx_runs_automation (automation_id, status),
        INDEX idx_runs_finished (finished_at)
    ) ENGINE=InnoDB
    """,
    f"""
    CREATE TABLE IF NOT EXISTS automation_run_items (
        item_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        run_id BIGINT UNSIGNED NOT NULL,
        subject_type VARCHAR(64) {_ASCII} NOT NULL,
        subject_id VARCHAR(190) {_EXACT} NOT NULL,
        verdict VARCHAR(16) {_ASCII} NOT NULL,
        reason VARCHAR(255) {_TEXT} NOT NULL,
        intent_json MEDIUMTEXT {_TEXT} NULL,
        effect VARCHAR(16) {_ASCII} NOT NULL,
        detail VARCHAR(500) {_TEXT} NULL,
        decided_at DATETIME(3) NOT NULL,
        applied_at DATETIME(3) NULL,
        UNIQUE INDEX uniq_items_subject (run_id, subject_type, subject_id),
        INDEX idx_items_effect (run_id, effect)
    ) ENGINE=InnoDB
    """,
    f"""
    CREATE TABLE IF NOT EXISTS automation_audit (
        audit_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        automation_id BIGINT UNSIGNED NOT NULL,
        run_id BIGINT UNSIGNED NULL,
        tenant VARCHAR(63) {_ASCII} NOT NULL,
        at DATETIME(3) NOT NULL,
        actor VARCHAR(255) {_TEXT} NOT NULL,
        action VARCHAR(32) {_ASCII} NOT NULL,
        before_json MEDIUMTEXT {_TEXT} NULL,
        after_json MEDIUMTEXT {_TEXT} NULL,
        INDEX idx_audit_automation (automation_id),
        INDEX idx_audit_run (run_id)
    ) ENGINE=InnoDB
    """,
)

SQLITE = (
    """
    CREATE TABLE automation_tenants (
        tenant VARCHAR(63) PRIMARY KEY,
        lease_token CHAR(32) NULL,
        lease_until VARCHAR(23) NULL,
        served_at VARCHAR(23) NULL
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE automations (
        automation_id INTEGER PRIMARY KEY AUTOINCREMENT,
        automation_uuid CHAR(36) NOT NULL,
        tenant VARCHAR(63) NOT NULL,
        name VARCHAR(100) NOT NULL,
        type VARCHAR(64) NOT NULL,
        config_json TEXT NOT NULL,
        config_revision INTEGER NOT NULL DEFAULT 1,
        mode VARCHAR(16) NOT NULL DEFAULT 'observe',
        enabled INTEGER NOT NULL DEFAULT 0,
        cron VARCHAR(255) NOT NULL,
        zone VARCHAR(64) NOT NULL,
        next_run_at_utc VARCHAR(23) NULL,
        max_items_per_run INTEGER NOT NULL,
        max_changes_per_run INTEGER NOT NULL,
        owner VARCHAR(100) NOT NULL DEFAULT '',
        problem VARCHAR(500) NULL,
        skipped_count INTEGER NOT NULL DEFAULT 0,
        promoted_by VARCHAR(255) NULL,
        promoted_at VARCHAR(23) NULL,
        promoted_revision INTEGER NULL,
        promoted_run_id INTEGER NULL,
        promoted_would_count INTEGER NULL,
        last_run_id INTEGER NULL,
        last_run_status VARCHAR(16) NULL,
        last_run_at VARCHAR(23) NULL,
        last_run_summary VARCHAR(500) NULL,
        created_at VARCHAR(23) NOT NULL,
        changed_at VARCHAR(23) NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX uniq_automations_uuid ON automations (automation_uuid)",
    "CREATE UNIQUE INDEX uniq_automations_name ON automations (tenant, name)",
    # Only what is switched on has a next occurrence.
    "CREATE INDEX idx_automations_due ON automations (next_run_at_utc, tenant)"
    " WHERE next_run_at_utc IS NOT NULL",
    "CREATE INDEX idx_automations_tenant ON automations (tenant, next_run_at_utc)",
    """
    CREATE TABLE automation_runs (
        run_id INTEGER PRIMARY KEY AUTOINCREMENT,
        automation_id INTEGER NOT NULL,
        tenant VARCHAR(63) NOT NULL,
        idempotency_key CHAR(64) NOT NULL,
        trigger_kind VARCHAR(16) NOT NULL,
        scheduled_for_utc VARCHAR(23) NOT NULL,
        skipped INTEGER NOT NULL DEFAULT 0,
        type VARCHAR(64) NOT NULL,
        config_json TEXT NOT NULL,
        config_revision INTEGER NOT NULL,
        max_items_per_run INTEGER NOT NULL,
        max_changes_per_run INTEGER NOT NULL,
        mode VARCHAR(16) NOT NULL,
        status VARCHAR(16) NOT NULL,
        why VARCHAR(500) NULL,
        waits_for VARCHAR(500) NULL,
        cursor_json TEXT NULL,
        cursor_anchor CHAR(64) NULL,
        cursor_steps INTEGER NOT NULL DEFAULT 0,
        cursor_power INTEGER NOT NULL DEFAULT 1,
        ended INTEGER NOT NULL DEFAULT 0,
        chunk_count INTEGER NOT NULL DEFAULT 0,
        item_count INTEGER NOT NULL DEFAULT 0,
        declined_count INTEGER NOT NULL DEFAULT 0,
        would_count INTEGER NOT NULL DEFAULT 0,
        intended_count INTEGER NOT NULL DEFAULT 0,
        approved_count INTEGER NOT NULL DEFAULT 0,
        failed_count INTEGER NOT NULL DEFAULT 0,
        unknown_count INTEGER NOT NULL DEFAULT 0,
        withdrawn_count INTEGER NOT NULL DEFAULT 0,
        reason_counts_json TEXT NOT NULL,
        notices_json TEXT NOT NULL,
        lease_token CHAR(32) NULL,
        lease_until VARCHAR(23) NULL,
        created_at VARCHAR(23) NOT NULL,
        started_at VARCHAR(23) NULL,
        advanced_at VARCHAR(23) NULL,
        finished_at VARCHAR(23) NULL,
        duration_ms INTEGER NULL
    )
    """,
    "CREATE UNIQUE INDEX uniq_automation_runs_idem ON automation_runs (idempotency_key)",
    "CREATE INDEX idx_runs_open ON automation_runs (status, tenant, advanced_at)",
    "CREATE INDEX idx_runs_lease ON automation_runs (status, lease_until)",
    "CREATE INDEX idx_runs_automation ON automation_runs (automation_id, status)",
    "CREATE INDEX idx_runs_finished ON automation_runs (finished_at)",
    """
    CREATE TABLE automation_run_items (
        item_id INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id INTEGER NOT NULL,
        subject_type VARCHAR(64) NOT NULL,
        subject_id VARCHAR(190) NOT NULL,
        verdict VARCHAR(16) NOT NULL,
        reason VARCHAR(255) NOT NULL,
        intent_json TEXT NULL,
        effect VARCHAR(16) NOT NULL,
        detail VARCHAR(500) NULL,
        decided_at VARCHAR(23) NOT NULL,
        applied_at VARCHAR(23) NULL
    )
    """,
    "CREATE UNIQUE INDEX uniq_items_subject"
    " ON automation_run_items (run_id, subject_type, subject_id)",
    "CREATE INDEX idx_items_effect ON automation_run_items (run_id, effect)",
    """
    CREATE TABLE automation_audit (
        audit_id INTEGER PRIMARY KEY AUTOINCREMENT,
        automation_id INTEGER NOT NULL,
        run_id INTEGER NULL,
        tenant VARCHAR(63) NOT NULL,
        at VARCHAR(23) NOT NULL,
        actor VARCHAR(255) NOT NULL,
        action VARCHAR(32) NOT NULL,
        before_json TEXT NULL,
        after_json TEXT NULL
    )
    """,
    "CREATE INDEX idx_audit_automation ON automation_audit (automation_id)",
    "CREATE INDEX idx_audit_run ON automation_audit (run_id)",
)


def upgrade() -> None:
    for statement in SQLITE if op.get_context().dialect.name == "sqlite" else MYSQL:
        op.execute(statement)
