#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Structs, enumerations and functions of the package against the C headers, by the compiler: abi.py HEADERS CC...

A C program prints the size of every struct, the offset and size of every field, the values of the enumerations, and the
sizes of every function's parameters, as the headers declare them.
"""
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import unittest

import nccl_ep
from nccl_ep import _structs, bindings, core, enums
from ranks import main

HEADERS, CC = sys.argv[1], sys.argv[2:]
del sys.argv[1:]
PLAIN = {'size_': 'size', 'ndim_': 'ndim', 'data_': 'data'}
# Python's enumeration -> the prefix of C's names, and names that differ
ENUMS = {
    'Algorithm': 'NCCL_EP_ALGO_', 'Layout': 'NCCL_EP_LAYOUT_', 'OverflowPolicy': 'NCCL_EP_OVERFLOW_',
    'ZeroCopyMode': 'NCCL_EP_ZERO_COPY_', 'ExpertIdKind': 'NCCL_EP_EXPERT_ID_',
    'DispatchQuantizationRecipe': 'NCCL_EP_DISP_QUANT_', 'CombineQuantizationRecipe': 'NCCL_EP_COMB_QUANT_',
    'AsyncError': 'ANYEP_ASYNC_', 'Scales': 'ANYEP_SCALES_',
}
MACROS = {'NCCL_EP_MAGIC': _structs.MAGIC, 'NCCL_EP_TENSOR_MAGIC': _structs.TENSOR_MAGIC,
          'NCCL_EP_API_VERSION': _structs.API_VERSION, 'NCCL_UNIQUE_ID_BYTES': 128,
          'NCCL_WIN_COLL_SYMMETRIC': core.WIN_COLL_SYMMETRIC}


def read(name):
    with open(os.path.join(HEADERS, name)) as f:
        return re.sub(r'/\*.*?\*/', '', f.read(), flags=re.S)


def declared():
    """Function -> types of its parameters, as written in the headers; former names (until 0.3) are left out."""
    text = read('nccl_ep.h') + read('nccl_ep_ext.h') + read('standin/nccl.h')
    found = {}
    for result, name, arguments in re.findall(r'^(ncclResult_t |const char \*)(\w+)\(([^)]*)\);', text, re.M):
        kinds = []
        for argument in arguments.split(','):
            if argument.strip() != 'void':
                kinds.append(re.sub(r'\w+$', '', ' '.join(argument.split())).strip())
        found[name] = ([result.strip()] + kinds)
    return found


def c_values(name, prefix):
    """(C name, Python's value) of an enumeration."""
    return [(prefix + member.name, int(member)) for member in getattr(enums, name)]


def camel(prefix, member):
    return prefix + ''.join(word.capitalize() for word in member.name.split('_'))


def expected():
    """(C expression, what Python has) for everything."""
    rows = [(name, value) for name, value in MACROS.items()]
    for struct in _structs.STRUCTS:
        c = struct.C_NAME
        rows.append((f'sizeof({c})', ctypes.sizeof(struct)))
        for name, *_ in struct._fields_:
            plain = PLAIN.get(name, name)
            rows.append((f'offsetof({c}, {plain})', getattr(struct, name).offset))
            rows.append((f'sizeof((({c} *)0)->{plain})', getattr(struct, name).size))
    for name, prefix in ENUMS.items():
        rows += c_values(name, prefix)
    rows += [(f'NCCL_EP_{m.name}_PASS', int(m)) for m in enums.PassDir]
    rows += [(camel('nccl', m), int(m)) for m in enums.NcclResult]
    names = {enums.NcclDataType.FLOAT8E4M3: 'ncclFloat8e4m3', enums.NcclDataType.FLOAT8E5M2: 'ncclFloat8e5m2',
             enums.NcclDataType.FLOAT4X2: 'ncclFloat4x2'}
    rows += [(names.get(m, camel('nccl', m)), int(m)) for m in enums.NcclDataType]
    functions = declared()
    for name, (_, *arguments) in {**bindings.PROTOTYPES, **core.PROTOTYPES}.items():
        if name == 'ncclEpStandinQuery':
            continue  # not in a public header
        kinds = functions[name][1:]
        rows.append((f'(size_t){len(kinds)} /* {name} */', len(arguments)))
        for kind, argument in zip(kinds, arguments):
            rows.append((f'sizeof({kind}) /* {name} */', ctypes.sizeof(argument)))
    return rows


class Abi(unittest.TestCase):
    def test_headers(self):
        rows = expected()
        with tempfile.TemporaryDirectory() as tmp:
            source, program = os.path.join(tmp, 'abi.c'), os.path.join(tmp, 'abi')
            with open(source, 'w') as f:
                f.write('#include <stdio.h>\n#include "nccl_ep_ext.h"\nint main(void)\n{\n')
                for expression, _ in rows:
                    f.write(f'\tprintf("%lld\\n", (long long)({expression}));\n')
                f.write('\treturn 0;\n}\n')
            subprocess.run([*CC, '-std=gnu11', '-I', HEADERS, '-I', os.path.join(HEADERS, 'standin'), source, '-o', program],
                           check=True)
            values = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
        wrong = [f'{expression}: {value} in C, {mine} in Python'
                 for (expression, mine), value in zip(rows, values) if int(value) != mine]
        self.assertEqual(wrong, [])
        self.assertGreater(len(rows), 250)

    def test_all_functions(self):
        """Every function of the two headers is bound, except the names that go in 0.3."""
        former = read('nccl_ep_ext.h').split('#define NCCL_EP_ASYNC_NONE')[1]
        names = {n for n in declared() if n.startswith(('ncclEp', 'anyEp'))} - set(re.findall(r'(\w+)\(', former))
        self.assertEqual(names, set(bindings.PROTOTYPES))

    def test_fields(self):
        """No field of C is missing, apart from padding: each dataclass has every member of its struct."""
        for struct, made in ((_structs.GroupConfig, nccl_ep.GroupConfig), (_structs.LayoutInfo, nccl_ep.LayoutInfo),
                             (_structs.DispatchConfig, nccl_ep.DispatchConfig),
                             (_structs.CombineConfig, nccl_ep.CombineConfig), (_structs.HandleConfig, nccl_ep.HandleConfig),
                             (_structs.DispatchInputs, nccl_ep.DispatchInputs),
                             (_structs.DispatchOutputs, nccl_ep.DispatchOutputs),
                             (_structs.CombineInputs, nccl_ep.CombineInputs),
                             (_structs.CombineOutputs, nccl_ep.CombineOutputs), (_structs.AllocConfig, nccl_ep.AllocConfig)):
            mine = {f.replace('quantization_recipe', 'quant_recipe') for f in made.__dataclass_fields__}
            native = {f[0] for f in struct._fields_} - {'size_', 'magic', 'version', 'padding_v2'}
            self.assertEqual(mine, native, struct.C_NAME)

    def test_counters(self):
        """Results of the extensions have every member of their struct."""
        for struct, made in ((_structs.NetCounts, nccl_ep.NetCounts), (_structs.NetTimes, nccl_ep.NetTimes),
                             (_structs.ReachCounts, nccl_ep.ReachCounts)):
            self.assertEqual(list(made.__dataclass_fields__), [f[0] for f in struct._fields_][1:])


if __name__ == '__main__':
    main('__main__')
