#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""against_nvidia.py FOLDER: the names of NVIDIA's nccl.ep (nccl-extensions 0.1.0, unpacked in FOLDER) against ours.

Nothing is called but constructors: no library is opened, and no GPU is needed.
"""
import ctypes
import dataclasses
import enum
import inspect
import sys
import unittest

sys.path.insert(1, sys.argv.pop(1))
import nccl.core
import nccl.ep as theirs
import nccl._extensions.bindings.nccl_ep as their_bindings

import nccl_ep as ours
from nccl_ep import bindings, core
from ranks import main


def shape(function):
    """Names, kinds and defaults of parameters."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def fields(kind):
    return {f.name: (repr(getattr(kind(), f.name)), f.kw_only) for f in dataclasses.fields(kind)}


class Against(unittest.TestCase):
    def classes(self, wanted):
        return [(n, getattr(theirs, n), getattr(ours, n)) for n in theirs.__all__
                if inspect.isclass(getattr(theirs, n)) and wanted(getattr(theirs, n))]

    def test_names(self):
        self.assertEqual(set(theirs.__all__) - set(ours.__all__), set())

    def test_enums(self):
        found = self.classes(lambda c: issubclass(c, enum.Enum))
        self.assertEqual(len(found), 8)
        for name, their, our in found:
            self.assertTrue(issubclass(our, enum.IntEnum))
            self.assertEqual({m.name: int(m) for m in our if m.name in their.__members__},
                             {m.name: int(m) for m in their}, name)

    def test_versions(self):
        """Their fields first; the others are those of nccl4py 0.3."""
        from nccl.core.utils import LibraryInfo, VersionInfo
        for their, our in ((LibraryInfo, core.LibraryInfo), (VersionInfo, core.VersionInfo)):
            names = [f.name for f in dataclasses.fields(their)]
            self.assertEqual([f.name for f in dataclasses.fields(our)][:len(names)], names)
        self.assertIn('get_version', dir(nccl.core))

    def test_dataclasses(self):
        found = self.classes(dataclasses.is_dataclass)
        self.assertEqual(len(found), 10)
        for name, their, our in found:
            known = fields(their)
            self.assertEqual({k: v for k, v in fields(our).items() if k in known}, known, name)
            self.assertEqual(list(fields(our))[:len(known)], list(known), name)

    def test_native(self):
        """Every attribute of the native structs, and the bytes they begin with."""
        for name, their, our in self.classes(dataclasses.is_dataclass):
            a, b = their()._lowpp, our()._lowpp
            missing = [x for x in dir(a) if not x.startswith('__') and not hasattr(b, x) and not hasattr(type(b), x)]
            self.assertEqual(missing, [], name)
            if name == 'GroupConfig':
                continue  # ours is API 3's, 8 bytes longer
            self.assertEqual(bytes(b), ctypes.string_at(a.ptr, ctypes.sizeof(b)), name)

    def test_methods(self):
        for kind in ('Group', 'Handle'):
            their, our = getattr(theirs, kind), getattr(ours, kind)
            names = ['__init__'] + [n for n in dir(their) if not n.startswith('_')]
            self.assertGreater(len(names), 4)
            for name in names:
                self.assertTrue(hasattr(our, name), f'{kind}.{name}')
                if callable(getattr(their, name)):
                    self.assertEqual(shape(getattr(our, name)), shape(getattr(their, name)), f'{kind}.{name}')

    def test_tensor(self):
        self.assertEqual(shape(ours.Tensor), shape(theirs.Tensor))
        made = [kind(0x1000, dtype=9, shape=(4, 8)) for kind in (theirs.Tensor, ours.Tensor)]
        self.assertEqual(repr(made[1]), repr(made[0]))
        for name in (n for n in dir(made[0]) if not n.startswith('_') and n != 'ptr'):
            self.assertEqual(getattr(made[1], name), getattr(made[0], name), name)
        natives = [ctypes.string_at(t.ptr, 40) for t in made]  # up to the address of the sizes
        self.assertEqual(natives[1], natives[0])

    def test_bindings(self):
        """The functions of the low level; its enumerations have other member names there and are not offered."""
        wanted = [n for n in dir(their_bindings) if not n.startswith('_') and n not in (
            'Algorithm', 'CombQuant', 'DispQuant', 'ExpertIdKind', 'Layout', 'OverflowPolicy', 'PassDir', 'ZeroCopyMode')]
        self.assertGreater(len(wanted), 40)
        self.assertEqual([n for n in wanted if not hasattr(bindings, n)], [])
        self.assertEqual(bindings.tensor_dtype.itemsize, their_bindings.tensor_dtype.itemsize)

    def test_core(self):
        """What frameworks use of nccl.core."""
        for kind, names in (('Communicator', 'init ptr rank nranks device finalize destroy abort register_window split '
                             'is_valid get_async_error get_last_error'),
                            ('UniqueId', 'as_bytes from_bytes'), ('RegisteredWindowHandle', 'handle size user_ptr close')):
            for name in names.split():
                self.assertTrue(hasattr(getattr(nccl.core, kind), name), f'{kind}.{name} is not theirs')
                if kind != 'RegisteredWindowHandle':  # whose attributes belong to its objects
                    self.assertTrue(hasattr(getattr(core, kind), name), f'{kind}.{name}')
        for name in ('init', 'register_window', 'split'):
            self.assertEqual(shape(getattr(core.Communicator, name)), shape(getattr(nccl.core.Communicator, name)), name)
        for name in ('get_unique_id', 'mem_alloc'):
            self.assertEqual(shape(getattr(core, name)), shape(getattr(nccl.core, name)), name)
        self.assertEqual({m.name: int(m) for m in ours.NcclDataType if m.name != 'FLOAT4X2'},
                         {m.name: int(m) for m in nccl.core.NcclDataType})


if __name__ == '__main__':
    main('__main__')
