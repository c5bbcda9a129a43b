#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deep_ep's names, signatures and refusals, as frameworks probe them. Makes no Buffer of several ranks, and none of a GPU."""
import importlib
import inspect
import os
import subprocess
import sys
import threading
import unittest
import weakref

import torch

import deep_ep
from deep_ranks import Comm
from nccl_ep import bindings
from nccl_ep.errors import NCCLEpError
from ranks import main

os.environ['NCCL_EP_DEVICE'] = 'host'  # read when the library is opened
SIGNATURES = {
    'Buffer': '''group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24,
        allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, *, explicitly_destroy=False, enable_shrink=False,
        comm=None, use_fabric=False''',
    'Config': '''num_sms=20, num_max_nvl_chunked_send_tokens=6, num_max_nvl_chunked_recv_tokens=256,
        num_max_rdma_chunked_send_tokens=6, num_max_rdma_chunked_recv_tokens=256''',
    'EventHandle': '',
    'EventOverlap': 'event=None, extra_tensors=None',
    'Buffer.set_num_sms': 'new_num_sms',
    'Buffer.capture': '',
    'Buffer.get_dispatch_config': 'num_ranks',
    'Buffer.get_combine_config': 'num_ranks',
    'Buffer.is_sm90_compiled': '',
    'Buffer.destroy': 'self',
    'Buffer.get_comm_stream': 'self',
    'Buffer.get_local_buffer_tensor': 'self, dtype, size=None, offset=0, use_rdma_buffer=False',
    'Buffer.get_dispatch_layout': '''self, topk_idx, num_experts, previous_event=None, async_finish=False,
        allocate_on_comm_stream=False''',
    'Buffer.dispatch': '''self, x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None,
        is_token_in_rank=None, num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1,
        num_worst_tokens=0, config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False''',
    'Buffer.combine': '''self, x, handle, topk_weights=None, bias=None, config=None, previous_event=None,
        async_finish=False, allocate_on_comm_stream=False''',
    'Buffer.get_low_latency_rdma_size_hint': 'num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts',
    'Buffer.clean_low_latency_buffer': 'self, num_max_dispatch_tokens_per_rank, hidden, num_experts',
    'Buffer.low_latency_dispatch': '''self, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts,
        cumulative_local_expert_recv_stats=None, dispatch_wait_recv_cost_stats=None, use_fp8=True, round_scale=False,
        use_ue8m0=False, async_finish=False, return_recv_hook=False''',
    'Buffer.low_latency_combine': '''self, x, topk_idx, topk_weights, handle, use_logfmt=False, zero_copy=False,
        async_finish=False, return_recv_hook=False, out=None, combine_wait_recv_cost_stats=None''',
    'Buffer.get_next_low_latency_combine_buffer': 'self, handle',
    'Buffer.low_latency_update_mask_buffer': 'self, rank_to_mask, mask=False',
    'Buffer.low_latency_query_mask_buffer': 'self, mask_status',
    'Buffer.low_latency_clean_mask_buffer': 'self',
}
IMPORT = '''
import deep_ep, torch, sys
assert deep_ep.utils.EventOverlap is deep_ep.EventOverlap
deep_ep.EventOverlap(deep_ep.EventHandle()).current_stream_wait()
deep_ep.Buffer.capture()
maps = open('/proc/self/maps').read()
print(torch.cuda.is_initialized(), 'libnccl_ep' in maps)
'''


def alone():
    """A communicator of one rank."""
    return Comm(0, 1, [None], threading.Barrier(1))


def found(path):
    thing = deep_ep
    for name in path.split('.'):
        thing = getattr(thing, name)
    return thing


