#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor: what it takes, what it refuses, and what it keeps alive. Needs no library.

DLPack, array interfaces and torch are modelled: objects that offer just the protocol. numpy is used where it is.
"""
import array
import ctypes
import gc
import sys
import types
import unittest
import weakref

import nccl_ep as ep
from nccl_ep._buffers import _DLTensor, _DLVersioned, datatype_of
from ranks import main

T = ep.NcclDataType


def about(tensor):
    return tensor.sizes, tensor.datatype, tensor.data


class Addresses(unittest.TestCase):
    def test_plain(self):
        t = ep.Tensor(0x1000, dtype=T.BFLOAT16, shape=(4, 8))
        self.assertEqual(repr(t), '<Tensor sizes=(4, 8) dtype=BFLOAT16 data=0x1000>')
        self.assertEqual((t.ndim, t.sizes, t.datatype, t.data, t.buffer), (2, (4, 8), T.BFLOAT16, 0x1000, None))
        native = type(t._lowpp).from_ptr(t.ptr)
        self.assertEqual((native.size_, native.magic, native.ndim_, native.datatype, native.data_, native.win_hdl),
                         (48, 0xCAFECAFE, 2, 9, 0x1000, 0))
        self.assertEqual(list((ctypes.c_size_t * 2).from_address(native.sizes)), [4, 8])

    def test_refused(self):
        for arguments in ({}, {'dtype': T.INT8}, {'shape': (1,)}, {'dtype': T.INT8, 'shape': ()},
                          {'dtype': T.INT8, 'shape': (-1,)}, {'dtype': 99, 'shape': (1,)}):
            self.assertRaises(ValueError, ep.Tensor, 0x1000, **arguments)
        self.assertRaises(ep.NcclInvalid, ep.Tensor, True)  # a bool is no address
        self.assertRaises(ep.NcclInvalid, ep.Tensor, object())
        self.assertRaises(ValueError, ep.Tensor, bytearray(4), dtype=T.INT8)
        self.assertRaises(ValueError, ep.Tensor, bytearray(4), shape=(4,))
        self.assertRaises(ep.NcclInvalid, ep.Tensor, 0x1000, dtype='int16', shape=(1,))

    def test_window(self):
        window = types.SimpleNamespace(handle=0x77)
        t = ep.Tensor(0x1000, dtype=T.INT8, shape=(1,), window=window, window_offset=32)
        self.assertEqual((t._lowpp.win_hdl, t._lowpp.win_offset, t.data), (0x77, 32, 0x1000))
        self.assertRaises(ep.NcclInvalid, ep.Tensor, 1, dtype=T.INT8, shape=(1,), window=window)
        self.assertRaises(ep.NcclInvalid, ep.Tensor, 1, dtype=T.INT8, shape=(1,), window_offset=0)

    def test_names(self):
        self.assertEqual([datatype_of(n) for n in ('bfloat16', 'torch.float8_e4m3fn', 'FLOAT8E5M2', 7, T.INT64)],
                         [T.BFLOAT16, T.FLOAT8E4M3, T.FLOAT8E5M2, T.FLOAT32, T.INT64])
        self.assertEqual([t.itemsize for t in T], [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 1])


class Buffers(unittest.TestCase):
    def test_kinds(self):
        values = (ctypes.c_float * 8 * 4)()
        self.assertEqual(about(ep.Tensor(values)), ((4, 8), T.FLOAT32, ctypes.addressof(values)))
        for kind, want in ((ctypes.c_int8, T.INT8), (ctypes.c_uint8, T.UINT8), (ctypes.c_int32, T.INT32),
                           (ctypes.c_uint32, T.UINT32), (ctypes.c_int64, T.INT64), (ctypes.c_uint64, T.UINT64),
                           (ctypes.c_longlong, T.INT64), (ctypes.c_double, T.FLOAT64), (ctypes.c_bool, T.UINT8),
                           (ctypes.c_char, T.UINT8)):
            self.assertEqual(ep.Tensor((kind * 3)()).datatype, want, kind)
        numbers = array.array('d', [1, 2, 3])
        self.assertEqual(about(ep.Tensor(numbers)), ((3,), T.FLOAT64, numbers.buffer_info()[0]))
        self.assertEqual(ep.Tensor(memoryview(bytearray(6)).cast('B', (2, 3))).sizes, (2, 3))

    def test_empty(self):
        self.assertEqual(about(ep.Tensor(bytearray())), ((0,), T.UINT8, 0))
        self.assertEqual(ep.Tensor((ctypes.c_float * 8 * 0)()).sizes, (0, 8))

    def test_refused(self):
        self.assertRaisesRegex(ep.NcclInvalid, 'read-only', ep.Tensor, b'bytes')
        self.assertRaisesRegex(ep.NcclInvalid, 'contiguous', ep.Tensor, memoryview(bytearray(8))[::2])
        self.assertRaisesRegex(ep.NcclInvalid, 'no NCCL data type', ep.Tensor, (ctypes.c_int16 * 2)())

    def test_kept(self):
        """The buffer lives as long as its descriptor, and a bytearray cannot be resized meanwhile."""
        data = bytearray(8)
        t = ep.Tensor(data)
        self.assertRaises(BufferError, data.extend, bytes(100))
        self.assertIs(t.buffer, data)
        values = (ctypes.c_float * 2)()
        gone = weakref.ref(values)
        t = ep.Tensor(values)
        del values
        gc.collect()
        self.assertIsNotNone(gone())
        inputs = ep.DispatchInputs(tokens=t)
        del t
        gc.collect()
        self.assertIsNotNone(gone())
        del inputs
        gc.collect()
        self.assertIsNone(gone())


class Interface:
    def __init__(self, name='__cuda_array_interface__', **fields):
        setattr(self, name, dict(dict(shape=(2, 3), typestr='<f4', data=(0x2000, False), version=3), **fields))


class Interfaces(unittest.TestCase):
    def test_cuda(self):
        self.assertEqual(about(ep.Tensor(Interface())), ((2, 3), T.FLOAT32, 0x2000))
        self.assertEqual(ep.Tensor(Interface(strides=(12, 4))).sizes, (2, 3))
        self.assertEqual(ep.Tensor(Interface(strides=(1, 4), shape=(1, 3))).sizes, (1, 3))  # a stride that is never used
        self.assertEqual(about(ep.Tensor(Interface(shape=(0, 3), data=(0, False), strides=(1, 1)))), ((0, 3), T.FLOAT32, 0))
        self.assertEqual([ep.Tensor(Interface(typestr=s)).datatype for s in ('|b1', '|u1', '<f2', '<i8')],
                         [T.UINT8, T.UINT8, T.FLOAT16, T.INT64])

    def test_refused(self):
        self.assertRaisesRegex(ep.NcclInvalid, 'contiguous', ep.Tensor, Interface(strides=(4, 8)))
        self.assertRaisesRegex(ep.NcclInvalid, 'c8', ep.Tensor, Interface(typestr='<c8'))
        self.assertRaisesRegex(ep.NcclInvalid, 'endian', ep.Tensor, Interface(typestr='>f4'))
        self.assertRaisesRegex(ep.NcclInvalid, 'mask', ep.Tensor, Interface(mask=object()))
        self.assertRaises(ep.NcclInvalid, ep.Tensor, Interface(typestr='<V2'))
        self.assertRaises(ValueError, ep.Tensor, Interface(shape=()))

    def test_ml_dtypes(self):
        """A type string <V2 tells nothing; the dtype's name does."""
        wide = Interface('__array_interface__', typestr='<V2')
        wide.dtype = types.SimpleNamespace(name='bfloat16')
        self.assertEqual(ep.Tensor(wide).datatype, T.BFLOAT16)

    def test_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest('numpy is not installed')
        values = numpy.zeros((4, 5), dtype=numpy.float16)
        self.assertEqual(about(ep.Tensor(values)), ((4, 5), T.FLOAT16, values.ctypes.data))
        self.assertRaises(ep.NcclInvalid, ep.Tensor, values.T)
        self.assertRaises(ep.NcclInvalid, ep.Tensor, values.astype(numpy.int16))
        self.assertRaises(ValueError, ep.Tensor, numpy.float32(1))


