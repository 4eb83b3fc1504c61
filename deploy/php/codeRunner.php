<?php

declare(strict_types=1);

require_once __DIR__ . '/admit.php';
require_once __DIR__ . '/executor.php';

/*
 * The front door of the codeRunner pool: two paths, and nothing else is routed here.
 */

(function (): void {
    $path = parse_url($_SERVER['REQUEST_URI'] ?? '', PHP_URL_PATH);
    header('Content-Type: application/json');
    header('Cache-Control: no-store');
    try {
        $config = require __DIR__ . '/config.php';
        if ($_SERVER['REQUEST_METHOD'] !== 'POST') {
            header('Allow: POST');
            throw new Refused(405, null, 'send POST');
        }
        if ($path === '/codeRunner/runAsync') {
            // The executor runs nothing but what a drainer has claimed; the nonce is its proof.
            $answer = run_async($config, (string) ($_POST['jobId'] ?? ''), (string) ($_POST['asyncNonce'] ?? ''));
            echo json_encode($answer, JSON_UNESCAPED_UNICODE);
        } elseif ($path === '/codeRunner') {
            [$status, $json] = admit(
                $config,
                file_get_contents('php://input'),
                $_SERVER['CONTENT_TYPE'] ?? '',
                $_SERVER['HTTP_IDEMPOTENCY_KEY'] ?? null
            );
            http_response_code($status);
            echo $json;
        } else {
            throw new Refused(404, null, 'there is nothing here');
        }
    } catch (Refused $refused) {
        http_response_code($refused->status);
        echo json_encode(['errorCode' => $refused->error_code, 'errorMessage' => $refused->getMessage()]);
    } catch (Throwable $error) {
        // Before a start only. It may carry a secret, so it goes into the log by its name alone.
        error_log(get_class($error) . ' at ' . $error->getFile() . ':' . $error->getLine());
        http_response_code(500);
        echo json_encode(['errorCode' => null, 'errorMessage' => 'the executor failed; its log says more']);
    }
})();
