<?php

declare(strict_types=1);

require_once __DIR__ . '/retry_after.php';

/*
 * The gate: "this key not before T", in memcached, where the drainer looks before it starts a row.
 */

const RELATIVE_TTL_LIMIT = 30 * 86_400; // s; memcached takes a larger TTL for an instant, of 1970
const LATEST_EXPIRY = 2 ** 31 - 1;      // memcached reads it as 32 bits with a sign

/**
 * Close a key's gate. A shorter gate never replaces a longer one, whoever writes meanwhile.
 *
 * @return bool whether the gate stands; a gate that cannot be written is no reason to end a script
 */
function close_gate(Memcached $gates, string $name, int $until, float $now): bool
{
    $ttl = gate_ttl($until, $now);
    $expires = $ttl > RELATIVE_TTL_LIMIT ? min((int) ceil($now) + $ttl, LATEST_EXPIRY) : $ttl;
    for ($attempt = 0; $attempt < 5; $attempt++) {
        $found = $gates->get($name, null, Memcached::GET_EXTENDED);
        if ($found === false) {
            if ($gates->getResultCode() !== Memcached::RES_NOTFOUND) {
                return false; // the server is away, or what it has cannot be unserialised
            }
            $stored = $gates->add($name, $until, $expires);
        } else {
            // A framework's cache wraps the value: [value, time of writing, TTL].
            $standing = is_array($found['value']) ? ($found['value'][0] ?? 0) : $found['value'];
            if (is_numeric($standing) && $standing >= $until) {
                return true;
            }
            $stored = $gates->cas($found['cas'], $name, $until, $expires);
        }
        if ($stored) {
            return true;
        }
    }
    return false;
}

/**
 * Note a closing in the history, for those who ask why their work waited.
 *
 * A refusal while the gate is closed belongs to the closing that stands: it makes it longer.
 */
function note_closing(PDO $database, array $row, int $until, float $now, string $cause): void
{
    $find = $database->prepare(
        'SELECT number, closed_until > ? FROM codeRunner_gate_history
          WHERE apikey_hash = ? ORDER BY number DESC LIMIT 1'
    );
    $find->execute([instant_text($now), $row['apikey_hash']]);
    [$number, $stands] = $find->fetch(PDO::FETCH_NUM) ?: [0, false];
    $database->prepare(
        'INSERT INTO codeRunner_gate_history
            (apikey_hash, number, closed_at, closed_until, cause, execution_id, limits)
         VALUES (?, ?, ?, ?, ?, ?, 1)
         ON DUPLICATE KEY UPDATE
            cause = IF(limits = 0, VALUES(cause), cause),
            execution_id = IF(limits = 0, VALUES(execution_id), execution_id),
            limits = limits + 1,
            closed_until = GREATEST(closed_until, VALUES(closed_until))'
    )->execute([
        $row['apikey_hash'],
        $stands ? $number : $number + 1,
        instant_text($now),
        instant_text($until),
        substr($cause, 0, 200),
        $row['execution_id'],
    ]);
}
