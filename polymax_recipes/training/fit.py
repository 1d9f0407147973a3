"""Training from files to a run directory, by Lightning's Trainer, resumable to equal bits."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from polymax_recipes.doubts import doubt
from polymax_recipes.outputs import same_file, writable_directory
from polymax_recipes.training.digests import digest
from polymax_recipes.training.log import read_log
from polymax_recipes.training.monitor import check_asked
from polymax_recipes.training.run import (
    Config,
    Run,
    built,
    check_new,
    check_run,
    late_options,
    load,
    read_vocabularies,
    write_samples,
    write_vocabularies,
)
from polymax_recipes.training.settings import Learning, Running, flag, made, use_threads
from polymax_recipes.training.task import Report, Task, Trained, Vocabularies, measured, named

# files of the parts train, dev and test; a part may have several files
Files = Mapping[str, Sequence[Path]]
# SAMPLES inputs are kept to show: of the first SCANNED dev examples, those nearest to READABLE words in length
SAMPLES = 5
SCANNED = 200
READABLE = 9


def train(name: str, files: Files, out: Path, given: dict[str, Any], resume: bool = False) -> dict[str, Report]:
    """Train the task of a name on files["train"], keep the epoch that is best on files["dev"], and return the reports.

    `given` has options that replace defaults: of the task, of Learning and of Running. A directory with a run is
    refused unless the run is to be resumed: then the options that affect the weights are those of the run. The reports
    of the task are on "dev" and, if given, on "test"; they are empty in all processes but the first.
    """
    task, run = named(name), Run(out)
    check_options(task, given)
    check_files(files, run)
    config = resumed_configuration(task, files, run, given) if resume else new_configuration(task, files, run, given)
    if first_process():
        writable_directory(out)
    with use_threads(config.running.threads):
        return trained_on(task, config, run, resume, given)


def trained_on(task: Task, config: Config, run: Run, resume: bool, given: dict[str, Any]) -> dict[str, Report]:
    """Train by a configuration, and return the reports; a new run takes defaults that fit its data for options not in
    `given`.
    """
    parts = {part: task.read_as([Path(file) for file in names], config.options) for part, names in config.files.items()}
    used = {part: task.used(parts[part], part, config.options) for part in ("train", "dev")}
    if not resume:
        config = fitted_configuration(task, config, given, len(used["train"]))
    vocabularies = vocabularies_of(task, config, run, used["train"], resume)
    torch.manual_seed(config.learning.seed)
    model = built(task, config.options, vocabularies, run) if resume else task.model(config.options, vocabularies)
    if not run.last.exists():
        task.begin(model, config.options)
    from polymax_recipes.training.trainer import Data, Steps, fit, make_trainer

    encoded = {part: task.encode(used[part], vocabularies) for part in ("train", "dev")}
    if config.learning.monitor:
        check_asked(config.learning.monitor, model, encoded["dev"], task.logged)
    model.start(encoded["train"])
    trained = Trained(task, config.options, vocabularies, model)
    measures = (lambda: task.measures_to_log(trained, used["dev"])) if task.logged else None
    data = Data(encoded["train"], encoded["dev"], task.tokens(encoded["train"]), measures)
    steps = Steps(model, data, config.learning, config.running.workers)
    # make the trainer before writing, so that its errors leave no files behind
    trainer = make_trainer(steps, run, config)
    if first_process():
        run.path.mkdir(parents=True, exist_ok=True)
        run.clear()
        write_vocabularies(vocabularies, run.vocabulary)
        config.write(run.config)
        write_samples(samples_of(task, used["dev"]), run.samples)
    fit(trainer, steps, run)
    if not first_process():
        return {}
    for strange in task.doubts(read_log(run), encoded["dev"]):
        doubt(strange)
    trained = load(run.path, device="cuda" if config.running.on_cuda else "cpu")
    return {part: measured(trained, examples) for part, examples in parts.items() if part != "train"}


def samples_of(task: Task, dev: Sequence[Any]) -> list[Any]:
    """Return some inputs of dev to show: of medium length, so that they fit into tables and pictures."""
    found = [sample for example in dev[:SCANNED] if (sample := task.sample(example)) is not None]
    lengths = [len(sample.split() if isinstance(sample, str) else sample) for sample in found]
    near = sorted(range(len(found)), key=lambda k: (abs(lengths[k] - READABLE), k))
    return [found[k] for k in near[:SAMPLES]]


def fitted_configuration(task: Task, config: Config, given: dict[str, Any], count: int) -> Config:
    """Return the configuration with the defaults that a task has for so many examples, and print them."""
    chosen = {name: value for name, value in task.fitted(count).items() if name not in given}
    if not chosen:
        return config
    if first_process():
        flags = " ".join(f"{flag(name)} {value}" for name, value in chosen.items())
        print(f"defaults for {count} training examples: {flags}", flush=True)
    return replace(config, learning=replace(config.learning, **chosen))


def new_configuration(task: Task, files: Files, run: Run, given: dict[str, Any]) -> Config:
    """The configuration of a run that begins in an empty place."""
    if first_process():
        check_new(run)
    for part in ("train", "dev"):
        if not files.get(part):
            raise ValueError(f"--{part} must be given")
    options = made(task.Options, _own(task.Options, given))
    learning, running = made(Learning, _own(Learning, given)), made(Running, _own(Running, given))
    return Config(task.name, options, learning, running, _names(files), digest(files["train"]))


def resumed_configuration(task: Task, files: Files, run: Run, given: dict[str, Any]) -> Config:
    """The configuration of a resumed run: unchanged except for Running and for options that may change at any time."""
    stored = Config.read(check_run(run).config)
    if stored.running.strategy == "fsdp":
        from polymax_recipes.training.fully_sharded import recover

        recover(run.last)
    if stored.task != task.name:
        raise ValueError(f"{run.path} is a run of {stored.task}; got {task.name}")
    free = late_options(task)
    asked = {**asdict(stored.options), **asdict(stored.learning)}
    for name, value in given.items():
        if name in asked and name not in free and asked[name] != value:
            before = "not given" if asked[name] == "" else asked[name]
            raise ValueError(f"{flag(name)} was {before} when {run.path} began and cannot change; got {value}")
    names = {**stored.files, **_names(files)}
    if digest([Path(file) for file in names["train"]]) != stored.digest:
        raise ValueError(f"{', '.join(names['train'])}: not the text that {run.path} began with")
    # a process that is killed in its first epoch leaves no checkpoint; later there is always one
    epochs = 0 if run.last.exists() else len(read_log(run))
    if epochs > 1:
        raise FileNotFoundError(
            f"{run.last} is missing: {epochs} epochs were finished, and cannot go on without it; put back a copy, or "
            "train with another --out"
        )
    encoder = asked.get("encoder")
    if encoder and not run.last.exists() and "encoder" not in given:
        # the directory may come from a stranger, and transformers would look the name up on the network
        raise ValueError(f"{run.config} names the encoder {encoder!r}; to load it, give --encoder {encoder} once more")
    options = made(task.Options, _own(task.Options, given), stored.options)
    running = made(Running, _own(Running, given), stored.running)
    return Config(stored.task, options, stored.learning, running, names, stored.digest)


def check_options(task: Task, given: dict[str, Any]) -> None:
    """Raise a ValueError that names an unknown option."""
    names = [field.name for kind in (task.Options, Learning, Running) for field in fields(kind)]
    for name in given:
        if name not in names:
            raise ValueError(f"{flag(name)} is not an option of {task.name}; there are {', '.join(map(flag, names))}")


def vocabularies_of(task: Task, config: Config, run: Run, examples: list[Any], resume: bool) -> Vocabularies:
    """Return the vocabularies of the run if it has any, else those of the training examples."""
    if resume and run.vocabulary.exists():
        return read_vocabularies(run.vocabulary)
    return task.vocabularies(examples, config.options)


def first_process() -> bool:
    """Return True in the first process of all nodes, which alone writes files."""
    return not any(int(os.environ.get(rank, 0)) for rank in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def check_files(files: Files, run: Run) -> None:
    """Raise a ValueError if the run would write over a file of data."""
    for part, names in files.items():
        for file in names:
            if any(same_file(own, Path(file)) for own in run.files):
                raise ValueError(f"--{part}: {file} is a file of the run itself; it must be another one")


def _names(files: Files) -> dict[str, tuple[str, ...]]:
    # absolute: a run may be resumed from another place
    return {part: tuple(str(Path(file).absolute()) for file in chosen) for part, chosen in files.items() if chosen}


def _own(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in given.items() if name in names}
