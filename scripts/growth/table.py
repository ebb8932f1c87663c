"""Makes the tables of scripts/growth.sh.

Standard input has a line for each figure: part, size, filesystem, name of the figure, value, separated by tabs. Prints a table for
each part: a row for each figure and size, a column for each filesystem.
"""

import sys

TITLES = {
    "files": ("Files in a tree", "files"),
    "entries": ("Files in one directory", "files"),
    "large": ("A large file", "GiB"),
    "clients": ("Clients", "clients"),
    "members": ("Members of a share", "members"),
}
parts, systems = {}, []
for line in sys.stdin:
    part, size, system, name, value = line.rstrip("\n").split("\t")
    figures = parts.setdefault(part, {}).setdefault(name, {}).setdefault(int(size), {})
    figures[system] = float(value)
    if system not in systems:
        systems.append(system)

for part, names in parts.items():
    title, unit = TITLES[part]
    shown = [system for system in systems if any(system in values for sizes in names.values() for values in sizes.values())]
    print(f"### {title}\n\n| | {unit} | {' | '.join(shown)} |\n|---|---:|{'---:|' * len(shown)}")
    for name, sizes in names.items():
        for size, values in sorted(sizes.items()):
            cells = [f"{values[system]:,.0f}" if system in values and values[system] >= 100 else f"{values[system]:g}" if system in values else "" for system in shown]
            print(f"| {name} | {size:,} | {' | '.join(cells)} |")
    print()
