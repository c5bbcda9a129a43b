#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reference.py [FILE]: prints the reference of nccl_ep's public names, from its docstrings and signatures.

With FILE: exit status 1 and the difference if the file is not what would be printed (python_reference does that).
"""
import dataclasses
import difflib
import enum
import inspect
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_ep
from nccl_ep import core
from nccl_ep.interop import torch as interop_torch

HEAD = '''# nccl_ep for Python: reference

Generated: `python/reference.py > doc/python_reference.md`. Names without a mark are NVIDIA's `nccl.ep`, or `nccl.core` where
they concern communicators; those with `+` exist here only.
'''
# What nccl-extensions 0.1.0 and nccl4py 0.6.0 have (test/python/against_nvidia.py compares).
THEIRS = set('''Algorithm AllocConfig AllocFn CombineConfig CombineInputs CombineOutputs CombineQuantizationRecipe DispatchConfig
DispatchInputs DispatchOutputs DispatchQuantizationRecipe ExpertIdKind FreeFn get_lib_path get_lib_version Group GroupConfig
Handle HandleConfig Layout LayoutInfo OverflowPolicy PassDir Tensor ZeroCopyMode Communicator UniqueId get_unique_id mem_alloc
NcclDataType NcclInvalid RegisteredWindowHandle get_version LibraryInfo VersionInfo get_nccl_comm_from_group
NCCLEpError FunctionNotFoundError
Group.create Group.create_handle Group.destroy Group.ptr Handle.update Handle.dispatch Handle.combine Handle.complete
Handle.destroy Handle.ptr'''.split())
OWN = {'Group', 'Handle'}  # classes whose members are marked one by one


def signature(function):
    made = inspect.signature(function)
    plain = [p.replace(annotation=p.empty) for p in made.parameters.values() if p.name not in ('self', 'cls')]
    return str(made.replace(parameters=plain, return_annotation=made.empty))


def text_of(thing):
    return re.sub(r'\s+', ' ', inspect.getdoc(thing) or '').strip()


def members(name, kind):
    """The public methods and properties that the class itself has."""
    for member, value in vars(kind).items():
        if member.startswith('_') or dataclasses.is_dataclass(kind):
            continue
        mark = '' if name not in OWN or f'{name}.{member}' in THEIRS else '+ '
        if isinstance(value, (property,)):
            yield f'- {mark}`{member}`: {text_of(value)}'.rstrip(' :')
        elif callable(value) or isinstance(value, (classmethod, staticmethod)):
            bound = getattr(kind, member)
            yield f'- {mark}`{member}{signature(bound)}`: {text_of(bound)}'.rstrip(' :')


def entry(name, thing):
    mark = '' if name in THEIRS else '+ '
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        yield f'### {mark}{name}'
        yield text_of(thing)
        yield 'Values: ' + ', '.join(f'`{m.name}` {int(m)}' for m in thing) + '.'
    elif dataclasses.is_dataclass(thing):
        yield f'### {mark}{name}'
        yield text_of(thing)
        yield 'Fields: ' + ', '.join(f'`{f.name}`' for f in dataclasses.fields(thing)) + '.'
    elif inspect.isclass(thing):
        yield f'### {mark}{name}{signature(thing) if not issubclass(thing, Exception) else ""}'
        yield text_of(thing)
        found = list(members(name, thing))
        if found:
            yield '\n'.join(found)
    else:
        yield f'### {mark}{name}{signature(thing)}'
        yield text_of(thing)


def reference():
    names = [n for n in nccl_ep.__all__ if n not in ('__version__', 'AllocFn', 'FreeFn')]
    parts = [HEAD.strip(), '## nccl_ep']
    for name in names:
        parts += entry(name, getattr(nccl_ep, name))
    parts += ['### AllocFn, FreeFn', 'ctypes functions `int (void **ptr, size_t bytes, void *context)` and `int (void *ptr, '
              'void *context)`, usable as decorators; AllocConfig takes their addresses.']
    for module, title in ((core, 'nccl_ep.core'), (interop_torch, 'nccl_ep.interop.torch')):
        parts += [f'## {title}', text_of(module)]
        for name in sorted(set(module.__all__) - set(names)):
            parts += entry(name, getattr(module, name))
    return '\n\n'.join(part for part in parts if part) + '\n'


def main():
    text = reference()
    if len(sys.argv) < 2:
        sys.stdout.write(text)
        return 0
    with open(sys.argv[1]) as f:
        old = f.read()
    diff = list(difflib.unified_diff(old.splitlines(), text.splitlines(), sys.argv[1], 'python/reference.py', lineterm=''))
    print('\n'.join(diff) or f'{sys.argv[1]} is up to date')
    return 1 if diff else 0


if __name__ == '__main__':
    sys.exit(main())
