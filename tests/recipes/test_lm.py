"""Language models: they see the past alone, count every byte once, and go on in the same way however they are asked."""

import json
import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import polymax as pm
import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.lm.data import NOTHING, Document, Windows
from polymax_recipes.lm.escapes import escaped, unescaped
from polymax_recipes.lm.generate import Sampling, continuations, draws, next_tokens
from polymax_recipes.lm.model import ATTENTIONS, LanguageModel
from polymax_recipes.lm.task import LanguageModelOptions, task
from polymax_recipes.lm.tokens import BOUNDARY, Bytes, Pieces, learned_pieces
from polymax_recipes.training import fit
from polymax_recipes.training.run import Run

TINY = LanguageModelOptions(size=16, layers=2, heads=2, context=24, longest=6)
TEXT = "the cat sat on the mat.\nthe dog sat on the log.\n" * 8


def model(options=TINY, sharp=1.0):
    torch.manual_seed(0)
    made = LanguageModel(options, len(Bytes())).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(sharp if parameter.dim() == 2 else 1)
    return made


def close(actual, expected, **how):
    torch.testing.assert_close(actual, expected, **{"atol": 2e-5, "rtol": 1e-4, **how})


@pytest.mark.parametrize("scaling", [False, True])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_later_token_changes_no_earlier_score(attention, scaling):
    made = model(replace(TINY, attention=attention, length_scaling=scaling), sharp=6.0)
    tokens = torch.randint(1, 257, (2, 17))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 5) % 257
    with torch.no_grad():
        before, after = made(tokens), made(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_learns(attention):
    made = model(replace(TINY, attention=attention)).train()
    batch = Windows([Document(TEXT, 24)], Bytes())[torch.arange(8)]
    optimizer = made.optimizer(0.02, 0.0)
    losses = []
    for _ in range(12):
        total, count = made.loss(batch)["loss"]
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        losses.append(float(total.detach() / count))
    assert losses[-1] < 0.7 * losses[0]
    if attention == "adaptive-entmax":
        assert made.alphas().shape == (2, 2)
        assert not torch.equal(made.alphas(), torch.full((2, 2), 1.5))
    else:
        assert made.alphas() is None


def test_right_tokens_are_counted_in_training_and_evaluation():
    """The tokens that are next have the largest score, one by one."""
    made = model(sharp=4.0)
    batch = Windows([Document(TEXT, 24)], Bytes())[torch.arange(8)]
    with torch.no_grad():
        # always a space, as which some tokens go on
        made.embedding.weight.zero_()
        made.embedding.weight[batch.targets[batch.targets != NOTHING].mode().values] = 1.0
        best = made(batch.inputs).argmax(-1)
    right = int(((best == batch.targets) & (batch.targets != NOTHING)).sum())
    count = int((batch.targets != NOTHING).sum())
    assert 0 < right < count
    for mode in (made.eval(), made.train()):
        assert [int(t) for t in mode.loss(batch)["accuracy"]] == [right, count]


@pytest.mark.parametrize("loss", ["entmax", "sparsemax"])
def test_sparse_losses_learn_and_rule_tokens_out(loss):
    options = replace(TINY, loss=loss)
    made = model(options).train()
    documents = [Document(TEXT, 24)]
    batch = Windows(documents, Bytes())[torch.arange(8)]
    optimizer = made.optimizer(0.02, 0.0)
    losses = []
    for _ in range(25):
        total, count = made.loss(batch)["loss"]
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        losses.append(float(total.detach() / count))
    assert losses[-1] < 0.5 * losses[0]
    made.eval()
    with torch.no_grad():
        scores = made(batch.inputs).flatten(0, 1)
    wanted = batch.targets.flatten()
    kept = wanted != NOTHING
    alpha = {"entmax": 1.5, "sparsemax": 2.0}[loss]
    report = task.evaluate(recipes.Trained(task, options, {}, made), documents)
    p = pm.entmax(scores[kept], alpha)
    found = {name: float(total.detach() / count) for name, (total, count) in made.loss(batch).items()}
    assert found["loss"] == pytest.approx(float(pm.entmax_loss(scores[kept], wanted[kept], alpha)), rel=1e-4)
    assert found["sparsemax_score"] == pytest.approx(float(pm.sparsemax_score(p, wanted[kept])), rel=1e-4)
    assert found["epsilon_nats"] == pytest.approx(math.log(pm.epsilon_perplexity(p, wanted[kept])), rel=1e-4)
    assert found["jensen_shannon"] == pytest.approx(float(pm.jensen_shannon(p, wanted[kept])), rel=1e-4)
    assert found["impossible_share"] == pytest.approx(float((p == 0).double().mean()), rel=1e-6)
    assert report["impossible_share"] > 0.5
    assert "perplexity" not in report
    assert report["epsilon_perplexity"] > 1
    drawn = continuations(made, [[1, 2, 3]] * 4, Sampling(6, 24, 1.0, 0), range(4))
    assert all((one.log_probs > -torch.inf).all() for one in drawn), "what has no probability is never drawn"


def test_attention_options_are_the_mappings_of_their_names():
    tokens = torch.randint(1, 257, (1, 20))
    found = {}
    for options in (
        *(replace(TINY, attention=name) for name in ATTENTIONS),
        replace(TINY, attention="entmax", alpha=2.0),
    ):
        with torch.no_grad():
            found[options.attention, options.alpha] = model(options, sharp=6.0)(tokens)
    close(found["entmax", 2.0], found["sparsemax", 1.5], atol=1e-3, rtol=1e-3)
    close(found["adaptive-entmax", 1.5], found["entmax", 1.5], atol=1e-3, rtol=1e-3)
    assert not torch.allclose(found["softmax", 1.5], found["entmax", 1.5])


def test_positions_are_relative():
    made = model(sharp=6.0)
    tokens = torch.randint(1, 257, (1, 12))
    with torch.no_grad():
        here, _ = made.states(tokens)
        there, _ = made.states(tokens, torch.arange(5, 17).unsqueeze(0))
        close(there, here)
        # and they matter
        assert not torch.allclose(made.states(tokens, torch.zeros(1, 12).long())[0], here, atol=1e-3)


@pytest.mark.parametrize("subwords", [0, 270])
def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(subwords):
    options = replace(TINY, subwords=subwords)
    vocabularies = task.vocabularies([Document(TEXT, 24)], options)
    made = task.model(options, vocabularies)
    with torch.no_grad():
        made.embedding.weight.zero_()
    trained = recipes.Trained(task, options, vocabularies, made.eval())
    report = task.evaluate(trained, [Document(TEXT, 24)])
    size = subwords or 257
    assert report["perplexity"] == pytest.approx(size, rel=1e-5)
    bits = report["tokens"] * math.log2(size) / len(TEXT.encode())
    assert report["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert report["tokens"] == len(TEXT.encode()) + 1 if not subwords else report["tokens"] < len(TEXT)


def test_windows_predict_every_token_once():
    texts = ["aé", "", "bcdef"]
    windows = Windows([Document(text, 4) for text in texts], Bytes())
    batches = [windows[rows] for rows in torch.arange(len(windows.sizes)).split(2)]
    wanted = [BOUNDARY]
    for text in texts:
        wanted += [*(byte + 1 for byte in text.encode()), BOUNDARY]
    predicted = [number for batch in batches for row in batch.targets.tolist() for number in row if number != NOTHING]
    assert predicted == wanted[1:]
    assert sum(int(batch.widths.sum()) for batch in batches) == len("".join(texts).encode())
    # what a window sees is what comes before
    inputs = torch.cat([batch.inputs[batch.targets != NOTHING] for batch in batches])
    assert inputs.tolist() == wanted[:-1]


HARD = "naïve\r\n\n\n  tabs\tand 🙂 </s> ends"


def test_tokens_can_write_every_text():
    pieces = Pieces(learned_pieces([TEXT], 270))
    for tokens in (Bytes(), pieces):
        for text in (HARD, "", TEXT):
            numbers = tokens.encode(text)
            assert tokens.decode(numbers.tolist()) == text
            assert BOUNDARY not in numbers
            assert int(tokens.widths[numbers].sum()) == len(text.encode())
    assert len(pieces) == 270
    assert len(pieces.encode(TEXT)) < 0.7 * len(TEXT)
    # half of a letter
    assert Bytes().decode([*Bytes().encode("é")[:1].tolist(), BOUNDARY]) == "�"


def test_escapes_make_one_line_and_come_back():
    assert escaped(HARD).count("\n") == escaped(HARD).count("\r") == 0
    assert unescaped(escaped(HARD)) == HARD
    assert unescaped(escaped("\\n\n\\")) == "\\n\n\\"
    for broken in ("\\", "a\\t"):
        with pytest.raises(ValueError, match="must be one of"):
            unescaped(broken)


PROMPTS = [[5], [7, 8, 9, 10, 11, 12, 13], [3, 4, 5], list(range(1, 40))]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_batch_goes_on_as_its_prompts_do(attention, temperature):
    made = model(replace(TINY, attention=attention), sharp=8.0)
    sampling = Sampling(longest=6, context=24, temperature=temperature, seed=3)
    together = continuations(made, PROMPTS, sampling, range(4))
    for number, prompt in enumerate(PROMPTS):
        (alone,) = continuations(made, [prompt], sampling, [number])
        assert alone.tokens == together[number].tokens
        close(alone.log_probs, together[number].log_probs, atol=1e-3)


def test_going_on_is_choosing_the_best_of_all_scores_again_and_again():
    made = model(sharp=8.0)
    (found,) = continuations(made, [[5, 6]], Sampling(longest=8, context=24), [0])
    tokens = [5, 6]
    for _ in range(8):
        with torch.no_grad():
            best = int(made(torch.tensor([tokens]))[0, -1].argmax())
        if best == BOUNDARY:
            break
        tokens.append(best)
    assert found.tokens == tokens[2:]
    with torch.no_grad():
        log_probs = made(torch.tensor([tokens]))[0].log_softmax(-1)
    places = torch.arange(1, len(tokens) - 1)
    close(found.log_probs, log_probs[places, torch.tensor(tokens)[places + 1]], atol=1e-3)


def test_going_on_beyond_the_context_forgets_the_oldest():
    made = model(replace(TINY, layers=1), sharp=8.0)
    # one layer sees no further than its keys: what it forgot is as if it had never been
    sampling = Sampling(longest=9, context=5)
    (found,) = continuations(made, [list(range(1, 9))], sampling, [0])
    tokens = [*range(1, 9), *found.tokens]

    def log_probs(context):
        with torch.no_grad():
            ends = [made(torch.tensor([tokens[k - context : k]]))[0, -1] for k in range(8, len(tokens))]
        return torch.stack(ends).log_softmax(-1)[torch.arange(len(ends)), torch.tensor(tokens[8:])]

    assert len(found.tokens) == 9
    close(found.log_probs, log_probs(5), atol=1e-4)
    # with a key more or less these would be other numbers
    for other in (4, 6):
        assert (log_probs(other) - found.log_probs).abs().max() > 0.01


def test_draws_follow_the_probabilities_and_the_seed():
    scores = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]])
    uniform = torch.rand(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for temperature in (0.5, 2.0):
        drawn = next_tokens(scores.expand(4000, 4), temperature, uniform)
        shares = torch.bincount(drawn, minlength=4) / 4000
        close(shares, (scores[0] / temperature).softmax(-1), atol=0.03, rtol=0)
        assert shares[2] == 0
    assert torch.equal(draws(1, 2, 5), draws(1, 2, 50)[:5])
    assert not torch.equal(draws(1, 2, 5), draws(2, 2, 5))
    assert not torch.equal(draws(1, 2, 5), draws(1, 3, 5))


def test_a_text_ends_at_its_boundary():
    made = model()
    with torch.no_grad():
        made.embedding.weight.zero_()
    # all scores are equal, so that the first token is the best
    (found,) = continuations(made, [[5]], Sampling(longest=9, context=24), [0])
    assert found.tokens == []
    assert len(found.log_probs) == 0


def test_statistics_are_those_of_the_attention():
    made = model(replace(TINY, attention="entmax"), sharp=6.0)
    seen, real = [], pm.nn.scaled_dot_product_attention
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pm.nn, "scaled_dot_product_attention", lambda *a, **k: (seen.append((a, k)), real(*a, **k))[1])
        tokens = torch.randint(1, 257, (2, 20))
        made(tokens)
    layers = made.statistics(tokens, tile=4)
    assert len(layers) == len(seen) == 2
    for found, ((query, key, *_), how) in zip(layers, seen):
        weights = pm.nn.attention_weights(query, key, is_causal=True, mapping=how["mapping"])
        wanted = pm.nn.AttentionStatistics.of_weights(weights, is_causal=True, tile=4)
        close(found.mean_support, wanted.mean_support)
        close(found.zeros, wanted.zeros)


