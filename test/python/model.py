# SPDX-License-Identifier: Apache-2.0
"""What ranks send, and what must arrive: small integers and powers of two, so that every sum is exact."""

TMAX, HIDDEN, TOPK, LOCAL = 6, 32, 3, 2


class Data:
    """Tokens, routing and weights of one rank; every rank can compute every rank's."""

    def __init__(self, rank, ranks, tokens, seed=0):
        experts = LOCAL * ranks
        self.rank, self.count = rank, tokens
        self.x = [[float((rank * 7 + t * 3 + h + seed) % 32 - 16) for h in range(HIDDEN)] for t in range(tokens)]
        # distinct experts; now and then none
        self.idx = [[-1 if (rank + t + k + seed) % 5 == 4 else (rank + t * 2 + k + seed) % experts for k in range(TOPK)]
                    for t in range(tokens)]
        self.weights = [[2.0 ** -((t + k) % 3) for k in range(TOPK)] for t in range(tokens)]

    def experts(self, t):
        return [e for e in self.idx[t] if e >= 0]

    def owners(self, t):
        return sorted({e // LOCAL for e in self.experts(t)})


def expert(row, e):
    """What expert e makes of a row."""
    return [v * (1 + e) for v in row]


def add(rows):
    """The sum of rows of HIDDEN values."""
    return [sum(values) for values in zip(*rows)] if rows else [0.0] * HIDDEN


def expert_rows(everyone, e):
    """(source, token, row) of an expert's rows, by source rank and token."""
    return [(d.rank, t, d.x[t]) for d in everyone for t in range(d.count) if e in d.experts(t)]


def rank_rows(everyone, rank):
    """(source, token, row) of a rank's rows, by source rank and token."""
    return [(d.rank, t, d.x[t]) for d in everyone for t in range(d.count) if rank in d.owners(t)]


def weighted_sum(d):
    """Every token's experts, weighted."""
    return [add([[v * w for v in expert(d.x[t], e)] for e, w in zip(d.idx[t], d.weights[t]) if e >= 0])
            for t in range(d.count)]


def owner_sum(d):
    """Every token's answers of its owners, who return the row times (1 + rank)."""
    return [add([expert(d.x[t], owner) for owner in d.owners(t)]) for t in range(d.count)]
