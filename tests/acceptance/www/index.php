<?php

declare(strict_types=1);

// Everything of the product that is not routed to a pool of its own: which pool served it, it says.
header('Content-Type: text/plain');
echo 'www ', $_SERVER['REQUEST_URI'];