def test_attentions_are_compared_on_one_text(tmp_path, monkeypatch, capsys):
    from benchmarks.language_model import main

    text, out = tmp_path / "text", tmp_path / "out.json"
    text.write_text(TEXT, encoding="utf-8")
    sizes = ["--context", "24", "--size", "16", "--layers", "1", "--heads", "2", "--batch-size", "2"]

    def measured(*arguments):
        monkeypatch.setattr("sys.argv", ["language_model", "--text", str(text), *sizes, *arguments])
        return main()

    assert measured("--steps", "12", "--held-out", "2", "--lr", "0.3", "--out", str(out)) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["attention"] for row in rows] == ["softmax", "entmax", "adaptive-entmax"]
    for row in rows:
        assert row["steps"] == 12
        assert row["curve"][-1]["bits"] < row["curve"][0]["bits"]
        assert row["bits_per_byte"] < math.log2(257) - 0.3
        assert row["tokens_per_second"] > 0
        assert len(row["mean_support_by_head"][0]) == 2
        assert (row["alpha_by_head"] is None) == (row["attention"] != "adaptive-entmax")
    assert "mean support" in capsys.readouterr().out
    assert measured("--seconds", "1", "--held-out", "99") == 1
    assert "--text must have more than" in capsys.readouterr().err
    assert measured() == 1
    assert "--steps or --seconds must be given" in capsys.readouterr().err


