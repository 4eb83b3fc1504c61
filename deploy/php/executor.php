<?php

declare(strict_types=1);

require_once __DIR__ . '/fernet.php';
require_once __DIR__ . '/gate.php';
require_once __DIR__ . '/script.php';

/*
 * One dispatch, from the nonce to the outcome: docs/executor-contract.md in PHP.
 *
 * Read run_async() from top to bottom. The three promises are where it says (1), (2) and (3).
 */

const NONCE_TTL = 300;  // s from the claim to the start
const KEPT_BACK = 0.02; // of the wall: for writing the outcome before the worker is killed

/** Nothing was started by this request; the drainer decides by status and code what follows. */
class Refused extends RuntimeException
{
    public function __construct(public int $status, public ?int $error_code, string $message)
    {
        parent::__construct($message);
    }
}

/**
 * Run what was dispatched, and say how it ended.
 *
 * @return array the answer's JSON
 * @throws Refused
 */
function run_async(array $config, string $job, string $nonce): array
{
    $begun = hrtime(true) / 1e9;
    if ($nonce === '') {
        throw new Refused(400, 112, 'asyncNonce is missing');
    }
    if (!preg_match('/^[0-9]{1,10}\z/', $job)) {
        throw new Refused(409, 113, 'there is no such job');
    }
    try {
        $database = connect($config);
        $row = startable($database, $job);
        // Whatever cannot be run must be found out before the start: this row, and no other.
        $apikey = fernet_open($row['apikey'] ?? '', file($config['seal_keys_file'], FILE_IGNORE_NEW_LINES) ?: []);
        if ($apikey === null || $row['source_code'] === null) {
            throw new Refused(422, null, 'the API key cannot be opened, or there is no source');
        }
        $lock = new LivenessLock($config, (int) $row['execution_id']);

        // (1) A nonce starts one execution, once: one row changed, or nothing is run.
        $worker = gethostname() . ':' . getmypid() . ':' . bin2hex(random_bytes(8));
        if (!start($config, $database, $row, $nonce, $worker)) {
            throw new Refused(409, 113, 'the nonce is used, replaced, expired or of another job');
        }
    } catch (PDOException $error) {
        throw new Refused(503, null, 'the database does not answer; nothing was started');
    }

    // From here on the script has begun. Nothing is thrown any more, and nobody starts it again.
    ignore_user_abort(true); // nothing is printed before the end here; an interpreter of yours may
    $finished = false;
    register_shutdown_function(function () use (&$finished, $config, $row) {
        // A fatal error of PHP (memory, most often). At the wall FPM kills the process: no outcome
        // then; the lock is free, and the drainer closes the row.
        if (!$finished) {
            finish($config, null, $row, ['failed', 302, error_get_last()['message'] ?? 'PHP ended'], microtime(true));
        }
    });
    [$started_at, $started] = [microtime(true), hrtime(true) / 1e9];
    $outcome = execute($config, $database, $lock, $row, $apikey, $begun + $config['wall'] * (1 - KEPT_BACK));
    $now = $started_at + hrtime(true) / 1e9 - $started; // a stepped clock falsifies no duration
    finish($config, $database, $row, $outcome, $now);
    $finished = true;
    $lock->release();

    // (3) An outcome in the answer: it ran, once, and ended so. The drainer writes it if we could not.
    return [
        'executionId' => (int) $row['execution_id'],
        'status' => $outcome[0],
        'errorCode' => $outcome[1],
        'errorMessage' => $outcome[2],
    ];
}

/** @return array{string, ?int, ?string} status, error code, message */
function execute(array $config, PDO $database, LivenessLock $lock, array $row, string $apikey, float $ends): array
{
    $refused = function (int $until, float $now, ?string $said) use ($config, $database, $row) {
        if ($row['apikey_hash'] === null) {
            return;
        }
        // The gate predicts; a gate that cannot be written ends no script.
        $gates = gates($config);
        if (!close_gate($gates, $config['gate_prefix'] . $row['apikey_hash'], $until, $now)) {
            error_log('gate of key ' . substr($row['apikey_hash'], 0, 8) . ' not closed: ' . $gates->getResultMessage());
        }
        try {
            $cause = '429, ' . ($said === null ? 'without Retry-After' : "Retry-After: $said");
            note_closing($database, $row, $until, $now, $cause);
        } catch (PDOException $error) {
            error_log('history of gates not written');
        }
    };
    $address = str_replace('{subdomain}', rawurlencode((string) $row['subdomain']), $config['api']);
    $api = new Api($config, $address, $apikey, $ends, $refused, $lock->keep(...));
    try {
        run_script($row['source_code'], json_decode($row['payload'] ?? 'null', true), $api);
        return ['success', null, null];
    } catch (ScriptFailed | CallFailed $error) {
        return ['failed', 301, storable($error->getMessage())];
    } catch (Throwable $error) {
        error_log((string) $error);
        return ['failed', 302, storable(get_class($error) . ': ' . $error->getMessage())];
    }
}

function startable(PDO $database, string $job): array
{
    $find = $database->prepare(
        'SELECT e.execution_id, e.status, e.subdomain, e.apikey_hash, j.apikey, e.source_code, j.payload
           FROM codeRunner_executions e JOIN codeRunner_jobs j ON j.job_id = e.job_id
          WHERE e.job_id = ?'
    );
    $find->execute([$job]);
    $row = $find->fetch(PDO::FETCH_ASSOC);
    if (!$row || $row['status'] !== 'claimed') {
        throw new Refused(409, 113, 'this job has no execution that is claimed');
    }
    return $row;
}

