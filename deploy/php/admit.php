<?php

declare(strict_types=1);

/*
 * POST /codeRunner: hands what a business rule sends to the queue, and its answer back.
 *
 * 202: it waits in the queue. 429 with errorCode 107: the queue is full, and the caller is told.
 * 503: the queue's door does not answer; nothing was admitted, or nobody knows. A caller that sends
 * an Idempotency-Key may simply send it again.
 */

/** @return array{int, string} status and JSON */
function admit(array $config, string $body, string $content_type, ?string $idempotency_key): array
{
    $sent = ["Authorization: Bearer {$config['token']}", "Content-Type: $content_type", 'Connection: close'];
    if ($idempotency_key !== null) {
        $sent[] = 'Idempotency-Key: ' . preg_replace('/[^\x21-\x7e]/', '', $idempotency_key);
    }
    $answer = @file_get_contents("{$config['door']}/codeRunner", false, stream_context_create(['http' => [
        'method' => 'POST',
        'header' => $sent,
        'content' => $body,
        'timeout' => 10,
        'ignore_errors' => true,
        'follow_location' => 0,
        'protocol_version' => 1.1,
    ]]));
    if ($answer === false || !preg_match('~^HTTP/\S+ (\d{3})~', $http_response_header[0] ?? '', $found)) {
        return [503, '{"problem": "the queue does not answer", "remedy": "send it again"}'];
    }
    return [(int) $found[1], $answer];
}
