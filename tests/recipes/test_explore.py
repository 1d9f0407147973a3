"""Pictures that move show what the library computes, and files of attention weights keep what is not zero."""

import io
import json
import math
import random
import re
import zipfile

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import polymax as pm
import polymax_recipes as recipes
from polymax_recipes.explore import AttentionFile, mappings, save_attention, structures
from polymax_recipes.explore.mappings import MAPPINGS
from polymax_recipes.explore.picture import DRAWING, drawing_module, page_file
from polymax_recipes.explore.scores import OTHER, SENTENCE, TAGS, initial_scores
from polymax_recipes.explore.structures import KINDS, SETS
from polymax_recipes.training.run import Config


@pytest.mark.parametrize("name", MAPPINGS)
def test_the_line_of_python_gives_the_weights(name):
    x = torch.tensor([0.3, 1.2, -0.4, 1.0], dtype=torch.float64)
    gamma = {"gamma": 0.5} if MAPPINGS[name].has_gamma else {}
    data = pm.explore.mapping(x, name, **gamma).data
    assert_close(
        torch.tensor(data["weights"], dtype=x.dtype), eval(data["code"], {"pm": pm, "x": x}), atol=1e-4, rtol=0
    )
    assert data["support"] == sum(weight > 0 for weight in data["weights"])
    if data["path"]:
        near = min(range(len(data["path"]["gammas"])), key=lambda k: abs(data["path"]["gammas"][k] - 0.5))
        assert_close(torch.tensor(data["path"]["weights"][near]), torch.tensor(data["weights"]), atol=0.05, rtol=0)


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        ([], {}, "n from 1 to 64"),
        ([[1.0]], {}, "n from 1 to 64"),
        (["a"], {}, "scores must be numbers"),
        ([float("nan")], {}, "finite"),
        ([1.0], {"name": "eval"}, "name must be one of softmax"),
        ([1.0], {"alpha": 2.0}, "sparsemax has no parameter 'alpha'"),
        ([1.0], {"gamma": "1"}, "gamma must be a number"),
        ([1.0], {"labels": ["a", "b"]}, "as many as scores, 1; got 2"),
    ],
)
def test_wrong_mappings_are_refused(scores, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        pm.explore.mapping(scores, **options)


def scores_of(name):
    columns = {"Chain": list(TAGS), "Alignment": OTHER.split(), "Assignment": OTHER.split()}.get(name)
    return initial_scores(name, SENTENCE.split(), columns or []), columns


@pytest.mark.parametrize(
    ("temperatures", "at"), [([0.25, 0.9, 3.0], 1), ([4.0, 2.0, 0.1], 1), ([1.0], 0), (None, None)]
)
def test_pictures_begin_near_temperature_1(temperatures, at):
    data = pm.explore.structure(pm.Chain(), torch.eye(2), torch.zeros(2, 2), temperatures=temperatures, quick=True).data
    if at is None:
        # of the default temperatures the nearest
        at = min(range(35), key=lambda k: abs(math.log(data["temperatures"][k])))
        assert 0 < at < 34
    assert data["at"] == at


@pytest.mark.parametrize("name", SETS)
def test_panels_are_results_of_smoothings(name):
    scores, columns = scores_of(name)
    set_ = SETS[name]()
    data = pm.explore.structure(set_, *scores, rows=SENTENCE.split(), columns=columns, temperatures=[0.5, 2.0]).data
    panels = {panel["name"]: panel for panel in data["panels"]}
    smoothings = {"SparseMap": pm.SparseMap(set_, gamma=2.0)}
    if not panels["Marginals"]["missing"]:
        smoothings["Marginals"] = pm.Marginals(set_, gamma=2.0)
    if not panels["LocalMax"]["missing"]:
        smoothings["LocalMax"] = pm.LocalMax(set_, pm.Gini(2.0))
    assert {"Marginals", "LocalMax"} - set(smoothings) <= {"SpanningTree": {"LocalMax"}}.get(
        name, {"Marginals", "LocalMax"}
    )
    for smoothing, smooth in smoothings.items():
        mu = smooth(*scores)
        first = mu[0] if isinstance(mu, tuple) else mu
        drawn = torch.zeros_like(first)
        for i, j, p in torch.tensor(panels[smoothing]["steps"][1]["parts"]).reshape(-1, 3).tolist():
            drawn[int(i), int(j)] = p
        assert_close(drawn, first, atol=6e-4, rtol=0)
        assert panels[smoothing]["steps"][1]["positive"] == int((first > 0).sum())
    best = set_.map(*scores)
    best = best[0] if isinstance(best, tuple) else best
    assert data["structures"][0] == best.nonzero().tolist()
    assert panels["HardMax"]["steps"][0]["probabilities"][0] == 1
    sparse = panels["SparseMap"]["steps"]
    assert all(sum(step["probabilities"]) <= 1 + 1e-3 for step in sparse)
    assert sparse[0]["size"] <= sparse[1]["size"]
    # all of it is JSON
    json.loads(pm.explore.structure(set_, *scores, temperatures=[1.0], quick=True).json())


def test_wrong_structures_are_refused():
    with pytest.raises(TypeError, match="must be one of Chain"):
        pm.explore.structure(pm.Ranking(), torch.zeros(3))
    for wrong, message in [
        (torch.zeros(3), "(n, n), not empty"),
        (torch.zeros(2, 3), "(n, n), not empty"),
        (torch.zeros(50, 50), "at most"),
        (torch.full((3, 3), torch.nan), "must be numbers"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            pm.explore.structure(pm.SpanTree(), wrong)
    with pytest.raises(ValueError, match="temperatures must be positive"):
        pm.explore.structure(pm.SpanTree(), torch.zeros(2, 2), temperatures=[0.0])
    assert set(KINDS) == {type(make()) for make in SETS.values()}


# the largest that is taken, and what is one larger; names of the modules of the page
LIMITS = {
    "chain": (pm.Chain(), (40, 12), [(41, 12), (40, 13)]),
    "alignment": (pm.Alignment(), (40, 40), [(41, 40), (40, 41)]),
    "spans": (pm.SpanTree(), (40, 40), [(41, 41)]),
    "tree": (pm.SpanningTree(), (41, 41), [(42, 42)]),
}


@pytest.mark.parametrize("name", LIMITS)
def test_structures_may_be_as_large_as_is_said(name):
    structure, largest, larger = LIMITS[name]

    def scores(shape):
        more = [torch.zeros(shape[1], shape[1])] if name == "chain" else []
        return [torch.zeros(shape), *more]

    assert structures.checked_scores(structure, scores(largest))[0].shape == largest
    for shape in larger:
        with pytest.raises(ValueError, match=re.escape(f"scores must be at most {largest}")):
            structures.checked_scores(structure, scores(shape))


def test_other_inputs_of_the_page_may_be_as_large_as_is_said():
    assert len(mappings.checked_scores([0.0] * 64)) == 64
    with pytest.raises(ValueError, match="from 1 to 64"):
        mappings.checked_scores([0.0] * 65)
    assert len(initial_scores("Alignment", ["a"] * 40, ["b"] * 40)[0]) == 40
    for rows, columns in ((41, 40), (40, 41)):
        with pytest.raises(ValueError, match="1 to 40 rows, and at most 40 columns"):
            initial_scores("Alignment", ["a"] * rows, ["b"] * columns)
    assert pm.explore.attention(torch.ones(2, 400)).data
    with pytest.raises(ValueError, match="from 1 to 400"):
        pm.explore.attention(torch.ones(2, 401))


def test_attention_of_models_is_kept_as_it_is(tmp_path):
    torch.manual_seed(0)
    weights = [pm.entmax(3 * torch.randn(1, 2, 600, 600)) for _ in range(2)]
    # smaller than float16 has numbers, and still not zero
    weights[0][0, 0, 0] = torch.zeros(600).index_fill(0, torch.tensor([5]), 1e-30)
    save_attention(tmp_path / "a.npz", weights, [f"t{k}" for k in range(600)])
    stored = AttentionFile.open(tmp_path / "a.npz")
    assert (stored.layers, stored.heads, len(stored.queries)) == (2, 2, 600)
    for layer in range(2):
        for head in range(2):
            starts, columns, values = stored.head(layer, head)
            full = torch.zeros(600, 600)
            full[
                torch.arange(600).repeat_interleave(torch.from_numpy(np.diff(starts.astype(np.int64)))),
                columns.astype(int),
            ] = torch.from_numpy(values.astype(np.float32))
            assert torch.equal(full > 0, weights[layer][0, head] > 0)
            assert_close(full, weights[layer][0, head], atol=6e-4, rtol=1e-3)
            assert stored.support[layer][head] == pytest.approx(float((full > 0).sum(1).float().mean()), abs=1e-3)
    # anything with numpy reads it
    with np.load(tmp_path / "a.npz", allow_pickle=False) as plain:
        assert plain["columns/1/0"].dtype == np.uint16
    size = (tmp_path / "a.npz").stat().st_size
    assert size < 4.2 * sum(int((layer > 0).sum()) for layer in weights) + 4 * 4 * 601 + 20_000


def test_heads_may_come_one_by_one(tmp_path):
    def heads():
        for k in range(3):
            yield torch.eye(4, 6) * 0.5 + (0.1 if k == 2 else 0.0)

    save_attention(tmp_path / "a.npz", [heads()], list("abcd"), list("uvwxyz"), least=0.2)
    stored = AttentionFile.open(tmp_path / "a.npz")
    assert (stored.heads, stored.keys, stored.support) == (3, list("uvwxyz"), [[1.0, 1.0, 1.0]])
    assert stored.header()["keys"] == list("uvwxyz")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "must have a layer"),
        ([torch.zeros(2, 3, 4)], "layer 0, head 0 must be (3, 3)"),
        ([torch.zeros(3, 3)], "must be (heads, queries, keys)"),
        ([torch.full((1, 3, 3), -1.0)], "none negative"),
        ([torch.full((1, 3, 3), torch.nan)], "finite"),
        ([torch.zeros(2, 3, 3), torch.zeros(1, 3, 3)], "layer 1 must have 2 heads; got 1"),
    ],
)
def test_wrong_weights_are_refused_and_leave_no_file(tmp_path, weights, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        save_attention(tmp_path / "a.npz", weights, ["a", "b", "c"])
    assert list(tmp_path.iterdir()) == []


def test_damaged_files_are_named(tmp_path):
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    save_attention(good, [pm.sparsemax(torch.randn(1, 3, 3))], ["a", "b", "c"])
    bad.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="not a file that save_attention wrote"):
        AttentionFile.open(bad)
    with pytest.raises(FileNotFoundError):
        AttentionFile.open(tmp_path / "none.npz")
    with np.load(good) as archive:
        parts = dict(archive)
    for name, change in [
        ("starts/0/0", lambda a: a[::-1].copy()),
        ("columns/0/0", lambda a: a + 7),
        ("weights/0/0", lambda a: a[:-1]),
        ("weights/0/0", lambda a: a.astype(object)),
    ]:
        with zipfile.ZipFile(bad, "w") as archive:
            for key, value in {**parts, name: change(parts[name])}.items():
                with archive.open(f"{key}.npy", "w") as opened:
                    np.lib.format.write_array(opened, value, allow_pickle=True)
        with pytest.raises(ValueError, match="layer 0, head 0 is damaged"):
            AttentionFile.open(bad).head(0, 0)
    with pytest.raises(IndexError, match="1 layers of 1 heads"):
        AttentionFile.open(good).head(0, 1)


