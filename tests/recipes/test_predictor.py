"""A trained model as a function of batches: it pickles, loads once in a process, and runs in Ray Data and Spark."""

import multiprocessing
import pickle
import sys

import pytest
from untrained import FILES, untrained

import polymax_recipes
from polymax_recipes.tag.task import task as tagging
from polymax_recipes.training import predictor as module
from polymax_recipes.training.digests import digest
from polymax_recipes.training.fit import check_options
from polymax_recipes.training.run import Config, Run, write_vocabularies
from polymax_recipes.training.settings import Learning, Running
from polymax_recipes.training.task import named

WORDS = "Anna\tNOUN\nsings\tVERB\nin\tADP\nRome\tNOUN\n\n"
TEXTS = ["Anna sings in Rome", "Rome sings", "Anna"]


def write_run(trained, files, out):
    """The directory of a run, with the weights of an untrained model."""
    import torch

    out.mkdir()
    run = Run(out)
    check_options(trained.task, {})
    names = {"train": tuple(map(str, files))}
    Config(trained.task.name, trained.options, Learning(), Running(), names, digest(files)).write(run.config)
    write_vocabularies(trained.vocabularies, run.vocabulary)
    torch.save(trained.model.state_dict(), run.weights)
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "a.tsv").write_text(WORDS, encoding="utf-8")
    trained = untrained("tag", tagging.read([folder / "a.tsv"]))
    return write_run(trained, [folder / "a.tsv"], folder / "run")


@pytest.fixture(scope="module")
def tags(run):
    return [result.tags for result in polymax_recipes.load(run).results(TEXTS)]


def test_it_takes_lists_and_columns(run, tags):
    label = polymax_recipes.predictor(run, "text", ["tags"])
    found = label(TEXTS)
    assert [one["tags"] for one in found] == tags
    assert found[1]["tokens"] == ["Rome", "sings"]
    columns = {"id": [1, 2, 3], "text": TEXTS}
    assert label(columns) == {**columns, "tags": tags}
    assert label({"id": [], "text": []}) == {"id": [], "text": [], "tags": []}
    every = polymax_recipes.predictor(run)(columns)
    assert {"tokens", "tags", "names"} <= every.keys()
    assert "probabilities" not in every, "a tensor"
    numpy = pytest.importorskip("numpy")
    tokens = {"tokens": [numpy.array(text.split(), dtype=object) for text in TEXTS]}
    assert polymax_recipes.predictor(run, "tokens", ["tags"])(tokens)["tags"] == tags


def test_it_takes_frames(run, tags):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"id": [7, 8, 9], "text": TEXTS}, index=[3, 4, 5])
    label = polymax_recipes.predictor(run, "text", ["tags"])
    found = label(frame)
    assert list(found["tags"]) == tags
    assert list(found.index) == [3, 4, 5]
    assert "tags" not in frame, "the batch itself is not changed"
    parts = list(label.frames(iter([frame[:1], frame[1:]])))
    assert [list(part["tags"]) for part in parts] == [tags[:1], tags[1:]]


def test_pairs_are_several_columns(tmp_path):
    file, text, (pair,), _ = FILES["entail"]
    (tmp_path / file).write_text(text, encoding="utf-8")
    trained = untrained("entail", named("entail").read([tmp_path / file]))
    out = write_run(trained, [tmp_path / file], tmp_path / "run")
    label = polymax_recipes.predictor(out, ["premise", "hypothesis"], ["label"])
    columns = {"premise": [pair[0]], "hypothesis": [pair[1]]}
    assert label(columns)["label"] == [trained.results([pair])[0].label]


def test_it_pickles_and_loads_once(run, tags, monkeypatch):
    loaded = []

    def counted(*args, **options):
        loaded.append(args)
        return load(*args, **options)

    load = module.load
    monkeypatch.setattr(module, "load", counted)
    module._loaded.cache_clear()
    label = polymax_recipes.predictor(run, "text", ["tags"])
    stored = pickle.dumps(label)
    assert len(stored) < 1000
    for _ in range(3):
        assert pickle.loads(stored)({"text": TEXTS})["tags"] == tags
    assert len(loaded) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot fork")
def test_processes_share_a_corpus(run, tags):
    label = polymax_recipes.predictor(run, "text", ["tags"])
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        found = pool.map(label, [{"text": [text]} for text in TEXTS])
    assert [one["tags"] for one in found] == [[one] for one in tags]


def test_errors_say_what_is_wrong(run):
    with pytest.raises(ValueError, match=r"no column 'text'; there are id"):
        polymax_recipes.predictor(run)({"id": [1]})
    with pytest.raises(ValueError, match=r"outputs must be among tokens, tags, .*; got 'tag'"):
        polymax_recipes.predictor(run, "text", ["tag"])({"text": TEXTS})
    with pytest.raises(ValueError, match=r"outputs must not be columns that the batch has; got tags"):
        polymax_recipes.predictor(run, "text", ["tags"])({"text": TEXTS, "tags": TEXTS})
    with pytest.raises(ValueError, match=r"--hidden cannot change after training"):
        polymax_recipes.predictor(run, hidden=3)(TEXTS)


def test_ray_data(run, tags):
    ray = pytest.importorskip("ray", reason="ray is not installed")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        rows = ray.data.from_items([{"id": k, "text": text} for k, text in enumerate(TEXTS)])
        label = polymax_recipes.predictor(run, "text", ["tags"])
        found = rows.map_batches(label, batch_format="pandas", batch_size=2).take_all()
    finally:
        ray.shutdown()
    assert [list(row["tags"]) for row in sorted(found, key=lambda row: row["id"])] == tags


def test_spark(run, tags, monkeypatch):
    # the Python of workers
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    spark = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        rows = spark.createDataFrame(list(enumerate(TEXTS)), "id long, text string")
        label = polymax_recipes.predictor(run, "text", ["tags"])
        found = rows.mapInPandas(label.frames, "id long, text string, tags array<string>").collect()
    finally:
        spark.stop()
    assert [row.tags for row in sorted(found, key=lambda row: row.id)] == tags
