# SPDX-License-Identifier: Apache-2.0
"""What DeepEP's calls must return, from the inputs of all ranks, in plain torch."""
import torch


class Input:
    """Tokens, experts and weights of one rank, which every rank can compute for every rank."""

    def __init__(self, rank, tokens, experts, topk, hidden, seed=0, whole=False):
        """whole: small integers, whose sums are exact in bf16."""
        g = torch.Generator().manual_seed(1000 * seed + rank)
        self.rank = rank
        self.x = torch.randn(tokens, hidden, generator=g).bfloat16()
        if whole:
            self.x = torch.randint(-8, 9, (tokens, hidden), generator=g).bfloat16()
        self.idx = torch.rand(tokens, experts, generator=g).argsort(1)[:, :topk].contiguous()
        self.idx[torch.rand(tokens, topk, generator=g) < 0.1] = -1
        self.weights = torch.rand(tokens, topk, generator=g)

    def owners(self, per_rank, ranks):
        """bool [T, R]: which ranks have an expert of a token."""
        owner = torch.where(self.idx >= 0, self.idx // per_rank, -1)
        return (owner[:, :, None] == torch.arange(ranks)).any(1)


class Model:
    def __init__(self, everyone, experts):
        self.everyone, self.experts, self.ranks = everyone, experts, len(everyone)
        self.local = experts // self.ranks
        self.owned = [d.owners(self.local, self.ranks) for d in everyone]

    def layout(self, rank):
        idx = self.everyone[rank].idx
        per_expert = torch.tensor([int((idx == e).sum()) for e in range(self.experts)], dtype=torch.int32)
        return self.owned[rank].sum(0).int(), per_expert, self.owned[rank]

    def rows(self, rank, values):
        """What arrives of a list of tensors, one of each rank: by source, then by token."""
        return torch.cat([v[o[:, rank]] for v, o in zip(values, self.owned)])

    def topk(self, rank):
        """Local experts and weights of the rows that arrive, in the columns of their source."""
        ids = self.rows(rank, [d.idx for d in self.everyone]) - rank * self.local
        here = (ids >= 0) & (ids < self.local)
        weights = self.rows(rank, [d.weights for d in self.everyone])
        return torch.where(here, ids, -1), torch.where(here, weights, 0.0)

    def counts(self, rank, alignment=1):
        ids = self.topk(rank)[0]
        counts = [int((ids == e).sum()) for e in range(self.local)]
        return [-(-n // alignment) * alignment for n in counts]

    def prefix(self):
        """int32 [R, R]: rows of sources 0 to i for rank j."""
        return torch.stack([o.sum(0) for o in self.owned]).cumsum(0).int()

    def sums(self, rank, answers, biases=()):
        """The rows of this rank's tokens, one tensor of rows per rank, in fp32: biases first, then ranks ascending."""
        total = torch.zeros(len(self.owned[rank]), answers[0].shape[1])
        for bias in biases:
            total += bias.float()
        for r in range(self.ranks):
            first = sum(int(o[:, r].sum()) for o in self.owned[:rank])
            mine = self.owned[rank][:, r]
            total[mine] += answers[r][first:first + int(mine.sum())].float()
        return total


def fp8(x, rounded):
    """DeepSeek's e4m3: bytes and one fp32 scale per 128 channels."""
    blocks = x.float().unflatten(1, (-1, 128))
    amax = blocks.abs().amax(2, keepdim=True).clamp(1e-4)
    if rounded:
        scales = torch.exp2(torch.ceil(torch.log2((amax / 448).double()))).float()
        values = blocks * (1 / scales)
    else:
        scales = amax * torch.tensor(1 / 448, dtype=torch.float32)
        values = blocks * torch.full_like(amax, 448).div(amax)  # torch's 448 / amax rounds twice
    return values.to(torch.float8_e4m3fn).flatten(1), scales.squeeze(2)


def exponents(scales):
    """Four consecutive scales, powers of two, as the bytes of an int32."""
    return (scales.contiguous().view(torch.int32) >> 23).to(torch.uint8).view(torch.int32)


def weighted(data, answers):
    """fp32 sum over k of weight * row; answers[t][k]: the row of that expert, or None."""
    total = torch.zeros(data.x.shape)
    for t, row in enumerate(answers):
        for k, value in enumerate(row):
            if value is not None:
                total[t] += data.weights[t, k] * value.float()
    return total.bfloat16()


def difference(x, y):
    """DeepEP's measure of closeness."""
    x, y = x.double() + 1, y.double() + 1
    return float(1 - 2 * (x * y).sum() / (x * x + y * y).sum()) if x.numel() else 0.0