class DLPack:
    """A producer of capsules; counts what it was asked and what is alive."""
    NAMES = {}

    def __init__(self, shape=(2, 3), strides=None, kind=(2, 32, 1), device=1, versioned=False, offset=0, major=1):
        self.device, self.versioned, self.asked = device, versioned, []
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        code, bits, lanes = kind
        tensor = _DLTensor(0x3000, device, 0, len(shape), code, bits, lanes, self.shape, self.strides, offset)
        self.managed = _DLVersioned(major, 0, 0, 0, 0, tensor) if versioned else tensor

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        name = b'dltensor_versioned' if self.versioned else b'dltensor'
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        name = self.NAMES.setdefault(name, ctypes.c_char_p(name))  # a capsule keeps the pointer
        return new(ctypes.addressof(self.managed), name, None)


class DLPacks(unittest.TestCase):
    def test_kinds(self):
        self.assertEqual(about(ep.Tensor(DLPack())), ((2, 3), T.FLOAT32, 0x3000))
        self.assertEqual(about(ep.Tensor(DLPack(versioned=True, offset=16))), ((2, 3), T.FLOAT32, 0x3010))
        self.assertEqual(ep.Tensor(DLPack(strides=(3, 1))).sizes, (2, 3))
        for kind, want in (((4, 16, 1), T.BFLOAT16), ((10, 8, 1), T.FLOAT8E4M3), ((12, 8, 1), T.FLOAT8E5M2),
                           ((6, 8, 1), T.UINT8), ((14, 8, 1), T.UINT8), ((17, 4, 2), T.FLOAT4X2)):
            self.assertEqual(ep.Tensor(DLPack(kind=kind)).datatype, want)

    def test_stream(self):
        """Device memory is exported without synchronisation: the caller orders his work by the stream of each call."""
        for device, want in ((1, {}), (2, {'stream': -1}), (10, {'stream': -1})):
            producer = DLPack(device=device)
            ep.Tensor(producer)
            self.assertEqual(producer.asked, [want])

    def test_refused(self):
        self.assertRaisesRegex(ep.NcclInvalid, 'contiguous', ep.Tensor, DLPack(strides=(1, 2)))
        self.assertRaisesRegex(ep.NcclInvalid, '16 bits', ep.Tensor, DLPack(kind=(0, 16, 1)))
        self.assertRaisesRegex(ep.NcclInvalid, 'DLPack 2.0', ep.Tensor, DLPack(versioned=True, major=2))
        self.assertRaisesRegex(ep.NcclInvalid, 'capsule', ep.Tensor, types.SimpleNamespace(__dlpack__=lambda: 1))
        self.assertRaises(ValueError, ep.Tensor, DLPack(shape=()))


