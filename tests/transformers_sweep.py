"""Every architecture of Transformers that a small random configuration can build: equal to eager, or refused.

    python -m tests.transformers_sweep                 all of them, some minutes
    python -m tests.transformers_sweep causal llama bloom

An architecture is built with `eager` and with `polymax_softmax` from the same parameters. Logits with padding on either
side, gradients, and generation with a cache, without one, with a static cache and by beams must be equal; with
`polymax_sparsemax` they must differ, and `check` must name the modules. What eager cannot do is left out.
"""

import argparse
import logging
import sys
import warnings
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))

from architectures import GENERATION, TASKS, architecture, batch, build, gradients, logits, size, tokens

from polymax.integrations.transformers import check, register

LARGEST = 15_000_000


def distance(a, b):
    """The largest difference, in units of the larger tensor's largest entry."""
    if a.shape != b.shape:
        return float("inf")
    a, b = a.double(), b.double()
    if not (a.isfinite().all() and b.isfinite().all()):
        return 0.0 if torch.equal(a.isnan(), b.isnan()) and a.isnan().all() else float("inf")
    return float((a - b).abs().max() / max(1e-6, a.abs().max(), b.abs().max()))


def differences(task, eager, ours):
    """What two models differ in, what could not be compared, and how much was."""
    found, left_out, compared = [], [], 0
    laws = {
        **{
            f"logits with padding on the {side}": (lambda m, s=side: logits(m, batch(task, s)))
            for side in ("left", "right")
        },
        "logits without padding": lambda m: logits(
            m, {**batch(task, "left"), "attention_mask": torch.ones(2, 7).long()}
        ),
        "gradients": lambda m: gradients(m, batch(task, "right")),
    }
    if eager.can_generate() and task != "masked":
        laws |= {name: (lambda m, o=options: tokens(m, task, o)) for name, options in GENERATION.items()}
    for name, law in laws.items():
        try:
            expected = law(eager)
        except Exception as error:
            left_out.append(f"{name}: {type(error).__name__}: {str(error)[:80]}")
            continue
        try:
            got = law(ours)
        except Exception as error:
            found.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        compared += 1
        if isinstance(got, dict):
            scale = max(1e-6, max(float(g.abs().max()) for g in expected.values()))
            off = max(float((got[key] - g).abs().max()) / scale if key in got else 9.0 for key, g in expected.items())
        else:
            off = distance(expected, got)
        if not off < 2e-4:
            found.append(f"{name} differ by {off:.2g}")
    return found, left_out, compared


def verdict(task, kind):
    """One word and its reason for an architecture."""
    try:
        model, config = architecture(task, kind)
        if (count := size(model, config)) > LARGEST:
            return "not built", f"{count:,} parameters"
        eager = build(model, config, "eager")
    except Exception as error:
        return "not built", f"{type(error).__name__}: {str(error)[:100]}"
    try:
        logits(eager, batch(task, "right"))
    except Exception as error:
        return "not built", f"eager: {type(error).__name__}: {str(error)[:100]}"
    try:
        ours = build(model, config, "polymax_softmax")
    except ValueError as error:
        return ("refused" if "cannot have" in str(error) else "WRONG"), str(error)[:100]
    except Exception as error:
        return "WRONG", f"{type(error).__name__}: {str(error)[:200]}"
    try:
        modules = check(ours)
    except ValueError as error:
        return ("no attention" if "it has none" in str(error) else "UNHEARD"), str(error)[:150]
    found, left_out, compared = differences(task, eager, ours)
    sparse = build(model, config, "polymax_sparsemax")
    if not distance(logits(eager, batch(task, "right")), logits(sparse, batch(task, "right"))) > 1e-4:
        found.append("sparsemax is no different")
    own = sorted({type(ours.get_submodule(name)).__name__ for name, x in modules.items() if x is None})
    said = [f"{compared} laws, {sum(x is not None for x in modules.values())} modules"]
    said += [f"own attention: {', '.join(own)}"] * bool(own) + [f"left out: {'; '.join(left_out)}"] * bool(left_out)
    return ("WRONG", "; ".join(found)) if found else ("equal", ". ".join(said))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="?", choices=list(TASKS), help="one kind of model")
    parser.add_argument("kinds", nargs="*", help="names of architectures, as in config.model_type")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    register()
    counts: dict[str, int] = {}
    for task in [given.task] if given.task else TASKS:
        for kind in given.kinds or TASKS[task]:
            word, reason = verdict(task, kind)
            counts[word] = counts.get(word, 0) + 1
            print(f"{task:8}{kind:28}{word:14}{' '.join(reason.split())}", flush=True)
    print(", ".join(f"{n} {word}" for word, n in sorted(counts.items())))
    sys.exit(any(word.isupper() for word in counts))


if __name__ == "__main__":
    main()
