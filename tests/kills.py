"""Kills of a training at random moments: python -m tests.kills --count 30.

A small training is killed (SIGKILL) at random moments after its first epoch and resumed, with TMPDIR on another file
system where there is one. After each kill every file of the run must be whole; runs that come to their end must have
the weights, the optimiser, and the log of a training that was never stopped, bit for bit.
"""

import argparse
import csv
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import torch

import polymax_recipes as recipes
from polymax_recipes.seq2seq import numbers
from polymax_recipes.training import trainer  # noqa: F401  (processes are forked: what is imported here is there)
from polymax_recipes.training.digests import check_digest
from polymax_recipes.training.fit import train
from polymax_recipes.training.run import Run, read_digests, tensors

# so large that writing takes a good part of the time
OPTIONS = {"hidden": 256, "embedding": 256, "batch_size": 16, "longest": 12, "accelerator": "cpu", "lr": 0.003}
EPOCHS = 12
# seconds after which a training is taken to hang
PATIENCE = 240
ELSEWHERE = Path("/dev/shm")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=30, help="kills (30)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = campaign(Path(folder), given.count, given.seed, say=print)
    print(f"{given.count} kills, {runs} runs came to their end: all equal to the one that was never stopped")


def campaign(folder, count, seed=0, epochs=EPOCHS, options=OPTIONS, say=lambda text: None):
    """Kill trainings in a folder `count` times; how many came to their end, which at least one does."""
    chance = random.Random(seed)
    files = {part: [file] for part, file in zip(("train", "dev"), numbers.write(folder, train=80, dev=21))}
    whole, given = Run(folder / "whole"), {**options, "epochs": epochs}
    start = time.monotonic()
    finish(started(files, whole, given))
    seconds = time.monotonic() - start
    say(f"a training of {epochs} epochs takes {seconds:.1f} s; TMPDIR is {elsewhere(folder)}")
    killed = ended = 0
    while killed < count or not ended:
        run = Run(folder / f"killed{ended}")
        process = started(files, run, given)
        while not run.last.exists() and process.is_alive():
            time.sleep(0.005)
        while killed < count:
            moment = chance.choice(MOMENTS)
            moment(process, run, chance, seconds / epochs)
            if not process.is_alive():
                break
            process.kill()
            process.join()
            killed += 1
            left = check_files(run)
            say(f"kill {killed}, {moment.__doc__.lower()[:-1]}: after epoch {rows_of(run)[-1]['epoch']}{left}")
            process = started(files, run, {}, resume=True)
        finish(process)
        compare(run, whole)
        ended += 1
    return ended


def at_any_moment(process, run, chance, seconds):
    """At any moment."""
    process.join(chance.uniform(0, 4 * seconds))


def after_an_epoch(process, run, chance, seconds):
    """After another epoch."""
    before = run.log.read_bytes()
    while process.is_alive() and run.log.read_bytes() == before:
        time.sleep(0.002)
    process.join(chance.uniform(0, seconds))


def while_writing(process, run, chance, seconds):
    """While a file is written."""
    skipped = chance.randrange(8)
    while process.is_alive() and skipped >= 0:
        if any(name.endswith(".part") for name in os.listdir(run.path)):
            skipped -= 1
            time.sleep(chance.uniform(0, 0.004))


MOMENTS = (at_any_moment, after_an_epoch, while_writing, while_writing)


def started(files, run, given, resume=False):
    """A process that trains; it is forked, so that nothing is imported again."""
    process = multiprocessing.get_context("fork").Process(target=train_quietly, args=(files, run.path, given, resume))
    process.start()
    return process


def train_quietly(files, out, given, resume):
    """Train, with all that is printed in a file beside the run."""
    with out.with_suffix(".txt").open("a") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        os.environ["TMPDIR"] = str(elsewhere(out.parent))
        tempfile.tempdir = None
        torch.set_num_threads(1)
        train("seq2seq", {} if resume else files, out, given, resume)


def elsewhere(folder):
    """A directory on another file system, if there is one."""
    usable = os.access(ELSEWHERE, os.W_OK) and ELSEWHERE.stat().st_dev != folder.stat().st_dev
    return ELSEWHERE if usable else folder


def finish(process):
    """Wait for the end, which must be a good one."""
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"a training has not ended after {PATIENCE} s")
    assert process.exitcode == 0, f"a training ended with {process.exitcode}"


def check_files(run):
    """Every file of a run that was killed is whole; what was being written is named."""
    for file in run.files:
        if file.exists() and file.name in read_digests(run.path):
            check_digest(file)
    recipes.load(run.path)
    tensors(run.last)
    parts = sorted(file.name for file in run.path.glob("*.part"))
    return f", while {', '.join(parts)} was written" if parts else ""


def compare(run, whole):
    """The run is the one that was never stopped, to the bit, apart from times."""
    assert equal(tensors(run.weights), tensors(whole.weights)), "weights"
    ours, theirs = tensors(run.last), tensors(whole.last)
    for part in ("state_dict", "optimizer_states", "epoch", "global_step"):
        assert equal(ours[part], theirs[part]), part
    assert rows_of(run) == rows_of(whole), "log"
    assert {file.name for file in run.path.iterdir()} == {file.name for file in whole.path.iterdir()}, "files"
    check_files(run)


def rows_of(run):
    """The log without what depends on the machine."""
    with run.log.open(encoding="utf-8", newline="") as file:
        return [{name: row[name] for name in row if "second" not in name} for row in csv.DictReader(file)]


def equal(first, second):
    """True if all tensors and values within are."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


if __name__ == "__main__":
    sys.exit(main())
