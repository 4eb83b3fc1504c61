<?php

declare(strict_types=1);

// What a load balancer asks of the product, in the shared pool: does PHP answer, and the database?
header('Content-Type: text/plain');
try {
    $setting = fn (string $name): string => (string) getenv("CODERUNNER_$name");
    (new PDO($setting('DSN'), $setting('USER'), $setting('PASSWORD')))->query('SELECT 1');
    echo 'ok';
} catch (PDOException $error) {
    http_response_code(503);
    echo 'no database';
}
