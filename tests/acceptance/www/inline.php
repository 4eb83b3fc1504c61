<?php

declare(strict_types=1);

require_once __DIR__ . '/../../../deploy/php/script.php';

/*
 * How it was before the queue: the dispatch runs in the shared pool, at once, and a 429 sleeps for as
 * long as it takes. Nothing counts the attempts, nothing looks at the wall, no gate is written.
 */
ignore_user_abort(true);
$config = [
    'key_header' => 'apikey',
    'timeout' => 180.0,
    'attempts' => PHP_INT_MAX,
    'wait_below' => PHP_INT_MAX,
    'wait_unauthorized' => 60.0,
    'shortest_wait' => (int) getenv('CODERUNNER_SHORTEST_WAIT'),
    'margin' => (float) getenv('CODERUNNER_MARGIN'),
];
$nothing = function (): void {
};
$api = new Api($config, getenv('CODERUNNER_API'), $_POST['apikey'], INF, $nothing, $nothing);
run_script($_POST['source_code'], null, $api);
error_log('inline done');
