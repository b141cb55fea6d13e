"""How fast a server makes single rows durable is what Partway's own writes are compared with."""

import contextlib
import time
from multiprocessing.synchronize import Barrier

import pymysql

from bench.crowd import crowd
from bench.fleet import Fleet
from partway.store.settings import read_address

TABLE = "CREATE TABLE IF NOT EXISTS commits (id INT PRIMARY KEY, n INT NOT NULL)"
ROW = "REPLACE INTO commits (id, n) VALUES (%s, 0)"
COMMIT = "UPDATE commits SET n = n + 1 WHERE id = {id}"

COM_QUERY = 3
OK = 0


def commits_a_second(fleet: Fleet, connections: int, seconds: float) -> float:
    """How many rows so many connections change a second, each change committed by itself."""
    with contextlib.closing(fleet.connect()) as link, link.cursor() as cursor:
        cursor.execute(TABLE)
        cursor.executemany(ROW, [(id_,) for id_ in range(connections)])
    return sum(crowd(connections, commit, fleet.url, connections, seconds))


def commit(ready: Barrier, url: str, connections: int, seconds: float) -> float:
    """The commits a second of one connection.

    The driver only logs in. From then on a packet that was made beforehand is sent and its OK is
    read: the client costs hardly more than the two system calls, as one written in C would.
    """
    address = read_address(url)
    link = pymysql.connect(
        unix_socket=address.unix_socket,
        user=address.user,
        password=address.password,
        database=address.database,
        autocommit=True,
    )
    with contextlib.closing(link):
        statement = COMMIT.format(id=ready.wait() % connections).encode()
        packet = (len(statement) + 1).to_bytes(4, "little") + bytes([COM_QUERY]) + statement
        sock = link._sock
        count, ends_at = 0, time.monotonic() + seconds
        while time.monotonic() < ends_at:
            sock.sendall(packet)
            reply = sock.recv(256)
            if reply[4] != OK:
                raise RuntimeError(f"the server refused a commit: {reply!r}")
            count += 1
        return count / seconds
