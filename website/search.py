"""The index of the search: pages for users, with words that people type and pages do not have."""

import json

# pages that explain how polymax is built, to people who change it
LEFT_OUT = ("design.html", "design/", "changelog.html")
# words that people look for, by the place that answers
WORDS = {
    "speed.html#attention": "faster than softmax, speed of sparse attention, flash attention, long context",
    "getting-started.html": "pip install polymax, installation, requirements",
    "reference/structures.html#SpanningTree": "matrix tree theorem, matrix-tree theorem, Kirchhoff, Chu-Liu Edmonds",
    "reference/structures.html#ProjectiveTree": "Eisner algorithm, dependency tree",
    "reference/structures.html#Assignment": "Hungarian algorithm, linear sum assignment, matching",
    "reference/structures.html#Chain": "Viterbi, forward backward, HMM, linear chain CRF",
    "reference/mappings.html#sparsemax": "projection onto the simplex, sparse softmax",
    "reference/dynamic-time-warping.html#soft_dtw": "soft-DTW, soft dtw",
    "how-to/match.html": "scipy linear_sum_assignment, Hungarian matcher, bipartite matching, DETR, lapjv",
    "how-to/hugging-face.html": "BERT-CRF, BertCRF, NER with a CRF, token classification, biaffine parser",
    "how-to/onnx.html": "onnxruntime, ONNX export of sparsemax, entmax, CRF, Viterbi and CTC, opset",
    "alignments.html#times-of-words": "word timestamps, forced alignment of a transcript, whisperX, stable-ts",
    "alignments.html#tokens-and-durations": "TDT loss, token-and-duration transducer, Parakeet, NeMo",
    "alignments.html#transducers": "RNN-T, RNNT loss, fused joint network, transducer loss",
}


def prepared(index: str) -> str:
    """Return the index without the pages that are left out, and with the words that people look for."""
    found = json.loads(index)
    items = [item for item in found["items"] if not item["location"].startswith(LEFT_OUT)]
    missing = set(WORDS) - {item["location"] for item in items}
    if missing:
        raise ValueError(f"the search has words for places that are not there: {sorted(missing)}")
    for item in items:
        if item["location"] in WORDS:
            item["text"] = f"<p>{WORDS[item['location']]}</p> {item['text']}"
    return json.dumps({**found, "items": items}, ensure_ascii=False, separators=(",", ":"))
