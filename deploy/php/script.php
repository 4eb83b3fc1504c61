<?php

declare(strict_types=1);

require_once __DIR__ . '/api.php';

/** The script ends itself; 301 with this message. */
class ScriptFailed extends RuntimeException
{
}

/*
 * THIS IS WHERE YOUR LANGUAGE GOES. What stands here is enough to try the rest with: one statement
 * a line.
 *
 *     GET /cards/7
 *     POST /cards {"title": "a JSON body"}
 *     SLEEP 1.5
 *     FAIL it ends with this message
 */

/** @throws ScriptFailed|CallFailed both end the execution as 301 */
function run_script(string $source, mixed $payload, Api $api): void
{
    foreach (preg_split('/\R/', $source) as $number => $line) {
        [$word, $rest] = explode(' ', trim($line), 2) + [1 => ''];
        $at = 'line ' . ($number + 1);
        switch ($word) {
            case '':
                break;
            case 'SLEEP':
                $api->wait((float) $rest);
                break;
            case 'FAIL':
                throw new ScriptFailed("$at: $rest");
            case 'GET':
            case 'POST':
            case 'PUT':
            case 'PATCH':
            case 'DELETE':
                [$path, $body] = explode(' ', $rest, 2) + [1 => 'null'];
                $answer = $api->send($word, $path, json_decode($body, true));
                if ($answer['status'] >= 400) {
                    throw new ScriptFailed("$at: $word $path: the API answered {$answer['status']}");
                }
                break;
            default:
                throw new ScriptFailed("$at: there is no statement $word");
        }
    }
}
