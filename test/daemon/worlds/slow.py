"""The classes of the module $SLOW_MODULE, where much takes long: the import, $SLOW_IMPORT seconds, and the end of the
interpreter. The file $SLOW_MARK shows that the import has begun, and that an exit handler has run."""
import atexit
import importlib
import os
import time

MARK = os.environ["SLOW_MARK"]


class Slow:
    def __del__(self):
        time.sleep(1000)


def mark(word):
    with open(MARK, "a") as file:
        file.write(word + "\n")


mark("import")
time.sleep(float(os.environ["SLOW_IMPORT"]))
globals().update(vars(importlib.import_module(os.environ["SLOW_MODULE"])))
atexit.register(mark, "exit")
at_the_end = Slow()
