#!/usr/bin/env python3
"""Compares results of `make bench`: prints the ratio of each time and each amount of memory, and fails when one is above a limit.

    .ci/ratios.py LIMIT BASE.json... -- HEAD.json...

Of several files of a side the least value of a row counts, because other work on a machine only adds to it. Rows that only one side has are counted.
Percentiles are printed and not judged: they are the noise that the least value leaves out.
"""

import json
import sys

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "kB": 1e3, "MB": 1e6}


def least(paths):
    """The least value of each row, by part and name."""
    values = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
        for row in rows:
            number, _, unit = row["measured"].partition(" ")
            if unit in UNITS:
                name = (row["part"], row["what"])
                value = float(number) * UNITS[unit]
                values[name] = min(value, values.get(name, value))
    return values


def main():
    arguments = sys.argv[1:]
    if "--" not in arguments[2:-1]:
        sys.exit(__doc__)
    limit, middle = float(arguments[0]), arguments.index("--")
    base, head = least(arguments[1:middle]), least(arguments[middle + 1 :])
    common = [name for name in head if base.get(name)]
    if not common:
        sys.exit("cannot compare: the two sides have no row in common")
    above = []
    for part, what in common:
        ratio = head[part, what] / base[part, what]
        is_judged = "p99" not in what
        if is_judged and ratio > limit:
            above.append(f"{part}: {what}: {ratio:.2f} x")
        print(f"{ratio:6.2f} x  {part}: {what}{'' if is_judged else ' (not judged)'}")
    print(f"{len(common)} rows; {len(base.keys() - head.keys())} only before, {len(head.keys() - base.keys())} only now")
    if above:
        sys.exit(f"above {limit} x:\n" + "\n".join(above))


main()
