#!/usr/bin/env python3
"""A cable that delays frames, between two network namespaces, for kernels without netem. Each end becomes an interface.

    slow_cable.py PID PID INTERFACE DELAY_MS

The processes name the namespaces. A line on standard output says that both interfaces are there; the cable lasts until
this process ends. Frames keep their order. Needs root and /dev/net/tun.
"""
import ctypes
import fcntl
import os
import selectors
import struct
import sys
import time
from collections import deque

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEADER = 0x0002 | 0x1000
FRAME_BYTES_MAX = 65536


def open_end(pid, interface):
    """An interface in the process's network namespace, as a descriptor of its frames."""
    with open(f"/proc/{pid}/ns/net") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", interface.encode(), TAP_WITHOUT_HEADER))
    return end


def deliver(frames, now):
    """Writes the frames that are due; returns when the next one is, or None."""
    while frames and frames[0][0] <= now:
        _, end, frame = frames.popleft()
        try:
            os.write(end, frame)
        except OSError:  # the interface is down, or its queue is full: a frame is lost
            pass
    return frames[0][0] if frames else None


def main():
    ends = [open_end(pid, sys.argv[3]) for pid in sys.argv[1:3]]
    delay_s = float(sys.argv[4]) / 1000
    frames = deque()  # (due, to, frame): the delay is the same both ways, so this is in order
    selector = selectors.DefaultSelector()
    for end, other in (ends, reversed(ends)):
        selector.register(end, selectors.EVENT_READ, other)
    print("ready", flush=True)
    while True:
        due = deliver(frames, time.monotonic())
        wait_s = None if due is None else max(0, due - time.monotonic())
        for key, _ in selector.select(wait_s):
            try:
                while True:
                    frame = os.read(key.fd, FRAME_BYTES_MAX)
                    frames.append((time.monotonic() + delay_s, key.data, frame))
            except BlockingIOError:
                pass


if __name__ == "__main__":
    main()