class Surface(unittest.TestCase):
    def test_names(self):
        self.assertEqual(deep_ep.__version__, '1.2.1')
        self.assertIs(deep_ep.topk_idx_t, torch.int64)
        for module in (importlib.import_module('deep_ep.utils'), importlib.import_module('deep_ep.utils.event')):
            self.assertIs(module.EventHandle, deep_ep.EventHandle)
            self.assertIs(module.EventOverlap, deep_ep.EventOverlap)
        for name in ('ElasticBuffer', 'EPHandle', 'HybridEPBuffer'):  # frameworks would use what they find
            self.assertFalse(hasattr(deep_ep, name), name)
        self.assertEqual(deep_ep.Buffer.num_sms, 20)

    def test_signatures(self):
        for path, want in SIGNATURES.items():
            signature = inspect.signature(found(path))
            bare = signature.replace(return_annotation=inspect.Signature.empty, parameters=[
                p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()])
            self.assertEqual(str(bare), f'({" ".join(want.split())})', path)

    def test_import(self):
        """In a process of its own: neither a device nor the library is touched."""
        said = subprocess.run([sys.executable, '-c', IMPORT], check=True, capture_output=True, text=True).stdout
        self.assertEqual(said.split(), ['False', 'False'])

    def test_unknown_arguments(self):
        buffer = deep_ep.Buffer(None, comm=alone(), explicitly_destroy=True)
        for call in (buffer.dispatch, buffer.combine, buffer.get_dispatch_layout, deep_ep.Buffer):
            with self.assertRaisesRegex(TypeError, 'use_nvfp4'):
                call(torch.zeros(1, 8), 1, use_nvfp4=True)
        self.assertRaises(TypeError, deep_ep.Buffer, None, 0, 0, False, 24, True, False, True)  # forks differ on the eighth
        buffer.destroy()
        with self.assertRaisesRegex(RuntimeError, 'rank 0: the Buffer has been destroyed'):
            buffer.get_dispatch_layout(torch.zeros(1, 1, dtype=torch.int64), 1)

    def test_configurations(self):
        for ranks in (1, 2, 3, 7, 8, 16, 20, 160, 1000):
            for config in (deep_ep.Buffer.get_dispatch_config(ranks), deep_ep.Buffer.get_combine_config(ranks)):
                self.assertGreater(config.get_nvl_buffer_size_hint(14336, ranks), 0)
                self.assertEqual(config.get_rdma_buffer_size_hint(14336, ranks) > 0, ranks > 8)
                self.assertLess(config.get_nvl_buffer_size_hint(4096, ranks), config.get_nvl_buffer_size_hint(14336, ranks))
        self.assertRaises(AssertionError, deep_ep.Buffer.get_dispatch_config, 0)
        try:
            deep_ep.Buffer.set_num_sms(32)
            self.assertEqual(deep_ep.Buffer.get_dispatch_config(8).num_sms, 32)
            self.assertRaises(AssertionError, deep_ep.Buffer.set_num_sms, 5)
        finally:
            deep_ep.Buffer.set_num_sms(20)
            deep_ep.Buffer._wanted_sms = 0
        self.assertEqual(deep_ep.Config(**dict(num_sms=4, num_max_nvl_chunked_send_tokens=9)).num_sms, 4)

    def test_sms(self):
        """Every call has the SMs of its configuration, else those of set_num_sms, else what the library likes."""
        library, asked = bindings.library(), []
        plain = library.anyEpHandleSms
        library.anyEpHandleSms = lambda handle, *sms: asked.append(sms) or plain(handle, *sms)
        buffer = deep_ep.Buffer(None, comm=alone())
        x, idx = torch.ones(2, 64, dtype=torch.bfloat16), torch.zeros(2, 1, dtype=torch.int64)
        per_rank, _, per_expert, owned, _ = buffer.get_dispatch_layout(idx, 4)
        given = dict(num_tokens_per_rank=per_rank, num_tokens_per_expert=per_expert, is_token_in_rank=owned)

        def calls(**more):
            del asked[:]
            handle = buffer.dispatch(x, topk_idx=idx, **given, **more)[4]
            rows = buffer.dispatch(x, handle=handle, **more)[0]
            self.assertTrue(torch.equal(buffer.combine(rows, handle, **more)[0], x))
            return handle

        try:
            calls()
            self.assertEqual(asked, [])
            handle = calls(config=deep_ep.Config(6))
            self.assertEqual(asked, [(6, 0), (6, 6)])
            buffer.combine(x, handle, config=deep_ep.Config(8))
            buffer.combine(x, handle)
            self.assertEqual(asked[2:], [(6, 8), (6, 0)])
            deep_ep.Buffer.set_num_sms(12)
            calls()
            self.assertEqual(asked, [(12, 0), (12, 12)])
            calls(config=deep_ep.Config(2))
            self.assertEqual(asked, [(2, 0), (2, 2)])
        finally:
            library.anyEpHandleSms = plain
            deep_ep.Buffer.set_num_sms(20)
            deep_ep.Buffer._wanted_sms = 0

    def test_bias(self):
        """The library adds it: one combine, of the tokens' own type, and nothing is left for the next."""
        library, asked = bindings.library(), []
        plain, combine = library.anyEpHandleBias, library.ncclEpCombine
        buffer = deep_ep.Buffer(None, comm=alone())
        x, idx = torch.ones(2, 64, dtype=torch.bfloat16), torch.zeros(2, 1, dtype=torch.int64)
        per_rank, _, per_expert, owned, _ = buffer.get_dispatch_layout(idx, 4)
        handle = buffer.dispatch(x, topk_idx=idx, num_tokens_per_rank=per_rank, num_tokens_per_expert=per_expert,
                                 is_token_in_rank=owned)[4]
        library.anyEpHandleBias = lambda handle, biases, n: asked.append(n) or plain(handle, biases, n)
        library.ncclEpCombine = lambda *arguments: asked.append('combine') or combine(*arguments)
        try:
            self.assertTrue(torch.equal(buffer.combine(x, handle, bias=(x, x))[0], x * 3))
            self.assertEqual(asked, [2, 'combine', 0])
            self.assertRaises(NCCLEpError, buffer.combine, x, handle, bias=x.float())
            self.assertTrue(torch.equal(buffer.combine(x, handle)[0], x))
            self.assertEqual(asked[-3:], ['combine', 0, 'combine'])
        finally:
            library.anyEpHandleBias, library.ncclEpCombine = plain, combine

    def test_events(self):
        self.assertRaises(AssertionError, deep_ep.EventOverlap().current_stream_wait)
        with deep_ep.EventOverlap() as event:
            self.assertIsNone(event.event)
        buffer = deep_ep.Buffer(None, comm=alone())
        idx = torch.zeros(2, 1, dtype=torch.int64)
        for flags in (dict(async_finish=True), dict(previous_event=buffer.capture())):
            with self.assertRaisesRegex(AssertionError, 'allocate_on_comm_stream'):
                buffer.get_dispatch_layout(idx, 1, allocate_on_comm_stream=True, **flags)
        self.assertIsNone(buffer.get_dispatch_layout(idx, 1, previous_event=deep_ep.EventOverlap(None))[-1].event)
        self.assertIsNotNone(buffer.get_dispatch_layout(idx, 1, async_finish=True)[-1].event)
        self.assertIsNotNone(buffer.get_comm_stream())
        self.assertRaises(AssertionError, buffer.destroy)

    def test_scratch(self):
        """A caller may do with it what it likes."""
        buffer = deep_ep.Buffer(None, 1000, 4096, comm=alone())
        buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True).fill_(3)
        self.assertEqual(buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True).shape, (4096,))
        some = buffer.get_local_buffer_tensor(torch.int32, torch.Size((2, 3)), 8, use_rdma_buffer=True)
        self.assertEqual((some.shape, int(some[1, 2])), ((2, 3), 0x03030303))
        self.assertEqual(buffer.get_local_buffer_tensor(torch.float32).shape, (250,))
        self.assertRaises(AssertionError, buffer.get_local_buffer_tensor, torch.int8, torch.Size((1001,)))
        x = torch.randn(3, 8).bfloat16()
        layout = buffer.get_dispatch_layout(torch.zeros(3, 1, dtype=torch.int64), 1)
        rows = buffer.dispatch(x, num_tokens_per_rank=layout[0], num_tokens_per_expert=layout[2], is_token_in_rank=layout[3])[0]
        self.assertTrue(torch.equal(rows, x))

    def test_attributes(self):
        buffer = deep_ep.Buffer(None, 7, 9, comm=alone(), use_fabric=True)
        self.assertEqual((buffer.rank, buffer.group_size, buffer.num_nvl_bytes, buffer.num_rdma_bytes, buffer.low_latency_mode,
                          buffer.group), (0, 1, 7, 9, False, None))
        self.assertIsNotNone(buffer.runtime)
        self.assertIs(weakref.ref(buffer)(), buffer)


if __name__ == '__main__':
    main('__main__')
