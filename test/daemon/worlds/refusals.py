"""What a trainer in Python says of wrong classes, for the tests of trainers: in one process, because each start of PyTorch
takes two seconds.

    python refusals.py RUN <CASES

RUN is the run directory of a job with a class. A line of CASES has the members of the job that differ, as JSON by their
paths; a tab; and what has to be said. Prints the lines whose class is not refused so; exits 1 if there are any.
"""
import copy
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../../worker/python"))
from trainer_class import call, make_data, make_network, sizes_of
from worker_session import Failure, import_package


def differing(job, members):
    job = copy.deepcopy(job)
    for path, value in members.items():
        *parents, name = path.strip("/").split("/")
        place = job
        for parent in parents:
            place = place[parent]
        place[name] = value
    return job


def begin(job):
    """What trainer.py does with a class up to its first batch's gradients."""
    data = call(job, "constructing it", make_data, job, 0, lambda: None)
    call(job, "its size", sizes_of, job, data)
    network = call(job, "model", make_network, job, data, lambda: None)
    call(job, "batch 0", network.compute, call(job, "batch 0", data.batch, 0))


def said_of(job):
    try:
        begin(job)
    except Failure as failure:
        return str(failure)
    return "nothing"


def main():
    with open(os.path.join(sys.argv[1], "job.json"), encoding="utf-8") as file:
        job = json.load(file)
    import_package("torch")
    wrong = 0
    for line in sys.stdin:
        members, expected = line.rstrip("\n").split("\t")
        said = said_of(differing(job, json.loads(members)))
        if expected not in said:
            print(f"{members}: {said}; expected {expected}")
            wrong += 1
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
