"""Parse with BERT and a biaffine head, as a Hugging Face model trained by Trainer.

The last noun says what "with" belongs to: a telescope is seen with, a hat is worn.
The loss is that of whole trees. The BERT is small and starts from random weights; a
pretrained encoder may stand in its place. The example needs the packages
transformers and accelerate.
"""

import random
import tempfile

import torch
import transformers
from transformers import BertConfig, BertModel, BertTokenizerFast

import polymax.integrations.transformers as heads

ARCS = ["root", "nsubj", "obj", "det", "case", "nmod", "obl"]
WORN, SEEN_WITH = ["hat", "beard"], ["camera", "telescope"]
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] she he saw met man girl the a with"
PIECES = [*PIECES.split(), *WORN, "camera", "tele", "##scope"]


def sentence(draw: random.Random) -> tuple[list[str], list[int], list[str]]:
    """Return words, the head of each, 0 for the root, and the labels of arcs."""
    noun = draw.choice([*WORN, *SEEN_WITH])
    words = [draw.choice(["she", "he"]), draw.choice(["saw", "met"])]
    words += ["the", draw.choice(["man", "girl"]), "with", "a", noun]
    head, label = (4, "nmod") if noun in WORN else (2, "obl")
    labels = ["nsubj", "root", "det", "obj", "case", "det", label]
    return words, [2, 0, 4, 2, 7, 7, head], labels


def features(data: list, tokenizer: BertTokenizerFast) -> list[dict]:
    """Return tokens, and heads and labels of arcs at the first pieces of words."""
    words, above, labels = zip(*data)
    tokens = tokenizer(list(words), is_split_into_words=True)
    labels = [[ARCS.index(label) for label in row] for row in labels]
    columns = (heads.word_labels(tokens, rows) for rows in (above, labels))
    names = "input_ids", "head_labels", "labels"
    return [dict(zip(names, row)) for row in zip(tokens["input_ids"], *columns)]


def accuracy(found: transformers.EvalPrediction) -> dict[str, float]:
    """Return the shares of words with the right head, and with its label too."""
    (above, labels), (gold, gold_labels) = found.predictions, found.label_ids
    same, words = above == gold, gold >= 0
    labelled = same & (labels == gold_labels)
    return {"UAS": same[words].mean(), "LAS": labelled[words].mean()}


# the model is too small for several threads
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.set_seed(0)
draw = random.Random(0)
train, test = ([sentence(draw) for _ in range(count)] for count in (300, 100))
sizes = {"hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 96}
config = BertConfig(vocab_size=len(PIECES), num_hidden_layers=2, **sizes)
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/vocab.txt", "w") as file:
        file.write("\n".join(PIECES))
    tokenizer = BertTokenizerFast(vocab=f"{folder}/vocab.txt")
    encoder = BertModel(config)
    model = heads.DependencyParserModel.from_encoder(encoder, ARCS, tokenizer)
    arguments = transformers.TrainingArguments(
        f"{folder}/run",
        num_train_epochs=3,
        per_device_train_batch_size=16,
        learning_rate=2e-3,
        save_strategy="no",
        disable_tqdm=True,
        report_to=[],
    )
    data = [features(rows, tokenizer) for rows in (train, test)]
    options = {"compute_metrics": accuracy}
    collator = heads.ParserCollator(tokenizer)
    trainer = transformers.Trainer(model, arguments, collator, *data, **options)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    scores = trainer.evaluate()
    print(f"UAS {scores['eval_UAS']:.0%}, LAS {scores['eval_LAS']:.0%}")
    trainer.save_model(f"{folder}/saved")
    model = heads.DependencyParserModel.from_pretrained(f"{folder}/saved")
for noun in ("telescope", "hat"):
    words = ["root", "he", "met", "the", "girl", "with", "a", noun]
    batch = tokenizer([words[1:]], is_split_into_words=True, return_tensors="pt")
    for word, arc in zip(words[1:], model.decode(**batch)[0]):
        print(f"  {word} is the {arc.label} of {words[arc.head]}")
