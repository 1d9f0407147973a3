"""Problems of every length, the model that learns them, and the grid of trainings."""

import json
from dataclasses import replace

import pytest
import torch

import polymax as pm
from benchmarks import archive, lengths, tables
from polymax_recipes.lengths import learn
from polymax_recipes.lengths.model import ATTENTIONS, Attention
from polymax_recipes.lengths.problems import PROBLEMS, AssociativeRecall, Examples, FlipFlop, LocalCount

TINY = learn.Setting("softmax", size=16, layers=1, heads=2, shortest=4, longest=6, steps=3, batch_size=4, warmup=1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def answers(name, source):
    """The target of a source, computed symbol by symbol."""
    if name == "copy":
        return source
    if name == "reverse":
        return source[::-1]
    if name == "sort":
        return sorted(source)
    if name == "2back":
        return [0, 0, *source[:-2]]
    if name == "count":
        found = []
        for k, symbol in enumerate(source):
            found.append(found[-1] + 1 if k and source[k - 1] == symbol else 0)
        return found
    if name == "flip-flop":
        pairs = list(zip(source[::2], source[1::2]))
        return [[bit for command, bit in pairs if command == 2][-1]]
    *_, asked = [k for k in range(len(source)) if source[k] == 2][:1]
    text, queries = source[:asked], source[asked:]
    found = []
    for k in range(0, len(queries), 3):
        (place,) = [p for p in range(len(text) - 4) if text[p : p + 3] == [*queries[k + 1 : k + 3], 1]]
        found += [2, *text[place + 3 : place + 5]]
    return found


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("length", [31, 40, 130])
def test_targets_answer_their_sources(name, length):
    problem = PROBLEMS[name]
    source, target = problem.draw(20, length, generator(length))
    for row, wanted in zip(source.tolist(), target.tolist()):
        assert answers(name, row) == wanted
        assert 0 <= min(row) <= max(row + wanted) < problem.tokens
    rounded = {"flip-flop": 2, "mqmtar": 12 + length // 6}
    assert abs(source.shape[1] - length) <= rounded.get(name, 0)
    again = problem.draw(20, length, generator(length))
    assert torch.equal(source, again.source)
    assert not torch.equal(source, problem.draw(20, length, generator(length + 1)).source)


def test_problems_have_the_chances_they_say():
    source, _ = FlipFlop(write=0.3).draw(2_000, 40, generator())
    share = (source[:, 2:-1:2] == 2).double().mean()
    assert abs(share - 0.3) < 0.02
    _, target = LocalCount(most=5).draw(2_000, 200, generator())
    assert target.max() == 4
    with pytest.raises(ValueError, match=r"length must have room for 4 pairs; got 20, which has 2"):
        AssociativeRecall().draw(1, 20, generator())
    with pytest.raises(ValueError, match="words must be at most 16"):
        AssociativeRecall(symbols=4, words=17).draw(1, 64, generator())


def test_only_targets_are_predicted():
    inputs, wanted = learn.batch_of(Examples(torch.tensor([[0, 1]]), torch.tensor([[5, 6]])))
    assert inputs.tolist() == [[learn.BEGIN, 3, 4, learn.BETWEEN, 8, 9]]
    nothing = learn.NOTHING
    assert wanted.tolist() == [[nothing, nothing, nothing, 8, 9, learn.END]]


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_is_that_of_dense_weights(attention, monkeypatch):
    torch.manual_seed(0)
    module = Attention(attention, 1.5, 8, 4).double()
    # two blocks of queries
    monkeypatch.setattr("polymax_recipes.lengths.model.ROWS", 5)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    query, key, value = module.entering(x).unflatten(-1, (3, 4, 2)).permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(-1, -2) / 2**0.5
    distance = torch.arange(9)[:, None] - torch.arange(9)
    hidden = distance < 0
    parts = []
    for mapping, some, slopes in (
        (module.of_content, slice(0, 2), 0.0),
        (module.of_distance, slice(2, 4), module.slopes),
    ):
        one = scores[:, some]
        if isinstance(mapping, pm.nn.LengthScaling):
            one, mapping = one * mapping.factors(torch.arange(1, 10))[..., None].double(), mapping.mapping
        masked = (one - slopes * distance).masked_fill(hidden, -torch.inf)
        parts.append(mapping(masked) @ value[:, some])
    wanted = module.leaving(torch.cat(parts, 1).transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x), wanted, rtol=1e-5, atol=1e-6)


def test_a_right_target_is_the_model_output():
    problem = PROBLEMS["copy"]
    model = learn.model_of(problem, replace(TINY, size=32, heads=4))
    quiet = lambda line: None  # noqa: E731
    learn.learn(model, problem, replace(TINY, steps=20, lr=0.01), "cpu", quiet)
    (found,) = learn.tested(model, problem, [2], 50, "cpu", quiet)
    examples = problem.draw(50, 2, generator(learn.TEST + 2))
    rows, _ = learn.batch_of(examples)
    written = rows[:, :4]
    with torch.no_grad():
        while written.shape[1] < 7:
            written = torch.cat([written, model(written)[:, -1:].argmax(-1)], 1)
    end = torch.full((50, 1), learn.END)
    wanted = torch.cat([examples.target + learn.SPECIAL, end], 1)
    assert found["exact"] == float((written[:, 4:] == wanted).all(1).double().mean())
    assert found["tokens"] >= found["exact"]


def test_models_that_differ_in_attention_see_the_same_examples(monkeypatch):
    problem, seen = PROBLEMS["sort"], []
    real = type(problem).draw
    monkeypatch.setattr(type(problem), "draw", lambda *a: seen.append(real(*a)) or seen[-1])
    for attention in ("softmax", "entmax"):
        setting = replace(TINY, attention=attention)
        curve = learn.learn(learn.model_of(problem, setting), problem, setting, "cpu", lambda line: None)
        assert curve[-1]["step"] == 3
    assert len(seen) == 6
    assert all(torch.equal(a.source, b.source) for a, b in zip(seen[:3], seen[3:]))


def test_a_grid_goes_on_and_is_kept(tmp_path, monkeypatch, capsys):
    runs = tmp_path / "runs"

    def command(*more):
        few = ["--steps", "2", "--count", "3", "--problem", "sort", "--attention", "asentmax", "--attention", "softmax"]
        monkeypatch.setattr("sys.argv", ["lengths", "small", str(runs), *few, "--machine", "here", *more])
        return lengths.main()

    monkeypatch.setattr(archive, "RESULTS", tmp_path / "results")
    assert command("--seeds", "1") == 0
    files = {file: file.stat().st_mtime_ns for file in runs.iterdir()}
    assert {file.name for file in files} == {"small-sort-asentmax-0.json", "small-sort-softmax-0.json"}
    assert command("--seeds", "2", "--keep") == 0
    assert len(list(runs.iterdir())) == 4
    assert all(file.stat().st_mtime_ns == when for file, when in files.items())
    (kept,) = (tmp_path / "results" / "here" / "lengths").iterdir()
    document = json.loads(kept.read_text())
    assert [row["seed"] for row in document["rows"]] == [0, 0, 1, 1]
    assert {"date", "commit", "recorded", "machine", "plan"} <= set(document)
    text = tables.table("lengths here sort")
    assert text.count("| asentmax |") == 1
    assert "2 seeds" in capsys.readouterr().out
    # the folder is of other trainings now
    monkeypatch.setattr(
        "sys.argv", ["lengths", "small", str(runs), "--steps", "5", "--problem", "sort", "--seeds", "1"]
    )
    assert lengths.main() == 1
    assert "with steps 2; got 5" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["lengths", "small", str(runs), "--problem", "reverse"])
    assert lengths.main() == 1
    assert "--problem: small has sort" in capsys.readouterr().err


@pytest.mark.parametrize("plan", lengths.PLANS)
def test_plans_have_problems_that_fit_their_lengths(plan):
    for name, chosen in lengths.PLANS[plan].items():
        setting = chosen.setting
        assert name in PROBLEMS
        assert chosen.lengths[0] == setting.longest
        for length in (setting.shortest, setting.longest, chosen.lengths[1]):
            assert chosen.problem.draw(1, length, generator()).target.numel()
        assert setting.size % setting.heads == 0
