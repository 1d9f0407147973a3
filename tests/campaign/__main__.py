"""The command: python -m tests.campaign --minutes M [--seed S] [--device cpu|cuda] [--only NAME] [--part K/N]
[--trial N].

Processes side by side share the operators out: the part K/N of a process has each N-th operator from the K-th on.
"""

import argparse
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from itertools import count
from pathlib import Path

import torch

# mappings are quick, and near ties are rare: so many of their trials for each one of a structure
TRIALS = 5
TESTS = Path(__file__).resolve().parents[1]


def operators():
    """Every operator by its name: a trial, which gives the rows it tried and what is wrong with them, and how often."""
    # tables and oracles are plain modules beside the tests
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    from tests.campaign import certificates, layers, mappings, matching, sequences, structures

    families = structures, certificates, sequences, layers, matching
    others = {name: (run, 1) for family in families for name, run in family.TRIALS.items()}
    return {**dict.fromkeys(mappings.MAPPINGS, (mappings.trial, TRIALS)), **others}


def attempt(trial, draw):
    """A trial; whatever it raises is a breach."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return trial(draw)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return 1, [f"raised {type(error).__name__}: {str(error)[:300]} ({Path(where.filename).name}:{where.lineno})"]


def campaign(minutes, seed=0, device="cpu", only="", trial=None, rounds=None, out=None, say=print, part=(0, 1)):
    """Run trials round by round, until the time is over or there were so many: rows, breaches, seconds by operator."""
    from tests.campaign.hostile import Draw

    every = operators()
    table = {name: each for name, each in every.items() if name == only or (only in name and only not in every)}
    if not table:
        raise SystemExit(f"--only must be part of one of {', '.join(every)}; got {only!r}")
    table = dict(list(table.items())[part[0] :: part[1]])
    rows, breaches, spent = Counter(), Counter(), Counter()
    begin = shown = time.monotonic()

    def over(turn):
        return turn == rounds if rounds is not None else time.monotonic() - begin > 60 * minutes

    def run(name, number):
        nonlocal shown
        start = time.monotonic()
        draw = Draw(seed, name, number, device)
        tried, wrong = attempt(table[name][0], draw)
        spent[name] += time.monotonic() - start
        rows[name] += tried
        breaches[name] += len(wrong)
        if wrong:
            _record(out, draw, wrong, say)
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            say(f"{(shown - begin) / 60:.1f} min: {rows.total()} rows, {breaches.total()} breaches; {name} {number}")

    try:
        if trial is not None:
            for name in table:
                run(name, trial)
            return rows, breaches, spent
        for turn in count():
            for name, (_, times) in table.items():
                if over(turn):
                    return rows, breaches, spent
                for k in range(times):
                    run(name, times * turn + k)
    except KeyboardInterrupt:
        say("interrupted")
    return rows, breaches, spent


def _record(out, draw, wrong, say):
    place = f"--seed {draw.seed} --device {draw.device} --only {draw.operator} --trial {draw.number}"
    command = f"python -m tests.campaign {place}"
    lines = [
        f"{draw.operator}: {', '.join(draw.notes)}",
        *(f"    {fault}" for fault in wrong[:8]),
        f"    {command}",
        "",
    ]
    if out is None:
        say("\n".join(lines))
    else:
        with open(out, "a") as file:
            file.write("\n".join(lines) + "\n")


def main(arguments=None):
    """Parse the command line, run, and print a table; 1 if there is a breach."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", default="", help="the operator of this name, or those whose names have it in them")
    parser.add_argument("--part", default="0/1", help="K/N: each N-th operator, from the K-th on")
    parser.add_argument("--rounds", type=int, help="one trial of each operator so many times, however long that takes")
    parser.add_argument("--trial", type=int, help="one trial alone, as a breach names it; breaches are printed")
    parser.add_argument("--out", default="campaign-breaches.txt", help="the file for breaches")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU")
    k, _, n = given.part.partition("/")
    if not (k.isdecimal() and n.isdecimal() and int(k) < int(n)):
        parser.error(f"--part must be K/N with K from 0 to N - 1; got {given.part!r}")
    out = None if given.trial is not None else given.out
    if out is not None:
        open(out, "w").close()
    rows, breaches, spent = campaign(
        given.minutes, given.seed, given.device, given.only, given.trial, given.rounds, out, part=(int(k), int(n))
    )
    print(f"{'operator':32}{'rows':>10}{'breaches':>10}{'seconds':>10}")
    for name in rows:
        print(f"{name:32}{rows[name]:>10}{breaches[name]:>10}{spent[name]:>10.1f}")
    print(f"{'all':32}{rows.total():>10}{breaches.total():>10}{spent.total():>10.1f}")
    if breaches.total() and out is not None:
        print(f"the breaches are in {out}")
    return 1 if breaches.total() else 0


if __name__ == "__main__":
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    raise SystemExit(main())
