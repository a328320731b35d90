"""Reads config/grafana-dashboard.json for test_dashboard.sh and test_prometheus.sh.

    dashboard.py schema DASHBOARD          checks it against Grafana's types (PyPI's grafana-foundation-sdk): no unknown
                                           field, no value of another type; panels do not overlap, ids are unique
    dashboard.py expressions DASHBOARD     prints each PromQL expression on a line, its variables replaced

Exit: 0 as it should be, 1 with one line for each fault.
"""
import enum
import json
import re
import sys
import typing

# Prometheus' data source reads these of an annotation; Grafana's types leave the members of data sources out.
OF_PROMETHEUS = {"step", "titleFormat", "textFormat"}
# What Grafana puts in their places, and the instances of test_prometheus.sh.
VARIABLES = {"$__rate_interval": "10s", "$__range": "1m", "$instance": ".*"}


def is_of(value, hint):
    """Whether the value, as the SDK has read it, is of the type that the SDK declares."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (object, typing.Any):
        return True
    if origin is typing.Union:
        return any(is_of(value, argument) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(is_of(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(is_of(item, arguments[1]) for item in value.values())
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in [member.value for member in hint]
    return isinstance(value, hint)


def wrong_types(value, path, faults):
    """Walks the SDK's objects; appends a line for each attribute that has another type."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            wrong_types(item, f"{path}[{i}]", faults)
    elif type(value).__module__.startswith("grafana_foundation_sdk."):
        module = vars(sys.modules[type(value).__module__])
        for name, hint in typing.get_type_hints(type(value), module).items():
            inner = getattr(value, name)
            if not is_of(inner, hint):
                faults.append(f"{path}.{name}: {inner!r} is no {hint}")
            wrong_types(inner, f"{path}.{name}", faults)


def lost_fields(written, read, path, faults):
    """Appends a line for each member that did not survive the SDK's reading, which means that Grafana has none such."""
    if isinstance(written, dict) and isinstance(read, dict):
        for name, value in written.items():
            if name not in read:
                if not (".annotations." in path and name in OF_PROMETHEUS):
                    faults.append(f"{path}.{name}: no such field")
                continue
            lost_fields(value, read[name], f"{path}.{name}", faults)
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for i, (ours, theirs) in enumerate(zip(written, read)):
            lost_fields(ours, theirs, f"{path}[{i}]", faults)
    elif written != read:
        faults.append(f"{path}: {written!r} is read as {read!r}")


def wrong_places(dashboard, faults):
    taken, ids = {}, set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if panel["id"] in ids:
            faults.append(f"panel {panel['id']}: another one has this id")
        ids.add(panel["id"])
        for y in range(place["y"], place["y"] + place["h"]):
            for x in range(place["x"], place["x"] + place["w"]):
                if x >= 24 or (x, y) in taken:
                    faults.append(f"panel {panel['id']}: at ({x}, {y}) is {taken.get((x, y), 'no place')}")
                    return
                taken[x, y] = f"panel {panel['id']}"


def unknown_panels(read, faults):
    """Options that the SDK leaves as they are belong to a panel that it does not know."""
    for panel in read.panels:
        if panel.type_val != "row" and isinstance(panel.options, dict):
            faults.append(f"panel {panel.id_val}: there is no panel {panel.type_val}")


def check_schema(dashboard):
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    faults = []
    read = Dashboard.from_json(dashboard)
    wrong_types(read, "dashboard", faults)
    lost_fields(dashboard, json.loads(JSONEncoder(sort_keys=True).encode(read)), "dashboard", faults)
    unknown_panels(read, faults)
    wrong_places(dashboard, faults)
    return faults


def expressions(dashboard):
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    found += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    for expression in found:
        for name, value in VARIABLES.items():
            expression = re.sub(re.escape(name) + r"\b", value, expression)
        yield expression


def main():
    command, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        dashboard = json.load(file)
    if command == "expressions":
        print("\n".join(expressions(dashboard)))
        return 0
    faults = check_schema(dashboard)
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
