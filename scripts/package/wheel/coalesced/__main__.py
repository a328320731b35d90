"""Becomes the program."""
import os
import sys

PROGRAM = os.path.join(os.path.dirname(os.path.realpath(__file__)), "bin", "coalesced")


def main():
    # "python3" of /environment/python and /trainers/python is the interpreter of this package, which has the packages.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
    os.execv(PROGRAM, ["coalesced", *sys.argv[1:]])


if __name__ == "__main__":
    main()
