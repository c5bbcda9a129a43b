#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""surface.py MESON.BUILD: the package's names, defaults and native structs, as users of nccl.ep know them. Needs no library."""
import ctypes
import dataclasses
import inspect
import os
import pickle
import re
import sys
import types
import unittest

import nccl_ep as ep
from nccl_ep import bindings, stream
from ranks import main

MESON_BUILD = sys.argv.pop(1)
NCCL_EP_ALL = '''Algorithm AllocConfig AllocFn CombineConfig CombineInputs CombineOutputs CombineQuantizationRecipe
DispatchConfig DispatchInputs DispatchOutputs DispatchQuantizationRecipe ExpertIdKind FreeFn get_lib_path get_lib_version
Group GroupConfig Handle HandleConfig Layout LayoutInfo OverflowPolicy PassDir Tensor ZeroCopyMode'''.split()
ENUMS = {
    'Algorithm': 'LOW_LATENCY HIGH_THROUGHPUT', 'Layout': 'UNSET EXPERT_MAJOR RANK_MAJOR FLAT', 'PassDir': 'FWD BWD',
    'OverflowPolicy': 'AUTO TRAP DROP', 'ZeroCopyMode': 'AUTO OFF ON', 'ExpertIdKind': 'AUTO LOCAL GLOBAL',
    'DispatchQuantizationRecipe': 'NONE FWD DS_FP8E3M4', 'CombineQuantizationRecipe': 'NONE NVFP4 MXFP8',
}
# Fields and defaults. The two last of GroupConfig are API 3's, which nccl.ep 0.1.0 has not yet.
FIELDS = {
    'AllocConfig': dict(alloc_fn=0, free_fn=0, context=0),
    'GroupConfig': dict(algorithm=0, num_experts=0, max_dispatch_tokens_per_rank=0, max_recv_tokens_per_rank=0,
                        max_token_bytes=0, rdma_buffer_size=0, num_qp_per_rank=0, num_channels=0, max_num_sms=0,
                        alloc=ep.AllocConfig(), enable_mask=False, timeout_ns=0, zero_copy=0, overflow_policy=0, num_topk=0,
                        dispatch_num_sms=0, combine_num_sms=0),
    'HandleConfig': dict(dispatch_output_per_expert_alignment=0),
    'DispatchConfig': dict(send_only=0, round_scales=0, pass_direction=0, quantization_recipe=0),
    'CombineConfig': dict(send_only=0, pass_direction=0, quantization_recipe=0),
    'LayoutInfo': dict(expert_counters=None, src_rank_counters=None, expert_offsets=None, recv_total_counter=None,
                       recv_topk_idx_kind=0),
    'DispatchInputs': dict(tokens=None, topk_weights=None, scales=None),
    'DispatchOutputs': dict(tokens=None, topk_weights=None, scales=None, topk_idx=None),
    'CombineInputs': dict(tokens=None, topk_weights=None, scales=None),
    'CombineOutputs': dict(tokens=None, topk_weights=None),
}
SIZES = dict(GroupConfig=120, HandleConfig=16, DispatchConfig=24, CombineConfig=20, LayoutInfo=48, DispatchInputs=32,
             DispatchOutputs=40, CombineInputs=32, CombineOutputs=24)


