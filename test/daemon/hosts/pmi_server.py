#!/usr/bin/env python3
"""Starts N tasks as a launcher with PMI-1 does, and serves them: a space of keys, and barriers.

    pmi_server.py N COMMAND [ARGUMENT]...

Task I's output goes to the file $TASK_OUTPUT.I. Exit: 0 when every task has ended with 0, else 1."""

import os
import selectors
import socket
import subprocess
import sys


def answer(fields, rank, waiting, values, count):
    """The answers to one request: (rank, line) pairs."""
    command = fields["cmd"]
    if command == "init":
        return [(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")]
    if command == "get_maxes":
        return [(rank, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024")]
    if command == "get_my_kvsname":
        return [(rank, "cmd=my_kvsname kvsname=space")]
    if command == "put":
        values[fields["key"]] = fields["value"]
        return [(rank, "cmd=put_result rc=0 msg=success")]
    if command == "get":
        value = values.get(fields["key"])
        return [(rank, "cmd=get_result rc=-1" if value is None else f"cmd=get_result rc=0 msg=success value={value}")]
    if command == "barrier_in":
        waiting.add(rank)
        if len(waiting) < count:
            return []
        waiting.clear()
        return [(other, "cmd=barrier_out rc=0") for other in range(count)]
    return [(rank, "cmd=finalize_ack rc=0")]


def main():
    count, command = int(sys.argv[1]), sys.argv[2:]
    tasks, lines, watched = [], [], selectors.DefaultSelector()
    for rank in range(count):
        ours, theirs = socket.socketpair()
        environment = os.environ | {"PMI_FD": str(theirs.fileno()), "PMI_RANK": str(rank), "PMI_SIZE": str(count)}
        with open(f"{os.environ['TASK_OUTPUT']}.{rank}", "w", encoding="utf-8") as output:
            tasks.append(
                subprocess.Popen(
                    command, env=environment, pass_fds=[theirs.fileno()], stdout=output, stderr=output,
                    stdin=subprocess.DEVNULL,
                )
            )
        theirs.close()
        lines.append(ours.makefile("rw", encoding="ascii", newline="\n", buffering=1))
        watched.register(ours, selectors.EVENT_READ, rank)
    waiting, values, open_lines = set(), {}, count
    while open_lines > 0:
        for key, _ in watched.select():
            line = lines[key.data].readline()
            if not line:
                watched.unregister(key.fileobj)
                open_lines -= 1
                continue
            fields = dict(word.split("=", 1) for word in line.split())
            for rank, text in answer(fields, key.data, waiting, values, count):
                lines[rank].write(text + "\n")
                lines[rank].flush()
    return 1 if any([task.wait() for task in tasks]) else 0


sys.exit(main())