def test_one_drawing_module_for_all():
    text = drawing_module()
    # imports fall away only because every one is a line of its own, of the modules listed
    for name in DRAWING:
        source = page_file(f"draw/{name}.js").decode()
        imports = re.findall(r"^import .*$", source, re.MULTILINE)
        assert all(re.fullmatch(r'import \{[^}]*\} from "\./(\w+)\.js";', line) for line in imports)
        used = {re.search(r"\./(\w+)\.js", line).group(1) for line in imports}
        assert used <= set(DRAWING[: DRAWING.index(name)])
    names = re.findall(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert "import " not in text.replace("important", "")


def test_a_picture_is_one_file(tmp_path):
    picture = pm.explore.attention(pm.sparsemax(torch.randn(3, 4)), ["</script>", "b", "c"])
    picture.write(tmp_path / "picture.html", title="a < b")
    text = (tmp_path / "picture.html").read_text()
    assert "a &lt; b" in text
    assert text.count("</script>") == 2
    assert not re.findall(r'(?:src|href)="', text)


def test_a_picture_is_a_widget():
    pytest.importorskip("anywidget")
    shown = pm.explore.mapping([1.0, 0.5]).widget()
    assert shown.data["kind"] == "mapping"
    assert "export default" in shown._esm


def _rewritten(good, bad, change, compression=zipfile.ZIP_STORED):
    """Copy an archive; `change` gives the bytes of each member, by its name and its bytes."""
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(bad, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))


