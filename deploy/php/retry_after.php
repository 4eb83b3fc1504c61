<?php

declare(strict_types=1);

/*
 * The one rule by which a Retry-After is read. The same as crq/policy.py; both are run against
 * tests/vectors/retry_after.json. The table is in docs/executor-contract.md.
 */

const RETRY_AFTER_DEFAULT = 60;      // s; nothing usable was said
const RETRY_AFTER_MINIMUM = 5;       // s; 0 must not become a tight loop
const RETRY_AFTER_MAXIMUM = 86_400;  // s
const RETRY_AFTER_EPOCH = 1e9;       // an integer above this is an instant, not a duration
const GATE_MARGIN = 5.0;             // s; the API's clock and ours differ
const GATE_TTL_MINIMUM = 300;        // s
const GATE_TTL_MARGIN = 120;         // s

/** Seconds to wait. Unreadable never means "no wait". */
function retry_after(?string $value, float $now, int $shortest = RETRY_AFTER_MINIMUM): int
{
    $text = trim($value ?? '', " \t");
    if (preg_match('/^[0-9]{1,100}\z/', $text)) {
        $number = (float) $text;
        $wait = $number > RETRY_AFTER_EPOCH ? $number - $now : $number;
    } elseif (preg_match('/^[0-9]{1,100}\.[0-9]{1,100}\z/', $text)) {
        $wait = ceil((float) $text);
    } else {
        $date = http_date($text, $now);
        $wait = $date === null ? -1 : $date - $now;
    }
    if ($wait < 0) {
        return RETRY_AFTER_DEFAULT;
    }
    return (int) min(RETRY_AFTER_MAXIMUM, max($shortest, ceil($wait)));
}

/** The three forms of RFC 9110 §5.6.7; null: it is none of them. */
function http_date(string $text, float $now): ?int
{
    $clock = '(?<hour>\d\d):(?<minute>\d\d):(?<second>\d\d)';
    $forms = [
        "/^\w{3}, (?<day>\d\d) (?<month>\w{3}) (?<year>\d{4}) $clock GMT\z/",
        "/^\w{6,9}, (?<day>\d\d)-(?<month>\w{3})-(?<year>\d\d) $clock GMT\z/",
        "/^\w{3} (?<month>\w{3}) (?<day>[ \d]\d) $clock (?<year>\d{4})\z/",
    ];
    $months = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];
    foreach ($forms as $form) {
        if (!preg_match($form, $text, $found)) {
            continue;
        }
        $month = array_search($found['month'], $months, true);
        if ($month === false) {
            continue;
        }
        $year = (int) $found['year'];
        if ($year < 100) {
            // A two-digit year more than 50 years ahead is of the past century.
            $this_year = (int) gmdate('Y', (int) $now);
            $year += $this_year - $this_year % 100;
            $year -= $year > $this_year + 50 ? 100 : 0;
        }
        $day = (int) trim($found['day']);
        [$hour, $minute, $second] = [(int) $found['hour'], (int) $found['minute'], (int) $found['second']];
        if (!checkdate($month + 1, $day, $year) || $hour > 23 || $minute > 59) {
            return null;
        }
        // A leap second is a legal :60.
        return gmmktime($hour, $minute, min($second, 59), $month + 1, $day, $year);
    }
    return null;
}

/** The instant, in whole POSIX seconds, until which a 429 with this wait closes its key. */
function gate_until(int $wait, float $now, float $margin = GATE_MARGIN): int
{
    return (int) ceil($now + $wait + $margin);
}

/** Seconds for which a gate is kept: max(300, wait + 120), counted from the wait it stands for. */
function gate_ttl(int $until, float $now): int
{
    return max(GATE_TTL_MINIMUM, (int) ceil($until - $now - GATE_MARGIN) + GATE_TTL_MARGIN);
}
