"""
The tables on real databases: the same tests on SQLite and on MariaDB.
"""
