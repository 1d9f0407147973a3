"""Find objects as a set, as DETR does: match queries to objects at the least cost.

A small network looks for filled and hollow rectangles with 16 queries, the cells of
4 x 4. `HungarianMatcher` says which query should find which object, for a batch in
one call. Matcher and losses serve any detector of this kind.
"""

import torch
from torch import Tensor, nn

import polymax as pm

CLASSES, OBJECTS, SIZE = 2, 4, 32


def overlaps(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return IoU and generalized IoU of boxes (..., 4): centers and sizes."""
    low, start = (x[..., :2] - x[..., 2:] / 2 for x in (a, b))
    high, stop = (x[..., :2] + x[..., 2:] / 2 for x in (a, b))
    shared = (high.min(stop) - low.max(start)).clamp(min=0).prod(-1)
    hull = (high.max(stop) - low.min(start)).prod(-1)
    union = a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - shared
    return shared / union, shared / union - (hull - union) / hull


class HungarianMatcher(nn.Module):
    """Matches queries to objects; costs of label, box and overlap have weights."""

    def __init__(self, label=1.0, box=5.0, giou=2.0) -> None:
        super().__init__()
        self.weights = label, box, giou

    @torch.no_grad()
    def forward(self, logits, boxes, labels, targets, counts) -> tuple[Tensor, ...]:
        """Return the image, the query and the object (pairs,) of all pairs.

        Shapes: logits (batch, q, classes + 1), boxes (batch, q, 4), labels
        (batch, t), targets (batch, t, 4), counts (batch,) of objects
        """
        label = logits.softmax(-1).take_along_dim(labels[:, None], -1)
        a, b = boxes[:, :, None], targets[:, None]
        terms = -label, (a - b).abs().sum(-1), -overlaps(a, b)[1]
        cost = sum(w * term for w, term in zip(self.weights, terms))
        lengths = torch.full_like(counts, boxes.shape[1]), counts
        queries, objects = pm.linear_sum_assignment(cost, lengths=lengths)
        image, pair = (queries >= 0).nonzero(as_tuple=True)
        return image, queries[image, pair], objects[image, pair]


def losses(logits, boxes, labels, targets, pairs) -> Tensor:
    """Return the sum of the losses of labels, of matched boxes and of overlaps."""
    image, query, thing = pairs
    wanted = torch.full_like(logits[..., 0], CLASSES, dtype=torch.long)
    wanted[image, query] = labels[image, thing]
    weight = torch.tensor([1.0] * CLASSES + [0.2], device=logits.device)
    found, true = boxes[image, query], targets[image, thing]
    apart = (found - true).abs().sum(-1) * 5 + (1 - overlaps(found, true)[1]) * 2
    return nn.functional.cross_entropy(logits.mT, wanted, weight) + apart.mean()


def draw(batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images, and the labels, boxes and counts of their objects."""
    counts = torch.randint(1, OBJECTS + 1, (batch,))
    labels = torch.randint(CLASSES, (batch, OBJECTS))
    # each quarter of an image has room for an object
    quarter = torch.tensor([[0, 0], [16, 0], [0, 16], [16, 16]])
    start = quarter + torch.randint(1, 7, (batch, OBJECTS, 2))
    size = torch.randint(5, 10, (batch, OBJECTS, 2))
    far = torch.arange(SIZE)[:, None] - start[:, :, None]
    across, down = far.min(size[:, :, None] - 1 - far).unbind(-1)
    depth = across[..., None, :].min(down[..., None])
    drawn = (depth == 0) | ((depth > 0) & (labels == 0)[..., None, None])
    drawn &= (torch.arange(OBJECTS) < counts[:, None])[..., None, None]
    boxes = torch.cat((start + size / 2, size), -1) / SIZE
    return drawn.any(1)[:, None].float(), labels, boxes, counts


torch.manual_seed(0)
network = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
    *(nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU()),
    *(nn.Conv2d(64, 4 + CLASSES + 1, 1), nn.Flatten(2)),
)
places = torch.cartesian_prod(torch.arange(4), torch.arange(4)).flip(1) / 4 + 1 / 8
start = torch.cat((places, torch.full((16, 2), 0.25)), 1).logit()
optimizer = torch.optim.Adam(network.parameters(), 3e-3)
matcher = HungarianMatcher()
for step in range(301):
    images, labels, targets, counts = draw(32)
    boxes, logits = network(images).mT.split((4, CLASSES + 1), -1)
    boxes = (boxes + start).sigmoid()
    pairs = image, query, thing = matcher(logits, boxes, labels, targets, counts)
    optimizer.zero_grad()
    losses(logits, boxes, labels, targets, pairs).backward()
    optimizer.step()
    if step % 100 == 0:
        right = logits[image, query].argmax(-1) == labels[image, thing]
        right &= overlaps(boxes[image, query], targets[image, thing])[0] > 0.5
        print(f"step {step:3d}: {right.float().mean():.0%} of {len(right)} objects")
