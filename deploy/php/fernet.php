<?php

declare(strict_types=1);

/*
 * Opens what crqueue has sealed: a Fernet token (AES-128-CBC under HMAC-SHA256).
 */

/**
 * @param string[] $keys base64url, 32 bytes each: 16 to sign, 16 to encrypt; any of them may fit
 * @return string|null null: none of the keys opens it
 */
function fernet_open(string $token, array $keys): ?string
{
    $data = base64_decode(strtr($token, '-_', '+/'), true);
    // version, 8 bytes of time, 16 of IV, blocks of 16, 32 of HMAC
    if ($data === false || strlen($data) < 73 || $data[0] !== "\x80") {
        return null;
    }
    [$signed, $signature] = [substr($data, 0, -32), substr($data, -32)];
    foreach ($keys as $text) {
        $key = base64_decode(strtr($text, '-_', '+/'), true);
        if ($key === false || strlen($key) !== 32) {
            continue;
        }
        if (hash_equals(hash_hmac('sha256', $signed, substr($key, 0, 16), true), $signature)) {
            $opened = openssl_decrypt(
                substr($signed, 25),
                'aes-128-cbc',
                substr($key, 16),
                OPENSSL_RAW_DATA,
                substr($signed, 9, 16)
            );
            return $opened === false ? null : $opened;
        }
    }
    return null;
}
