#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core's own MoE layer with its flex dispatcher on deep_ep, against its alltoall and allgather dispatchers.

Every rank has the same router and experts of its own. Two batches go forward before the backward pass, so that two handles
are alive. Compared are outputs and the gradients of inputs, router and experts. At top-2 a token's sum has two
terms at most and no order, so all three agree to the bit. At top-8 they round at different places: a relative L2
distance below 1e-2.
"""
import os
import sys
import unittest

from deep_ranks import as_processes
from ranks import main

HIDDEN, EXPERTS, FFN = 64, 16, 32
FULL = unittest.skipUnless(os.environ.get('EP_TEST_FULL'), 'half a minute: with EP_TEST_FULL=1')


def without_gpu():
    """What Megatron asks of CUDA and TransformerEngine where neither is: a device, streams that are not, a copy."""
    import torch

    class Stream:
        def __getattr__(self, name):
            return lambda *_, **__: self

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

    only = Stream()
    torch.cuda.current_device = lambda: torch.device('cpu')
    torch.cuda.Stream = torch.cuda.Event = Stream
    torch.cuda.current_stream = lambda *_: only
    torch.cuda.stream = lambda stream: stream
    from megatron.core.transformer.moe import moe_utils, token_dispatcher
    moe_utils.te_general_gemm = None
    token_dispatcher.maybe_move_tensor_to_cpu = \
        lambda tensor, as_numpy=False, record_stream=False: tensor.numpy() if as_numpy and tensor is not None else tensor


def layer_of(rank, ranks, topk, dispatcher):
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.transformer_config import TransformerConfig
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=4, num_moe_experts=EXPERTS, moe_router_topk=topk,
        moe_ffn_hidden_size=FFN, expert_model_parallel_size=ranks, use_cpu_initialization=True,
        moe_token_dispatcher_type=dispatcher, moe_flex_dispatcher_backend='deepep', moe_router_dtype='fp32',
        moe_router_load_balancing_type='none', moe_aux_loss_coeff=0.0, add_bias_linear=False, bf16=True,
        params_dtype=torch.bfloat16, gated_linear_unit=True)
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False)
    layer = MoELayer(config, spec.submodules.mlp.submodules)
    for name, parameter in layer.named_parameters():
        g = torch.Generator().manual_seed(7 if 'router' in name else 100 + rank)
        scale = 1.0 if 'router' in name else 4.0 / HIDDEN ** 0.5
        parameter.data.copy_(torch.randn(parameter.shape, generator=g) * scale)
    return layer


def passes(rank, ranks, topk, dispatcher, tokens):
    """Outputs and gradients of this rank, by name."""
    import torch
    layer = layer_of(rank, ranks, topk, dispatcher)
    g = torch.Generator().manual_seed(1000 + rank)
    inputs = [torch.randn(n, 2, HIDDEN, generator=g).bfloat16().requires_grad_() for n in (tokens, 3 * tokens)]
    outputs = [layer(x)[0] for x in inputs]
    sum(y.float().pow(2).sum() for y in outputs).backward()
    return {**{f'output {i}': y.detach() for i, y in enumerate(outputs)},
            **{f'gradient of input {i}': x.grad for i, x in enumerate(inputs)},
            **{f'gradient of {name}': p.grad for name, p in layer.named_parameters()}}


def compare(who, got, want, exact):
    import torch
    assert got.keys() == want.keys() and len(got) > 4, who
    for name in want:
        a, b = got[name], want[name]
        assert (a is None) == (b is None), f'{who}: {name}'
        if a is None or torch.equal(a, b):
            continue
        distance = ((a.float() - b.float()).norm() / b.float().norm()).item()
        assert not exact and distance < 1e-2, f'{who}: {name} differs by {distance:.2e} in L2, relative'


def rank_main(me):
    rank, ranks = me.rank, me.ranks
    without_gpu()
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel(1, 1, expert_model_parallel_size=ranks)
    for topk in (2, 8):
        of = {name: passes(rank, ranks, topk, name, 8) for name in ('alltoall', 'allgather', 'flex')}
        dead = [name for name, t in of['flex'].items() if t is not None and not (t.isfinite().all() and t.any())]
        assert not dead, f'rank {rank}: zero or not finite: {dead}'
        for oracle in ('alltoall', 'allgather'):
            compare(f'rank {rank} of {ranks}, top-{topk}, flex against {oracle}', of['flex'], of[oracle], topk == 2)
    uneven = 4 + 8 * rank  # allgather needs as many on every rank
    compare(f'rank {rank} of {ranks}, {uneven} tokens', passes(rank, ranks, 2, 'flex', uneven),
            passes(rank, ranks, 2, 'alltoall', uneven), True)


class Layer(unittest.TestCase):
    def run_layer(self, ranks, **env):
        # The other dispatchers use gloo, which has no tensors of a GPU.
        as_processes(rank_main, ranks, counted=False, preload=['megatron.core.models.gpt.gpt_layer_specs'],
                     CUDA_VISIBLE_DEVICES='', PYTHONWARNINGS='ignore', **env)

    def test_two_ranks(self):
        self.run_layer(2)

    @FULL
    def test_four_ranks(self):
        self.run_layer(4)

    @FULL
    def test_two_nodes_of_one(self):
        self.run_layer(2, NCCL_EP_RANKS_PER_NODE='1')

    def test_two_nodes_of_two(self):
        self.run_layer(4, NCCL_EP_RANKS_PER_NODE='2')


if __name__ == '__main__':
    main(sys.modules['__main__'])