def test_losses_are_compared_on_one_text(tmp_path, monkeypatch):
    from benchmarks.word_losses import main

    text, out, weights = tmp_path / "text", tmp_path / "out.json", tmp_path / "weights"
    text.write_text(TEXT, encoding="utf-8")
    sizes = ["--context", "16", "--size", "8", "--batch-size", "4", "--subwords", "260", "--loss", "entmax"]

    def row(*arguments):
        command = ["word_losses", "lm", str(text), str(text), *sizes, *arguments, "--out", str(out)]
        monkeypatch.setattr("sys.argv", command)
        assert main() == 0
        (found,) = json.loads(out.read_text())["rows"]
        return found

    learned = row("--steps", "8", "--keep", str(weights))
    assert learned["steps"] == 8
    assert learned["words_per_second"] > 0
    assert 0 <= learned["impossible_share"] < 1
    # what goes on from weights without learning has learned what they had
    same = row("--steps", "8", "--start", str(weights), "--lr", "0")
    assert same["epsilon_perplexity"] == learned["epsilon_perplexity"]
    timed = row("--steps", "900", "--seconds", "0.001", "--start", str(weights), "--speed-only")
    assert timed["steps"] < 900
    assert "epsilon_perplexity" not in timed


# trained by the command

pytest.importorskip("lightning", reason="lightning is not installed")
SMALL = {"size": 16, "layers": 1, "heads": 2, "context": 32, "batch_size": 4, "lr": 0.02, "accelerator": "cpu"}


