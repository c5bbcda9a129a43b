#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wheel.py WHEEL: the wheel, installed in a virtual environment that has nothing else; run by its interpreter."""
import ctypes
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import unittest
import zipfile

import nccl_ep
from ranks import main

WHEEL = sys.argv.pop(1)
PACKAGE = os.path.dirname(os.path.abspath(nccl_ep.__file__))


class Wheel(unittest.TestCase):
    def test_place(self):
        """The package is the installed one, and so are the libraries it opens: beside it, and without a variable."""
        self.assertNotIn('NCCL_EP_HOME', os.environ)
        self.assertTrue(PACKAGE.startswith(sys.prefix), PACKAGE)
        self.assertEqual(str(nccl_ep.get_lib_path()), os.path.join(PACKAGE, 'lib', 'libnccl_ep.so.0'))
        self.assertEqual(str(nccl_ep.get_home()), PACKAGE)
        self.assertEqual(importlib.metadata.version('nccl-ep'), nccl_ep.__version__)
        self.assertFalse(importlib.metadata.requires('nccl-ep'))

    def test_soname(self):
        """The stand-in is loaded under a name of its own, so that a torch that comes later finds its NCCL."""
        nccl_ep.get_unique_id()
        ctypes.CDLL('libnccl_ep_standin.so', mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        self.assertRaises(OSError, ctypes.CDLL, 'libnccl.so.2', mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        self.assertFalse(hasattr(ctypes.CDLL(None), 'ncclCommCount'))

    def test_contents(self):
        """Nothing outside the package: no deep_ep that would switch frameworks on, no nccl, and no file of NCCL's name."""
        with zipfile.ZipFile(WHEEL) as wheel:
            names = wheel.namelist()
        self.assertEqual({n.split('/')[0] for n in names}, {'nccl_ep', f'nccl_ep-{nccl_ep.__version__}.dist-info'})
        self.assertEqual([n for n in names if os.path.basename(n).startswith('libnccl.')], [])
        for name in ('py.typed', 'include/nccl_ep.h', 'include/nccl_ep_ext.h', 'include/nccl_ep/ep_enums.h', 'interop/torch.py'):
            self.assertIn('nccl_ep/' + name, names)
        self.assertIn('-abi3-linux', WHEEL)
        for name in ('deep_ep', 'nccl', 'torch', 'numpy'):
            self.assertIsNone(importlib.util.find_spec(name), name)

    def test_sources(self):
        """Every module of the source tree is in the wheel."""
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python', 'nccl_ep')
        wanted = [os.path.relpath(os.path.join(folder, f), source) for folder, _, files in os.walk(source) for f in files
                  if f.endswith('.py')]
        self.assertGreater(len(wanted), 15)
        self.assertEqual([f for f in wanted if not os.path.exists(os.path.join(PACKAGE, f))], [])

    def test_info(self):
        want = subprocess.run([os.path.join(PACKAGE, 'bin', 'ep_info')], capture_output=True, text=True, check=True).stdout
        got = subprocess.run([sys.executable, '-m', 'nccl_ep.info'], capture_output=True, text=True, check=True).stdout
        self.assertEqual(got, want)
        self.assertIn('built without CUDA', got)  # ./run python builds it so
        subprocess.run([sys.executable, '-m', 'nccl_ep.info', '--check', '-g', '2'], capture_output=True, check=True)


if __name__ == '__main__':
    main('__main__')
