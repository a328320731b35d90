#!/usr/bin/env python3
"""Connections to a ZeroMQ socket that never finish a handshake: one says nothing, one speaks HTTP, one greets with CURVE.

    flood.py ADDRESS PORT PER_SECOND

A hundred are held at a time. Runs until it is killed.
"""
import socket
import sys
import time
from collections import deque

HELD = 100
CURVE_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
WORDS = (b"", b"GET / HTTP/1.1\r\n\r\n", CURVE_GREETING)


def main():
    address, every_s = (sys.argv[1], int(sys.argv[2])), 1 / float(sys.argv[3])
    held = deque()
    due = time.monotonic()
    for i in range(sys.maxsize):
        connection = socket.create_connection(address)
        held.append(connection)
        try:
            connection.sendall(WORDS[i % len(WORDS)])
        except OSError:  # it is cut off already
            pass
        if len(held) > HELD:
            held.popleft().close()
        due += every_s
        time.sleep(max(0, due - time.monotonic()))


if __name__ == "__main__":
    main()