def invoke(*arguments, **options):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments], **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for part, text in (("train", TEXT), ("dev", TEXT[:90])):
        (folder / part).write_text(text, encoding="utf-8")
    return {part: [folder / part] for part in ("train", "dev")}


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    given = [item for name, value in SMALL.items() for item in (f"--{name.replace('_', '-')}", value)]
    parts = [item for part, (file,) in files.items() for item in (f"--{part}", file)]
    result = invoke("train", "lm", *parts, "--out", out, *given, "--attention", "adaptive-entmax", "--epochs", 2)
    assert result.exit_code == 0, result.output
    assert "perplexity" in result.output
    return out


def weights(out):
    return torch.load(out / "weights.pt", weights_only=True)


def test_a_stopped_run_goes_on_to_the_same_bits(run, files, tmp_path):
    out = tmp_path / "run"
    options = {**SMALL, "attention": "adaptive-entmax"}
    fit.train("lm", files, out, {**options, "epochs": 1})
    # what is for predictions does not change the training
    fit.train("lm", {}, out, {"epochs": 2, "window": 7, "temperature": 0.5}, resume=True)
    first, second = weights(out), weights(run)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert recipes.load(out).options.seen == 7


def test_commands_use_a_run(run, files, tmp_path):
    log = Run(run).log.read_text().splitlines()
    assert {"dev_loss", "dev_bits_per_byte", "tokens_per_second"} <= set(log[0].split(","))
    report = recipes.load(run).evaluate(*files["dev"])
    best = min(float(dict(zip(log[0].split(","), row.split(",")))["dev_loss"]) for row in log[1:])
    assert report["loss"] == pytest.approx(best, rel=1e-4)
    assert report["perplexity"] == pytest.approx(math.exp(report["loss"]))
    assert report["perplexity"] < 200
    assert {"zeros", "empty_tiles", "mean_support", "max_support"} <= report.keys()
    shown = invoke("evaluate", run, *files["dev"], "--set", "measured=0", "--set", "window=8")
    assert shown.exit_code == 0, shown.output
    assert "zeros" not in shown.output
    picture = tmp_path / "supports.png"
    drawn = invoke("plot-supports", run, *files["dev"], "--out", picture)
    assert drawn.exit_code == 0, drawn.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "layer 0" in drawn.output


