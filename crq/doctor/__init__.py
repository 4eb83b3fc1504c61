"""
``crq doctor``: looks at a live installation and says what is wrong and what to do.

It changes nothing: it reads the configuration, the database, memcached, the executor's health, the
host and the installed units. Each module reads one of them and judges it; judging is pure.
"""
