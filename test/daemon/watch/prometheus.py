"""What test_prometheus.sh asks of a Prometheus, of a run, and of a run's textfile.

    prometheus.py ports N                     N free ports of 127.0.0.1
    prometheus.py get URL                     the document; PROMETHEUS_TOKEN is shown as a bearer token, PROMETHEUS_ACCEPT
                                              asks for a format: OpenMetrics by default
    prometheus.py strict FILE                 reads OpenMetrics text with the strict parser of Prometheus' client for
                                              Python; prints the names of the samples
    prometheus.py data FOLDER                 writes images in the format of MNIST, and a text, words.txt: they have
                                              something to hold out, which synthetic data has not
    prometheus.py watch TEXTFILE UNTIL        reads the textfile again and again until the file UNTIL is there; each time it
                                              must be whole; prints how many versions it has seen, and how many readings

Exit: 0 as it should be, 1 with a line that says what is not.
"""
import os
import pathlib
import socket
import struct
import sys
import time
import urllib.request


def ports(count):
    held = [socket.socket() for _ in range(int(count))]
    for each in held:
        each.bind(("127.0.0.1", 0))
    print(*(each.getsockname()[1] for each in held))


def get(url):
    request = urllib.request.Request(url)
    if "PROMETHEUS_TOKEN" in os.environ:
        request.add_header("Authorization", "Bearer " + os.environ["PROMETHEUS_TOKEN"])
    request.add_header("Accept", os.environ.get("PROMETHEUS_ACCEPT", "application/openmetrics-text"))
    with urllib.request.urlopen(request, timeout=30) as answer:
        sys.stdout.write(answer.read().decode())


def strict(path):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    with open(path, encoding="utf-8") as file:
        families = list(text_string_to_metric_families(file.read()))
    print("\n".join(sorted({sample.name for family in families for sample in family.samples})))


def data(folder):
    folder = pathlib.Path(folder)
    folder.mkdir()
    for name, count in (("train", 40), ("t10k", 10)):
        pixels = bytes(i * i % 251 for i in range(count * 16 * 16))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, count, 16, 16) + pixels)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + bytes(i % 10 for i in range(count)))
    (folder / "words.txt").write_text("one two three four five six\n" * 40, encoding="utf-8")


def watch(path, until):
    last = 'coalesced_dropped_messages_total{reason="timeout",run="'  # how a whole file's last line begins
    versions, readings = set(), 0
    while not os.path.exists(until):
        with open(path, encoding="utf-8") as file:
            text = file.read()
            versions.add(os.fstat(file.fileno()).st_ino)
        readings += 1
        lines = text.split("\n")
        if not (text.startswith("# TYPE coalesced_run_info gauge\n") and lines[-1] == "" and lines[-2].startswith(last)):
            sys.exit(f"reading {readings} of {path} is not whole: {text!r}")
        time.sleep(0.0005)
    print(len(versions), readings)


if __name__ == "__main__":
    {"ports": ports, "get": get, "strict": strict, "data": data, "watch": watch}[sys.argv[1]](*sys.argv[2:])
