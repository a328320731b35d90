"""The frame of a program in Python that a command starts as its child and asks (worker/python/python_child.h):
command_environments.py and command_evaluation.py. The request comes over descriptor 3; the child ends with the command.
"""
import os
import signal
import socket
import struct
import sys
import traceback

from worker_session import INTERNAL, Failure, cut, end_with_parent, last_lines

DESCRIPTOR = 3
SENTENCE_BYTES = 450


def receive(peer, size):
    """So many bytes; None: the command has closed the socket."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = peer.recv_into(view)
        if got == 0:
            return None
        view = view[got:]
    return data


def answer(peer, status, *parts):
    body = b"".join(parts)
    peer.sendall(struct.pack("=II", status, len(body)) + body)


def refuse(peer, status, sentence):
    sys.stdout.flush()
    sys.stderr.flush()
    answer(peer, status, cut(sentence, SENTENCE_BYTES))


def work(serve):
    """Calls serve(peer), answers a failure, and ends the process."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the key is the command's
    sys.path.insert(0, os.getcwd())
    os.set_inheritable(DESCRIPTOR, False)
    peer = socket.socket(fileno=DESCRIPTOR)
    try:
        serve(peer)
    except Failure as failure:
        refuse(peer, failure.status, str(failure))
    except BaseException as why:  # SystemExit, too
        traceback.print_exc()
        refuse(peer, INTERNAL, f"{os.path.basename(sys.argv[0])}: {last_lines(why)}")
    finally:
        os._exit(0)  # threads, exit handlers and buffers of the user's code are given up
