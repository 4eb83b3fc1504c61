<?php

declare(strict_types=1);

require_once __DIR__ . '/retry_after.php';

/** A call cannot be answered; the script ends as 301 with this message. */
class CallFailed extends RuntimeException
{
}

/**
 * The rate-limited API, as scripts reach it: one call, its waits, its gate.
 */
class Api
{
    /**
     * @param array    $config  as config.php returns it
     * @param float    $ends    hrtime seconds at which nothing may be waited for any more
     * @param callable $refused told of each 429: (int $until, float $now, ?string $said)
     * @param callable $awake   called at least once a second while it waits
     */
    public function __construct(
        private array $config,
        private string $address,
        private string $apikey,
        private float $ends,
        private $refused,
        private $awake,
    ) {
    }

    /**
     * Make one call; a limit is waited for and the call sent again.
     *
     * How often it has been sent is an argument. It starts at 1 with each call of the script; a
     * counter on this object would end the retries of all later calls at the third 429 anywhere.
     */
    public function send(string $method, string $path, mixed $body = null, int $attempt = 1): array
    {
        [$status, $headers, $text] = $this->exchange($method, $path, $body);
        if ($status === 429) {
            $said = $headers['retry-after'] ?? json_decode($text, true)['retry_after'] ?? null;
            $said = $said === null ? null : (string) $said;
            $now = microtime(true);
            $seconds = retry_after($said, $now, $this->config['shortest_wait']);
            ($this->refused)(gate_until($seconds, $now, $this->config['margin']), $now, $said);
            $wait = $seconds + $this->config['margin'];
            $long = $seconds >= $this->config['wait_below'];
        } elseif ($status === 401 && str_contains($text, 'API limit reached for this method')) {
            $wait = $this->config['wait_unauthorized'];
            $long = false;
        } else {
            return ['status' => $status, 'json' => json_decode($text, true), 'text' => $text];
        }
        $left = $this->left();
        $problem = match (true) {
            $long => sprintf('a wait of %g s is too long for a script', $wait),
            $attempt >= $this->config['attempts'] => "$attempt attempts were answered so",
            $wait > $left => sprintf('a wait of %g s does not fit into the %.0f s left', $wait, $left),
            default => null,
        };
        if ($problem !== null) {
            throw new CallFailed("$method $path: over the API's limit ($status); $problem");
        }
        $this->wait($wait);
        return $this->send($method, $path, $body, $attempt + 1);
    }

    /** Wait, looking up once a second. */
    public function wait(float $seconds): void
    {
        $until = hrtime(true) / 1e9 + $seconds;
        while (($left = $until - hrtime(true) / 1e9) > 0) {
            usleep((int) (min(1.0, $left) * 1e6));
            ($this->awake)();
        }
    }

    private function left(): float
    {
        return $this->ends - hrtime(true) / 1e9;
    }

    /** @return array{int, array<string, string>, string} status, headers by lower-case name, body */
    private function exchange(string $method, string $path, mixed $body): array
    {
        ($this->awake)();
        $left = min($this->config['timeout'], $this->left());
        if ($left <= 0) {
            throw new CallFailed("$method $path: no time is left for it");
        }
        $sent = ["{$this->config['key_header']}: $this->apikey", 'Accept: application/json', 'Connection: close'];
        if ($body !== null) {
            $sent[] = 'Content-Type: application/json';
        }
        $text = @file_get_contents($this->address . $path, false, stream_context_create(['http' => [
            'method' => $method,
            'header' => $sent,
            'content' => $body === null ? '' : json_encode($body),
            'timeout' => $left,
            'ignore_errors' => true,  // a status is an answer
            'follow_location' => 0,   // the host is the account's, whatever it answers
            'protocol_version' => 1.1,
        ]]));
        if ($text === false || !preg_match('~^HTTP/\S+ (\d{3})~', $http_response_header[0] ?? '', $found)) {
            throw new CallFailed("$method $path: no answer from the API");
        }
        $headers = [];
        foreach (array_slice($http_response_header, 1) as $line) {
            [$name, $value] = explode(':', $line, 2) + [1 => ''];
            $headers[strtolower($name)] ??= trim($value);
        }
        return [(int) $found[1], $headers, $text];
    }
}