class TorchTensor:
    """What is used of a torch tensor."""

    def __init__(self, shape=(2, 3), dtype='torch.bfloat16', contiguous=True):
        self.shape, self.dtype, self._contiguous = shape, dtype, contiguous

    def data_ptr(self):
        return 0x4000

    def is_contiguous(self):
        return self._contiguous


class Torch(unittest.TestCase):
    def setUp(self):
        if 'torch' in sys.modules:
            self.skipTest('the real torch is imported')
        sys.modules['torch'] = types.SimpleNamespace(Tensor=TorchTensor)
        self.addCleanup(sys.modules.pop, 'torch')

    def test_kinds(self):
        t = TorchTensor()
        self.assertEqual(about(ep.Tensor(t)), ((2, 3), T.BFLOAT16, 0x4000))
        self.assertIs(ep.Tensor(t).buffer, t)
        for name, want in (('float16', 6), ('float32', 7), ('float64', 8), ('int8', 0), ('int32', 2), ('int64', 4),
                           ('uint8', 1), ('bool', 1), ('float8_e4m3fn', 10), ('float8_e5m2', 11), ('uint32', 3),
                           ('uint64', 5), ('float4_e2m1fn_x2', 12)):
            self.assertEqual(ep.Tensor(TorchTensor(dtype='torch.' + name)).datatype, want, name)

    def test_refused(self):
        for name in ('int16', 'complex64'):
            self.assertRaisesRegex(ep.NcclInvalid, name, ep.Tensor, TorchTensor(dtype='torch.' + name))
        self.assertRaisesRegex(ep.NcclInvalid, 'contiguous', ep.Tensor, TorchTensor(contiguous=False))


if __name__ == '__main__':
    main('__main__')
