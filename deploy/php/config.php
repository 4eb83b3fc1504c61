<?php

declare(strict_types=1);

/*
 * Where everything is, and how long to wait. The environment of the pool may say otherwise: in its
 * file, env[CODERUNNER_DSN] = "…" and so on; see config_value().
 */

/** One setting: the environment's CODERUNNER_<NAME>, of the same type as the default. */
function config_value(string $name, string|int|float $default): string|int|float
{
    $text = getenv('CODERUNNER_' . strtoupper($name));
    if ($text === false) {
        return $default;
    }
    return match (gettype($default)) {
        'integer' => (int) $text,
        'double' => (float) $text,
        default => $text,
    };
}

return [
    // The queue's database, as the drainer has it. TCP or a socket, whichever your host uses.
    'dsn' => config_value('dsn', 'mysql:host=127.0.0.1;port=3306;dbname=crqueue;charset=utf8mb4'),
    'user' => config_value('user', 'crqueue'),
    'password' => config_value('password', ''),
    'seal_keys_file' => config_value('seal_keys_file', '/etc/crqueue/seal.keys'),

    // The gates: the same servers and prefix as gates.servers and gates.prefix.
    'memcached' => config_value('memcached', '127.0.0.1:11211'),
    'gate_prefix' => config_value('gate_prefix', 'cr_api_avail_'),

    // The API that scripts call; the same values as [api] and [gates] of crqueue.toml.
    'api' => config_value('api', 'https://{subdomain}.example.com/api/v2'),
    'key_header' => config_value('key_header', 'apikey'),
    'timeout' => config_value('timeout', 180.0),
    'attempts' => config_value('attempts', 3),
    'wait_below' => config_value('wait_below', 100),
    'wait_unauthorized' => config_value('wait_unauthorized', 60.0),
    'shortest_wait' => config_value('shortest_wait', 5),
    'margin' => config_value('margin', 5.0),

    // request_terminate_timeout of the pool, in seconds.
    'wall' => config_value('wall', 300.0),

    // The queue's HTTP door, and this product's token for it; see admit.php.
    'door' => config_value('door', 'http://127.0.0.1:8080'),
    'token' => config_value('token', ''),
];
