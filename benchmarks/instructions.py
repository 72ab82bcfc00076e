"""Instructions per call of the hot paths, counted by valgrind: the gate for changes that slow down.

    python benchmarks/instructions.py [--update] [--json]

Timings on shared machines swing by 25 %; the count of instructions is the same from run to run.
Each case of cases.py runs under callgrind with two repeat counts: the difference, divided, is what
one call takes. instructions.json holds what it took before, on one CPython, gcc, Cython and libc.
More than 5 % above it: exit 1. On other versions the figures are printed, and gate nothing;
`--update` writes a new baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import cases
import rig

BASELINE = Path(__file__).with_suffix(".json")
TOLERANCE = 0.05


def measure() -> dict[str, float]:
    """Instructions per call of each case."""
    if shutil.which("valgrind") is None:
        raise rig.Failed("valgrind is missing: Debian's package of that name has it")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                "valgrind", "--tool=callgrind", "--dump-before=getppid",
                f"--callgrind-out-file={folder}/counts", sys.executable, cases.__file__,
            ],
            env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            check=False,
            text=True,
        )  # fmt: skip
        # counts.1 is what ran before the first mark, the file without a number what ran last.
        counts = [
            int(re.findall(r"^(?:totals|summary): (\d+)", part.read_text("utf-8"), re.M)[-1])
            for part in sorted(Path(folder).glob("counts.*"), key=lambda path: int(path.suffix[1:]))
        ]
    if done.returncode != 0 or len(counts) != 3 * len(cases.CASES):
        raise rig.Failed(f"{len(counts)} marks: {done.stderr[-1000:]}")
    few, many = cases.REPEATS
    return {
        case.__name__: round((counts[at + 2] - counts[at + 1]) / (many - few), 1)
        for at, case in zip(range(0, len(counts), 3), cases.CASES, strict=True)
    }


def toolchain() -> dict[str, str]:
    """What the counts depend on besides our own code."""
    gcc = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, check=True, text=True)
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "gcc": gcc.stdout.strip(),
        "cython": metadata.version("Cython"),
        "libc": os.confstr("CS_GNU_LIBC_VERSION") or "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true", help="make this the baseline")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    try:
        found = measure()
    except rig.Failed as failure:
        print(f"instructions: {failure}", file=sys.stderr)
        return 1
    tools = toolchain()
    before: dict[str, Any] = json.loads(BASELINE.read_text("ascii")) if BASELINE.exists() else {}
    same_tools = before.get("toolchain") == tools
    known = before["instructions"] if same_tools else {}
    if options.update:
        text = json.dumps({"toolchain": tools, "instructions": found}, indent=2)
        BASELINE.write_text(text + "\n", "ascii")
        known = found
    worse = [
        name for name, count in found.items() if count > known.get(name, count) * (1 + TOLERANCE)
    ]
    if options.json:
        print(json.dumps({"toolchain": tools, "instructions": found, "baseline": known}))
    else:
        rows = []
        for case in cases.CASES:
            count = found[case.__name__]
            change = f"{count / known[case.__name__] - 1:+.1%}  " if case.__name__ in known else ""
            rows.append((case.__name__, f"{count:,.0f}", change + (case.__doc__ or "")))
        print(rig.table(rows))
        if not same_tools and not options.update:
            print("\nno baseline for these versions, nothing gated:", json.dumps(tools))
    if worse:
        print(f"instructions: over {TOLERANCE:.0%} more than before: {', '.join(worse)}",
              file=sys.stderr)  # fmt: skip
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