function start(array $config, PDO $database, array $row, string $nonce, string $worker): bool
{
    $now = instant_text(microtime(true));
    try {
        $update = $database->prepare(
            "UPDATE codeRunner_executions
                SET started_at = IF(claimed_at > ?, claimed_at, ?),
                    status = 'running', nonce_hash = NULL, worker_id = ?
              WHERE execution_id = ? AND status = 'claimed' AND nonce_hash = ? AND claimed_at >= ?"
        );
        $oldest = instant_text(microtime(true) - NONCE_TTL);
        $update->execute([$now, $now, $worker, $row['execution_id'], hash('sha256', $nonce), $oldest]);
        return $update->rowCount() === 1;
    } catch (PDOException $error) {
        // (2) Was it committed? Look; never guess, and never repeat it blindly.
        $find = connect($config)->prepare('SELECT status, worker_id FROM codeRunner_executions WHERE execution_id = ?');
        $find->execute([$row['execution_id']]);
        if ($find->fetch(PDO::FETCH_NUM) === ['running', $worker]) {
            return true;
        }
        throw $error;
    }
}

/** Write the outcome. It may be repeated; a real outcome replaces "unknown" (303). */
function finish(array $config, ?PDO $database, array $row, array $outcome, float $now): void
{
    $at = instant_text($now);
    foreach ([0, 0.1, 0.5, 2, 5] as $pause) { // s; as long as a restart of the database takes
        usleep((int) ($pause * 1e6));
        try {
            $database ??= connect($config);
            $database->prepare(
                "UPDATE codeRunner_executions
                    SET status = ?, error_code = ?, error_message = ?,
                        finished_at = IF(started_at > ?, started_at, ?)
                  WHERE execution_id = ? AND (status = 'running'
                        OR (status = 'failed' AND error_code = 303 AND started_at IS NOT NULL))"
            )->execute([...$outcome, $at, $at, $row['execution_id']]);
            return;
        } catch (PDOException $error) {
            $database = null;
        }
    }
    error_log("execution {$row['execution_id']}: outcome not written; the answer carries it");
}

/**
 * Held while the script runs, on a connection of its own: it dies with the process.
 *
 * PHP has no second thread, so a lock that was lost (the database restarted) is taken again when the
 * script makes its next call, and once a second while it waits.
 */
class LivenessLock
{
    private ?PDO $connection;

    public function __construct(private array $config, private int $execution)
    {
        $this->connection = connect($config);
        if (!$this->take(5)) {
            throw new Refused(503, null, 'another worker holds this execution; nothing was started');
        }
    }

    public function keep(): void
    {
        try {
            $this->connection?->query('DO 0');
        } catch (PDOException $error) {
            $this->connection = null;
        }
        try {
            if ($this->connection === null) {
                $this->connection = connect($this->config);
                $this->take(0);
            }
        } catch (PDOException $error) {
            $this->connection = null;
        }
    }

    public function release(): void
    {
        $this->connection = null;
    }

    private function take(int $seconds): bool
    {
        $ask = $this->connection->prepare("SELECT GET_LOCK(CONCAT('crq:', LEFT(DATABASE(), 40), ':', ?), ?)");
        $ask->execute([$this->execution, $seconds]);
        return (int) $ask->fetchColumn() === 1;
    }
}

function connect(array $config): PDO
{
    return new PDO($config['dsn'], $config['user'], $config['password'], [
        PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION,
        PDO::ATTR_TIMEOUT => 10,
        PDO::ATTR_EMULATE_PREPARES => false,
        PDO::MYSQL_ATTR_FOUND_ROWS => true, // rowCount() says how many rows matched
        PDO::MYSQL_ATTR_INIT_COMMAND => "SET time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES'",
    ]);
}

function gates(array $config): Memcached
{
    $gates = new Memcached();
    $gates->setOptions([
        Memcached::OPT_CONNECT_TIMEOUT => 500, // ms; without them a silent server holds the worker
        Memcached::OPT_POLL_TIMEOUT => 500,
        Memcached::OPT_SEND_TIMEOUT => 500_000, // µs
        Memcached::OPT_RECV_TIMEOUT => 500_000,
        Memcached::OPT_TCP_NODELAY => true,
    ]);
    [$host, $port] = explode(':', $config['memcached'], 2) + [1 => '11211'];
    $gates->addServer($host, (int) $port);
    return $gates;
}

/** An instant as the tables keep it: UTC, cut to the millisecond. */
function instant_text(float $at): string
{
    $milliseconds = (int) floor(round($at * 1e6) / 1e3);
    return gmdate('Y-m-d H:i:s', intdiv($milliseconds, 1000)) . sprintf('.%03d', $milliseconds % 1000);
}

/** A message that any table takes: valid UTF-8, no NUL, short. */
function storable(string $text): string
{
    $text = json_decode(json_encode($text, JSON_INVALID_UTF8_SUBSTITUTE));
    $text = str_replace("\0", "\u{FFFD}", $text);
    return preg_match('/^.{0,4000}/su', $text, $found) ? $found[0] : '';
}
