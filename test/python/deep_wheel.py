#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deep_wheel.py WHEEL: the wheel of deep_ep, installed in an empty environment after nccl_ep and nccl.ep, with the torch of
another environment; run by its interpreter."""
import importlib.metadata
import os
import sys
import sysconfig
import unittest
import zipfile

import torch

import deep_ep
import nccl_ep
from ranks import HERE, main

WHEEL = sys.argv.pop(1)
SOURCE = os.path.join(HERE, '..', '..', 'python', 'deep')


class Wheel(unittest.TestCase):
    def test_name(self):
        """Primus asks for a distribution called deep_ep."""
        self.assertTrue(os.path.basename(WHEEL).startswith('deep_ep-1.2.1-py3-none-any'), WHEEL)
        self.assertEqual(importlib.metadata.version('deep_ep'), deep_ep.__version__)

    def test_requires(self):
        """Exactly the nccl_ep that it was written for."""
        wants = [want.replace(' ', '') for want in importlib.metadata.requires('deep_ep')]
        self.assertEqual(sorted(wants), [f'nccl-ep=={nccl_ep.__version__}', 'torch>=2.6'])
        self.assertEqual(importlib.metadata.version('nccl-ep'), nccl_ep.__version__)

    def test_contents(self):
        wanted = {os.path.relpath(os.path.join(folder, name), SOURCE) for folder, _, names in os.walk(SOURCE)
                  for name in names if name.endswith('.py') or name == 'py.typed'}
        with zipfile.ZipFile(WHEEL) as wheel:
            names = {name for name in wheel.namelist() if '.dist-info/' not in name}
        self.assertEqual(names, wanted)
        self.assertIn('deep_ep/utils/event.py', names)

    def test_place(self):
        self.assertTrue(os.path.abspath(deep_ep.__file__).startswith(sys.prefix), deep_ep.__file__)
        self.assertTrue(os.path.abspath(nccl_ep.__file__).startswith(sys.prefix), nccl_ep.__file__)
        self.assertFalse(os.path.abspath(torch.__file__).startswith(sys.prefix), torch.__file__)

    def test_three(self):
        """Nothing else is installed here, and what deep_ep uses of nccl_ep is what nccl.ep names."""
        import nccl.ep
        here = {dist.metadata['Name'] for dist in importlib.metadata.distributions(path=[sysconfig.get_path('purelib')])}
        self.assertEqual(here - {'pip', 'setuptools'}, {'anyep-nccl', 'deep_ep', 'nccl-ep'})
        self.assertIs(nccl.ep.Group, nccl_ep.Group)


if __name__ == '__main__':
    main('__main__')
