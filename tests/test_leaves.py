"""The compiled files are leaves: without them polymax is slower, and right."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).parents[1]
COMPILERS = ("numba", "llvmlite", "triton")
# run in the copy: laws of mappings and sets, against differences and against each other
LAWS = """
import sys

import torch

import polymax as pm

assert pm.__file__.startswith(sys.argv[1]), "the copy is imported"
torch.manual_seed(0)
check = torch.autograd.gradcheck
x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
for mapping in (pm.softmax, pm.sparsemax, pm.entmax, pm.fusedmax, pm.oscarmax, pm.normmax):
    assert check(mapping, (x,)), mapping.__name__
    assert torch.allclose(mapping(x).sum(-1), torch.ones(2, dtype=torch.float64)), mapping.__name__

u, t = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 2, 2), (2, 2)))
chain = pm.Chain()
assert check(lambda u, t: pm.Marginals(chain).max(u, t), (u, t))
assert check(lambda u, t: tuple(pm.LocalMax(chain, pm.Gini())(u, t)), (u, t))
assert check(lambda u, t: pm.SparseMap(chain)(u, t).unary, (u, t))
best = pm.HardMax(chain)(u, t)
assert torch.allclose(chain.score(best, u, *[t.expand(2, 1, 2, 2)]), pm.HardMax(chain).max(u, t))

s = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
for tree in (pm.SpanningTree(), pm.ProjectiveTree()):
    for smooth in (pm.Marginals(tree), pm.SparseMap(tree)):
        (slope,) = torch.autograd.grad(smooth.max(s), s)
        assert torch.allclose(slope, smooth(s)), (tree, smooth)
assert pm.SparseMap(pm.Assignment())(s.detach()).sum().round() == 4

assert "numba" not in sys.modules, "nothing is compiled"
"""


def compiled(folder):
    """The files of the backend that import a compiler, or a file that does."""
    uses = {}
    for path in folder.glob("*.py"):
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import | ast.ImportFrom)]
        sources = {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
        uses[path.stem] = sources | {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    found = {name for name, sources in uses.items() if {s.partition(".")[0] for s in sources} & set(COMPILERS)}
    while True:
        more = {name for name, sources in uses.items() if {s.rpartition(".")[2] for s in sources} & found} - found
        if not more:
            return found
        found |= more


def test_the_library_without_its_leaves(tmp_path):
    copy = tmp_path / "polymax"
    shutil.copytree(HOME / "polymax", copy, ignore=shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc"))
    cut = [copy / "backend" / f"{name}.py" for name in compiled(copy / "backend")]
    for pattern in ("cpu*.py", "cuda*.py", "numba_*.py", "triton_*.py"):
        cut += (copy / "kernels").glob(f"*/{pattern}")
    assert len(cut) > 100
    for path in cut:
        path.unlink()
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", LAWS, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