class Names(unittest.TestCase):
    def test_all(self):
        self.assertEqual(set(NCCL_EP_ALL) - set(ep.__all__), set())
        for name in ep.__all__:
            self.assertTrue(hasattr(ep, name), name)
            if name not in ('__version__', 'AllocFn', 'FreeFn'):  # types of ctypes
                self.assertTrue(getattr(ep, name).__doc__, f'{name} has no docstring')

    def test_enums(self):
        for name, members in ENUMS.items():
            self.assertEqual({m.name: m.value for m in getattr(ep, name)}, {m: i for i, m in enumerate(members.split())})

    def test_modules(self):
        import importlib
        for name in ('allocator', 'enums', 'group', 'handle', 'tensor', 'interop', 'interop.torch'):
            importlib.import_module('nccl_ep.' + name)

    def test_signatures(self):
        for function, want in ((ep.Group.create, '(comm, config)'),
                               (ep.Group.create_handle, '(self, layout, topk_idx, *, layout_info=None, config=None, stream)'),
                               (ep.Handle.update, '(self, topk_idx, *, layout_info=None, stream)'),
                               (ep.Handle.dispatch, '(self, inputs, outputs, *, layout_info=None, config=None, stream)'),
                               (ep.Handle.combine, '(self, inputs, outputs, *, config=None, stream)'),
                               (ep.Handle.complete, '(self, *, config=0, stream)'),
                               (ep.Tensor, '(buffer, *, dtype=None, shape=None, window=None, window_offset=None)'),
                               (ep.Communicator.init, '(nranks, rank, unique_id, config=None)'),
                               (ep.get_unique_id, '(empty=False)')):
            got = inspect.signature(function)
            bare = got.replace(parameters=[p.replace(annotation=inspect.Parameter.empty) for p in got.parameters.values()],
                               return_annotation=inspect.Signature.empty)
            self.assertEqual(str(bare), want, function)

    def test_version(self):
        """One version: of the project, the package, and the wheel of nccl.ep, which wants exactly this nccl_ep."""
        with open(MESON_BUILD) as f:
            self.assertEqual(ep.__version__, re.search(r"version : '([^']*)'", f.read()).group(1))
        with open(os.path.join(os.path.dirname(os.path.abspath(MESON_BUILD)), 'python', 'nccl', 'pyproject.toml')) as f:
            self.assertEqual(re.findall(r"(?:^version = |== )'?([\d.]+)'", f.read(), re.M), [ep.__version__] * 2)


