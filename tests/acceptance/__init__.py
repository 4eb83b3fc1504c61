"""
The queue as a team with PHP-FPM runs it: MariaDB, memcached, two FPM pools behind Apache, twistd.
"""