def _header(text):
    return lambda name, data: npy(np.frombuffer(text.encode(), np.uint8)) if name == "header.npy" else data


def npy(array):
    """The bytes of an array as NumPy's format has them."""
    opened = io.BytesIO()
    np.lib.format.write_array(opened, array)
    return opened.getvalue()


def _form(text):
    return lambda name, data: (
        b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() if "weights" in name else data
    )


HOSTILE = {
    "compressed": (lambda name, data: data, zipfile.ZIP_DEFLATED),
    "compressed by bzip2": (lambda name, data: data, zipfile.ZIP_BZIP2),
    "compressed by lzma": (lambda name, data: data, zipfile.ZIP_LZMA),
    "deep": (_header("[" * 100_000), zipfile.ZIP_STORED),
    "deep inside": (_header('{"format": "polymax attention 1", "queries": ' + "[" * 5000 + "]" * 5000 + "}"), 0),
    "infinite": (_header('{"format": "polymax attention 1", "queries": ["a"], "keys": null, "layers": 1e999}'), 0),
    "many digits": (_header("1" * 5_000), 0),
    "a list": (_header("[]"), 0),
    "not text": (lambda name, data: npy(np.full(9, 255, np.uint8)) if name == "header.npy" else data, 0),
    "huge shape": (_form("{'descr': '<f2', 'fortran_order': False, 'shape': (999999999999,), }\n"), 0),
    "negative shape": (_form("{'descr': '<f2', 'fortran_order': False, 'shape': (-1,), }\n"), 0),
    "open literal": (_form("{'descr': '<f2', 'fortran_order': (((((((\n"), 0),
    "deep literal": (_form("(" * 9_000 + "\n"), 0),
    "objects": (_form("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }\n"), 0),
    "records": (_form("{'descr': [('a', '<f2')], 'fortran_order': False, 'shape': (3,), }\n"), 0),
    "short": (lambda name, data: data[:-1] if "weights" in name else data, 0),
    "empty": (lambda name, data: b"", 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_attention_files_are_refused(tmp_path, name):
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    save_attention(good, [pm.sparsemax(torch.randn(1, 3, 3))], ["a", "b", "c"])
    change, compression = HOSTILE[name]
    _rewritten(good, bad, change, compression)
    with pytest.raises(ValueError, match="damaged"):
        AttentionFile.open(bad).head(0, 0)


def test_small_files_that_unpack_to_much_are_refused_before_they_are_read(tmp_path):
    tracemalloc = pytest.importorskip("tracemalloc")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.npy", npy(np.zeros(1 << 26, np.uint8)))
    tracemalloc.start()
    with pytest.raises(ValueError, match="compressed"):
        AttentionFile.open(tmp_path / "bomb.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_attention_files_with_flipped_bytes_are_refused_or_read(tmp_path):
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    save_attention(good, [pm.sparsemax(torch.randn(2, 4, 4))], ["a", "b", "c", "d"])
    data, chance, refused = good.read_bytes(), random.Random(0), 0
    for _ in range(300):
        changed = bytearray(data)
        changed[chance.randrange(len(data))] = chance.randrange(256)
        bad.write_bytes(changed[: chance.choice([len(data), chance.randrange(len(data))])])
        try:
            AttentionFile.open(bad).head(0, 1)
        except ValueError as error:
            refused += "damaged" in str(error)
        except IndexError:
            refused += 1
    assert refused > 200
    with pytest.raises(ValueError, match="directory"):
        AttentionFile.open(tmp_path)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("mapping", {"scores": [10**400], "name": "softmax"}, "numbers"),
        ("mapping", {"scores": [1.0], "name": "softmax", "parameters": {"gamma": 10**400}}, "gamma must be below"),
        ("mapping", {"scores": [1.0], "name": "budgetmax", "parameters": {"k": -(10**400)}}, "k must be below"),
        ("structure", {"set": "SpanTree", "scores": [[[10**400]]]}, "numbers"),
        ("structure", {"set": "SpanTree", "scores": [[[1.0]]], "temperatures": [10**400]}, "temperatures"),
        ("structure", {"set": "SpanTree", "scores": [[[1.0]]], "temperatures": [1e-320]}, "temperatures"),
        ("structure", {"set": "Chain", "scores": [[[]], []]}, "not empty"),
        ("scores", {"set": "Chain", "rows": ["a"], "columns": []}, "columns of Chain must be"),
        ("scores", {"set": "Assignment", "rows": ["a"]}, "columns of Assignment must be"),
    ],
)
def test_wrong_requests_of_the_page_get_errors(kind, body, message):
    from polymax_recipes.explore.work import PageWork
    from polymax_recipes.serve.models import Models
    from polymax_recipes.serve.process import outcomes

    found = outcomes(PageWork(Models(())), kind, [body])[0]
    assert (found.status, message in found.message) == (400, True), found


def test_samples_come_with_the_package():
    """A parser, a tagger and attention: at most 2 MB, and they do what they were trained for."""
    from polymax_recipes.explore.grammar import sentences
    from polymax_recipes.explore.samples import samples

    runs, attention = samples()
    files = [file for folder in (*runs, attention.parent) for file in folder.iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 2_000_000
    given = sentences(20, seed=7)
    parsed, tagged = (recipes.load(run).results([one.words for one in given]) for run in runs)
    words = sum(len(one.words) for one in given)
    heads = sum(a == b for found, one in zip(parsed, given) for a, b in zip(found.heads, one.heads))
    tags = sum(a == b for found, one in zip(tagged, given) for a, b in zip(found.tags, one.entities))
    assert heads > 0.9 * words
    assert tags > 0.95 * words
    stored = AttentionFile.open(attention)
    assert all(len(stored.head(layer, head).columns) for layer in range(stored.layers) for head in range(stored.heads))
    # nothing of the machine on which they were trained
    assert all(
        "/" not in name for run in runs for names in Config.read(run / "config.json").files.values() for name in names
    )


def test_sentences_of_the_grammar_are_trees():
    from polymax_recipes.explore.grammar import sentences

    for one in sentences(200, seed=5):
        assert one.heads.count(0) == 1
        for word in range(1, len(one.words) + 1):
            seen = set()
            while word:
                assert word not in seen
                seen.add(word)
                word = one.heads[word - 1]
        assert all(
            tag == "O" or before[2:] == tag[2:] for before, tag in zip(one.entities, one.entities[1:]) if tag[0] == "I"
        )
