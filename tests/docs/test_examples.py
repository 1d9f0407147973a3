"""Every example runs as it stands, and prints what it promises; so do the outputs that the site shows."""

import json
from pathlib import Path

import pytest
from forked import run_script

from website import shown

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "01_sparse_classifier.py": "sparsemax",
    "02_learn_alpha.py": "head 1",
    "03_own_regularizer.py": "mean distance falls by",
    "04_chain_crf.py": "may    SURNAME",
    "05_latent_tree.py": "sparse-expectation",
    "06_own_dynamic_program.py": "8 of 8 texts read as they were meant",
    "07_latent_estimators.py": "sparse expectation",
    "08_soft_dtw.py": "of their barycenter",
    "09_series_prediction.py": "soft-DTW has the shape better in",
    "10_entmax_heads.py": "entmax   100% of the letters copied",
    "11_entities.py": "F1 1.000",
    "12_parse_alternatives.py": "2 of all trees are possible",
    "13_match_boxes.py": "of 80 objects",
    "14_bert_crf.py": "karo sumo",
    "15_bert_parser.py": "hat is the nmod of girl",
    "16_distillation.py": "student, teacher's lists",
}
# the rest run as they stand
SHORTER = {"05_latent_tree.py": ["--steps", "20"], "07_latent_estimators.py": ["--steps", "20", "--seeds", "1"]}


def test_every_example_is_listed():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_output_on_the_site_is_of_this_code(name):
    """`python -m website.shown NAME` runs an example again."""
    file = ROOT / "examples" / name
    kept = json.loads(shown.OUTPUTS.read_text(encoding="utf-8"))[file.stem]
    assert kept["code"] == shown.digest(file.read_text(encoding="utf-8"))
    assert EXPECTED[name] in kept["output"]
    assert (shown.PICTURES / f"{file.stem}.png").exists() == (file.stem in shown.DRAWING)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name, tmp_path):
    code, written = run_script(ROOT / "examples" / name, *SHORTER.get(name, []), output=tmp_path / "output.txt")
    assert code == 0, written
    assert EXPECTED[name] in written


def test_an_example_that_fails_says_so(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import sys\n\nprint(sys.argv[1])\nassert __name__ != '__main__', 'no module'\n")
    code, written = run_script(broken, "--steps", output=tmp_path / "output.txt")
    assert code == 1
    assert written.startswith("--steps\n")
    assert "AssertionError: no module" in written