class Configs(unittest.TestCase):
    def test_fields(self):
        for name, fields in FIELDS.items():
            kind = getattr(ep, name)
            made = kind()
            self.assertEqual([f.name for f in dataclasses.fields(kind)], list(fields), name)
            self.assertEqual({f: getattr(made, f) for f in fields}, fields, name)
            self.assertRaises(TypeError, kind, 1)                 # keyword-only
            self.assertRaises(TypeError, kind, no_such_field=1)

    def test_native(self):
        for name, size in SIZES.items():
            native = getattr(ep, name)()._lowpp
            self.assertEqual((native.size_, native.magic, ctypes.sizeof(native)), (size, 0xC00FFFEE, size), name)
            self.assertEqual(native.ptr, ctypes.addressof(native))
        self.assertEqual(ep.GroupConfig()._lowpp.version, 3)
        self.assertEqual(ctypes.sizeof(ep.AllocConfig()._lowpp), 24)

    def test_values(self):
        config = ep.GroupConfig(algorithm=ep.Algorithm.HIGH_THROUGHPUT, num_experts=8, rdma_buffer_size=1 << 40,
                                alloc=ep.AllocConfig(alloc_fn=5, free_fn=6, context=7), enable_mask=True,
                                timeout_ns=1 << 50, zero_copy=ep.ZeroCopyMode.ON, combine_num_sms=3)
        native = config._lowpp
        self.assertEqual((native.algorithm, native.num_experts, native.rdma_buffer_size, native.enable_mask,
                          native.timeout_ns, native.zero_copy, native.combine_num_sms), (1, 8, 1 << 40, 1, 1 << 50, 2, 3))
        self.assertEqual((native.alloc.alloc_fn, native.alloc.free_fn, native.alloc.context), (5, 6, 7))
        self.assertEqual(ep.DispatchConfig(quantization_recipe=ep.DispatchQuantizationRecipe.FWD)._lowpp.quant_recipe, 1)
        tensor = ep.Tensor(0x1000, dtype=ep.NcclDataType.FLOAT32, shape=(1,))
        self.assertEqual(ep.DispatchInputs(scales=tensor)._lowpp.scales, tensor.ptr)
        for wrong in (-1, 1 << 32):
            self.assertRaisesRegex(OverflowError, 'GroupConfig.num_experts', ep.GroupConfig, num_experts=wrong)
        self.assertRaisesRegex(TypeError, 'DispatchInputs.tokens', ep.DispatchInputs, tokens='x')

    def test_assignment(self):
        """A field reaches the native struct when the object is made; `_lowpp` does always."""
        info = ep.LayoutInfo()
        info.recv_topk_idx_kind = ep.ExpertIdKind.GLOBAL
        self.assertEqual(info._lowpp.recv_topk_idx_kind, 0)
        info._lowpp.recv_topk_idx_kind = int(ep.ExpertIdKind.GLOBAL)
        view = type(info._lowpp).from_ptr(info._lowpp.ptr)
        self.assertEqual((view.recv_topk_idx_kind, view.size_), (2, 48))
        copy = type(info._lowpp).from_data(bytearray(bytes(info._lowpp)))
        self.assertEqual(copy.recv_topk_idx_kind, 2)
        self.assertEqual(ep.DispatchConfig(send_only=1), ep.DispatchConfig(send_only=1))

    def test_numpy_dtypes(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.assertRaises(ImportError, lambda: bindings.tensor_dtype)
        else:
            self.assertEqual(bindings.tensor_dtype.itemsize, 48)
            self.assertEqual(bindings.group_config_dtype.fields['timeout_ns'][1], 88)
        self.assertRaises(AttributeError, lambda: bindings.no_such_dtype)


class Streams(unittest.TestCase):
    def test_kinds(self):
        self.assertEqual(stream.stream_ptr(None), 0)
        self.assertEqual(stream.stream_ptr(77), 77)
        self.assertEqual(stream.stream_ptr(types.SimpleNamespace(__cuda_stream__=lambda: (0, 78))), 78)
        self.assertEqual(stream.stream_ptr(types.SimpleNamespace(cuda_stream=79)), 79)
        for wrong in (True, 'x', object(), 1.0):
            self.assertRaises(TypeError, stream.stream_ptr, wrong)

    def test_required(self):
        self.assertRaises(TypeError, ep.Handle(1).complete)


class Arguments(unittest.TestCase):
    def test_wrong_class(self):
        """C cannot tell one struct from another: a wrong one must not get there. No library is opened for it."""
        handle, group, idx = ep.Handle(1), ep.Group(1), ep.Tensor(bytearray(4))
        inputs, outputs = ep.DispatchInputs(), ep.DispatchOutputs()
        for needed, call in (
                ('DispatchInputs', lambda: handle.dispatch(outputs, outputs, stream=0)),
                ('DispatchOutputs', lambda: handle.dispatch(inputs, inputs, stream=0)),
                ('LayoutInfo', lambda: handle.dispatch(inputs, outputs, layout_info=inputs, stream=0)),
                ('DispatchConfig', lambda: handle.dispatch(inputs, outputs, config=ep.CombineConfig(), stream=0)),
                ('CombineInputs', lambda: handle.combine(inputs, ep.CombineOutputs(), stream=0)),
                ('CombineOutputs', lambda: handle.combine(ep.CombineInputs(), outputs, stream=0)),
                ('CombineConfig', lambda: handle.combine(ep.CombineInputs(), ep.CombineOutputs(), config=True, stream=0)),
                ('Tensor', lambda: handle.update(bytearray(8), stream=0)),
                ('LayoutInfo', lambda: handle.update(idx, layout_info=idx, stream=0)),
                ('Tensor', lambda: group.create_handle(ep.Layout.FLAT, inputs, stream=0)),
                ('HandleConfig', lambda: group.create_handle(ep.Layout.FLAT, idx, config=ep.GroupConfig(), stream=0)),
                ('GroupConfig', lambda: ep.Group.create(0, ep.HandleConfig())),
                ('object with .ptr', lambda: ep.Group.create('comm', ep.GroupConfig()))):
            self.assertRaisesRegex(TypeError, f'{needed} is needed', call)


    def test_masks(self):
        for call in (ep.Group(1).mask_query, ep.Group(1).mask_update):
            self.assertRaisesRegex(ep.NcclInvalid, 'int32', call, ep.Tensor(bytearray(8)))


    def test_nodes(self):
        self.assertRaisesRegex(ep.NcclInvalid, 'nranks', ep.Group(1).nodes)


class Errors(unittest.TestCase):
    def test_text(self):
        self.assertEqual(str(ep.NCCLEpError(4)), 'NCCL EP error code 4')
        self.assertEqual(str(ep.NCCLError(99, 'why', 'ncclX')), 'NCCL error code 99 (unknown) of ncclX: why')
        for made in (ep.NCCLEpError(8, 'late', 'ncclEpDispatch'), ep.FunctionNotFoundError('f', '/lib')):
            again = pickle.loads(pickle.dumps(made))
            self.assertEqual((type(again), str(again)), (type(made), str(made)))

    def test_unique_id(self):
        uid = ep.UniqueId.from_bytes(bytes(range(128)))
        self.assertEqual(pickle.loads(pickle.dumps(uid)), uid)
        self.assertEqual(uid.as_bytes, bytes(range(128)))
        self.assertNotIn('\\x01', repr(uid))
        self.assertRaises(ep.NcclInvalid, ep.UniqueId.from_bytes, b'short')
        self.assertEqual(ep.get_unique_id(empty=True).as_bytes, bytes(128))


if __name__ == '__main__':
    main('__main__')