def test_predictions_go_on_from_prompts(run, tmp_path):
    source, output = tmp_path / "prompts", tmp_path / "out"
    source.write_text("the cat\n\nwith \\ a backslash\n", encoding="utf-8")
    asked = ("--set", "longest=5", "--set", "temperature=1.0", "--set", "sampling_seed=4")
    assert invoke("predict", run, source, "--output", output, *asked).exit_code == 0
    written = output.read_text(encoding="utf-8").split("\n")
    assert len(written) == 4
    assert written[0].startswith("the cat")
    assert written[2].startswith("with \\\\ a backslash")
    # the same seed, alone or together; another one
    options = {"longest": 5, "temperature": 1.0, "sampling_seed": 4}
    trained = recipes.load(run, **options)
    prompts = ["the cat", "", "with \\ a backslash"]
    assert list(trained.predict(prompts)) == written[:3]
    assert list(recipes.load(run, **options, batch=1).predict(prompts)) == written[:3]
    assert list(recipes.load(run, **{**options, "sampling_seed": 5}).predict(prompts)) != written[:3]
    results = trained.results(prompts)
    assert [escaped(one.prompt + one.text) for one in results] == written[:3]
    assert all(len(one.tokens) == len(one.log_probs) <= 5 for one in results)
    # line ends in prompts
    (two,) = recipes.load(run, **options, escaped=True).predict([r"one\ntwo"])
    assert two.startswith(r"one\ntwo")
    assert recipes.load(run, **options).results(["one\ntwo"])[0].prompt == "one\ntwo"


def test_subwords_are_stored_with_the_run(files, tmp_path):
    fit.train("lm", files, tmp_path / "run", {**SMALL, "subwords": 270, "epochs": 1})
    trained = recipes.load(tmp_path / "run", longest=3)
    assert trained.model.embedding.weight.shape == (270, 16)
    (text,) = trained.predict(["the cat"])
    assert text.startswith("the cat")


TRAIN = ("train", "lm", "--dev", "DATA/dev", "--out", "NEW", "--train")
FAULTS = [
    ((*TRAIN, "DATA/train", "--size", 18, "--heads", 4), "--size must be a multiple of 8"),
    ((*TRAIN, "DATA/train", "--subwords", 9), "--subwords must be at least 257"),
    ((*TRAIN, "DATA/train", "--attention", "hope"), "--attention must be one of"),
    ((*TRAIN, "DATA/none"), "DATA/none: no such file or directory"),
    ((*TRAIN, "DATA/empty"), "DATA/empty:1: the file is empty"),
    ((*TRAIN, "DATA/latin"), "DATA/latin:2: UTF-8 expected"),
    (("predict", "RUN", "DATA/prompt", "--set", "escaped=true"), "DATA/prompt:1: \\t must be one of"),
    (
        ("predict", "RUN", "DATA/prompt", "--set", "context=9"),
        "--context cannot change after training; --columns, --window",
    ),
    (("plot-attention", "RUN", "--source", "a"), "RUN is a run of lm, which has no attention to draw"),
    (("plot-supports", "RUN", "DATA/dev", "--set", "measured=0", "--out", "NEW"), "--set measured must be at least 1"),
]


@pytest.mark.parametrize(("arguments", "message"), FAULTS)
def test_faults_are_one_line(run, files, tmp_path, arguments, message):
    folder = files["train"][0].parent
    (folder / "empty").write_text("")
    (folder / "latin").write_bytes(b"a\n\xff\n")
    (folder / "prompt").write_text("a\\t\n")

    def placed(text):
        return str(text).replace("RUN", str(run)).replace("DATA", str(folder)).replace("NEW", str(tmp_path / "new"))

    result = invoke(*map(placed, arguments))
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith(f"error: {placed(message)}")
    assert not (tmp_path / "new").exists()
