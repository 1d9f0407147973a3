"""Tag entities with BERT and a CRF, as a Hugging Face model trained by Trainer.

Names are random syllables, which a tokenizer cuts into word pieces; only the other
words tell persons from places. The BERT is small and starts from random weights.
The name of a pretrained encoder may stand in its place: "bert-base-cased". The
example needs the packages transformers and accelerate.
"""

import random
import tempfile

import torch
import transformers
from transformers import BertConfig, BertModel, BertTokenizerFast

from polymax.integrations.transformers import CRFForTokenClassification, word_labels

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
FRAMES = ["PER met PER in LOC", "PER left LOC for LOC", "the mayor of LOC is PER"]
FRAMES += ["in LOC people like PER and PER"]
SYLLABLES = ["ka", "ro", "li", "ne", "mo", "ta", "su", "vi"]
KNOWN = sorted({word for frame in FRAMES for word in frame.lower().split()})
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *KNOWN, *SYLLABLES]
PIECES += [f"##{syllable}" for syllable in SYLLABLES]


def sentence(draw: random.Random) -> tuple[list[str], list[int]]:
    """Return words and the numbers of their labels; a name has one or two words."""
    words, labels = [], []
    for word in draw.choice(FRAMES).split():
        if word in ("PER", "LOC"):
            for prefix in "BI"[: draw.choice([1, 2])]:
                words.append(
                    "".join(draw.choices(SYLLABLES, k=draw.choice([2, 3])))
                )
                labels.append(LABELS.index(f"{prefix}-{word}"))
        else:
            words.append(word)
            labels.append(0)
    return words, labels


def features(data: list, tokenizer: BertTokenizerFast) -> list[dict]:
    """Return tokens with labels of the first pieces of words, -100 at others."""
    tokens = tokenizer([words for words, _ in data], is_split_into_words=True)
    rows = word_labels(tokens, [row for _, row in data])
    pairs = zip(tokens["input_ids"], rows)
    return [{"input_ids": ids, "labels": row} for ids, row in pairs]


def right(model: CRFForTokenClassification, data: list) -> str:
    """Return the percentage of sentences whose labels are all right."""
    options = {"is_split_into_words": True, "padding": True, "return_tensors": "pt"}
    batch = tokenizer([words for words, _ in data], **options)
    found = model.decode(batch["input_ids"], batch["attention_mask"])
    gold = [[LABELS[k] for k in row] for _, row in data]
    share = sum(a == b for a, b in zip(found, gold)) / len(data)
    return f"{share:.0%} of sentences"


# the model is too small for several threads
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.set_seed(0)
draw = random.Random(0)
train, test = ([sentence(draw) for _ in range(count)] for count in (400, 100))
sizes = {"hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 96}
config = BertConfig(vocab_size=len(PIECES), num_hidden_layers=2, **sizes)
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/vocab.txt", "w") as file:
        file.write("\n".join(PIECES))
    tokenizer = BertTokenizerFast(vocab=f"{folder}/vocab.txt")
    encoder = BertModel(config)
    model = CRFForTokenClassification.from_encoder(encoder, LABELS, tokenizer)
    print("right before training:", right(model, test))
    arguments = transformers.TrainingArguments(
        f"{folder}/run",
        num_train_epochs=6,
        per_device_train_batch_size=32,
        learning_rate=4e-3,
        save_strategy="no",
        disable_tqdm=True,
        report_to=[],
    )
    collator = transformers.DataCollatorForTokenClassification(tokenizer)
    data = features(train, tokenizer)
    trainer = transformers.Trainer(model, arguments, collator, data)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    print("right after training: ", right(model, test))
    trainer.save_model(f"{folder}/saved")
    model = CRFForTokenClassification.from_pretrained(f"{folder}/saved")
    print("right when loaded:    ", right(model, test))
options = {"tokenizer": tokenizer, "aggregation_strategy": "simple"}
pipe = transformers.pipeline("token-classification", model, **options)
for each in pipe("in karo sumo people like vili and taneka rovi"):
    print(f"  {each['entity_group']} {each['score']:.2f} {each['word']}")
