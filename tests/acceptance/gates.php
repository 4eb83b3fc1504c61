<?php

declare(strict_types=1);

/*
 * gates.php PHP_DIR HOST:PORT WHAT …: what a PHP program does with gates. Prints JSON.
 */
[, $php, $server, $what] = $argv;
$arguments = array_slice($argv, 4);
require "$php/gate.php";

/** The cache handler of CodeIgniter 4 (MemcachedHandler), as far as gates go. */
class MemcachedHandler
{
    public function __construct(private Memcached $memcached, private string $prefix, private bool $raw = false)
    {
    }

    public function save(string $key, mixed $value, int $ttl = 60): bool
    {
        if (!$this->raw) {
            $value = [$value, time(), $ttl];
        }
        return $this->memcached->set($this->prefix . $key, $value, $ttl);
    }

    public function get(string $key): mixed
    {
        $data = $this->memcached->get($this->prefix . $key);
        if ($this->memcached->getResultCode() === Memcached::RES_NOTFOUND) {
            return null;
        }
        return is_array($data) ? $data[0] : $data;
    }
}

function client(string $server): Memcached
{
    $memcached = new Memcached();
    $memcached->setOptions([
        Memcached::OPT_CONNECT_TIMEOUT => 300,
        Memcached::OPT_POLL_TIMEOUT => 300,
        Memcached::OPT_SEND_TIMEOUT => 300_000,
        Memcached::OPT_RECV_TIMEOUT => 300_000,
    ]);
    foreach (explode(',', $server) as $one) {
        [$host, $port] = explode(':', $one);
        $memcached->addServer($host, (int) $port);
    }
    return $memcached;
}

$memcached = client($server);
$serializers = [
    'php' => Memcached::SERIALIZER_PHP,
    'igbinary' => Memcached::SERIALIZER_IGBINARY,
    'json' => Memcached::SERIALIZER_JSON,
    'json_array' => Memcached::SERIALIZER_JSON_ARRAY,
    'msgpack' => Memcached::SERIALIZER_MSGPACK,
];
$compressions = ['zlib' => Memcached::COMPRESSION_ZLIB, 'fastlz' => Memcached::COMPRESSION_FASTLZ];
$values = function (int $until): array {
    return [
        'int' => $until,
        'string' => (string) $until,
        'float' => $until - 0.75,
        'whole_float' => (float) $until,
        'list' => [$until, time(), 300],
        'list_of_float' => [$until - 0.75, time(), 300],
        'list_of_string' => [(string) $until, time(), 0],
        'list_without_ttl' => [$until, time(), null],
        'list_for_ever' => [$until, time(), -1],
    ];
};
$unreadable = [
    'true' => true,
    'null' => null,
    'word' => 'abc',
    'empty' => [],
    'two' => [1_900_000_000, 300],
    'nested' => [[1_900_000_000], time(), 300],
    'map' => ['value' => 1_900_000_000, 'time' => time(), 'ttl' => 300],
    'object' => new ArrayObject([1_900_000_000]),
    'milliseconds' => [1_900_000_000_000, time(), 300],
];

switch ($what) {
    case 'write': // PREFIX SERIALIZER COMPRESSION UNTIL
        [$prefix, $serializer, $compression, $until] = $arguments;
        $memcached->setOption(Memcached::OPT_SERIALIZER, $serializers[$serializer]);
        $memcached->setOption(Memcached::OPT_COMPRESSION, $compression !== 'none');
        if ($compression !== 'none') {
            $memcached->setOption(Memcached::OPT_COMPRESSION_TYPE, $compressions[$compression]);
        }
        $written = [];
        foreach (['readable' => $values((int) $until), 'unreadable' => $unreadable] as $kind => $all) {
            foreach ($all as $name => $value) {
                if ($memcached->set($prefix . $name, $value, 300)) {
                    $written[$kind][] = $name;
                }
            }
        }
        echo json_encode($written);
        break;
    case 'save': // PREFIX KEY UNTIL TTL [raw]: as the framework's cache saves
        [$prefix, $key, $until, $ttl] = $arguments;
        $handler = new MemcachedHandler($memcached, $prefix, isset($arguments[4]));
        echo json_encode($handler->save($key, (int) $until, (int) $ttl));
        break;
    case 'read': // PREFIX KEY: as the framework's cache reads, and as a plain client does
        [$prefix, $key] = $arguments;
        $value = (new MemcachedHandler($memcached, $prefix))->get($key);
        echo json_encode(['value' => $value, 'closed' => $value !== null && $value > time(), 'int' => (int) $value]);
        break;
    case 'close': // NAME UNTIL NOW: as deploy/php closes a gate
        [$name, $until, $now] = $arguments;
        $begun = hrtime(true);
        $stands = close_gate($memcached, $name, (int) $until, (float) $now);
        echo json_encode([
            'stands' => $stands,
            'value' => $memcached->get($name),
            'seconds' => (hrtime(true) - $begun) / 1e9,
        ]);
        break;
    case 'vectors': // FILE: the one rule for Retry-After
        $vectors = json_decode(file_get_contents($arguments[0]), true);
        $now = (float) $vectors['now'];
        $gates = function (array $gate): array {
            $until = gate_until($gate['wait'], (float) $gate['now']);
            return [$until, gate_ttl($until, (float) $gate['now'])];
        };
        echo json_encode([
            'waits' => array_map(fn (array $one): int => retry_after($one['value'], $now), $vectors['waits']),
            'gates' => array_map($gates, $vectors['gates']),
            'others' => [retry_after('0', 0.0, 1), retry_after('2', 0.0, 30), gate_until(1, 100.0, 0.25)],
        ]);
        break;
}
