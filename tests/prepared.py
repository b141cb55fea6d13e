"""A test must find empty tables, and emptying them is ten times as fast as making a database."""

import asyncio
import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pymysql

from partway.store.settings import DatabaseSettings
from partway.store.start import open_database

# A connection that a test left open is ended; its transaction may need this long to roll back.
LOCK_WAIT_SECONDS = 10

# The server still has to clear away what was deleted, and reads of the next test would meet it.
MOST_ROWS = 300

# Part of what a server says of a table, and no part of its shape.
NEXT_NUMBER = re.compile(r" AUTO_INCREMENT=\d+")

SESSIONS = "SELECT id FROM information_schema.processlist WHERE db = %s"


class Reached(Protocol):
    """A server on which tests have databases of their own."""

    def url(self, database: str) -> str:
        """The URL of a database on it."""

    def connect(self) -> "pymysql.connections.Connection[Any]":
        """A connection with autocommit; the caller closes it."""


class Prepared:
    """One database with its tables on one server, for one test after the other."""

    def __init__(self, server: Reached, name: str) -> None:
        self.server = server
        self.name = name
        self.shape: dict[str, str] = {}

    def make(self) -> None:
        """Make the database and its tables, as a program does it that starts."""
        self.drop()
        with self.server.connect() as connection, connection.cursor() as cursor:
            # What the server gives a table by default must not matter.
            cursor.execute(f"CREATE DATABASE {self.name} CHARACTER SET latin1")
        # In a thread, since the thread of the tests may have an event loop of its own.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self._set_up()).result()
        with self.server.connect() as connection, connection.cursor() as cursor:
            self.shape = self._read_shape(cursor)

    def clean(self) -> None:
        """Empty the tables for the next test, or make them anew: they may be changed, or large."""
        try:
            with self.server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}")
                self._end_sessions(cursor)
                if self._read_shape(cursor) == self.shape:
                    tables = self.shape.keys() - {"schema_version", "versions"}
                    deleted = [cursor.execute(f"DELETE FROM {self.name}.{t}") for t in tables]
                    if sum(deleted) <= MOST_ROWS:
                        return
        except pymysql.err.MySQLError:
            pass
        self.make()

    def drop(self) -> None:
        """Leave nothing behind."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {self.name}")

    async def _set_up(self) -> None:
        async with open_database(DatabaseSettings(database_url=self.server.url(self.name))):
            pass

    def _end_sessions(self, cursor: "pymysql.cursors.Cursor") -> None:
        cursor.execute(SESSIONS, (self.name,))
        for (session,) in cursor.fetchall():
            # It may end by itself meanwhile, which is error 1094.
            with contextlib.suppress(pymysql.err.MySQLError):
                cursor.execute(f"KILL {session}")

    def _read_shape(self, cursor: "pymysql.cursors.Cursor") -> dict[str, str]:
        """Each table with the statement that would make it, and the rows of schema_version."""
        cursor.execute(f"SHOW TABLES FROM {self.name}")
        shape = {}
        for (table,) in cursor.fetchall():
            cursor.execute(f"SHOW CREATE TABLE {self.name}.{table}")
            shape[table] = NEXT_NUMBER.sub("", (cursor.fetchone() or ("", ""))[1])
        cursor.execute(f"SELECT version FROM {self.name}.schema_version ORDER BY version")
        return {**shape, "versions": repr(cursor.fetchall())}
