#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nccl_names.py WHEEL: nccl.ep of the wheel anyep-nccl, beside nccl_ep in an environment without nccl4py."""
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

from ranks import main

WHEEL = sys.argv.pop(1)


class Names(unittest.TestCase):
    def test_found(self):
        """FlashInfer asks find_spec before it imports anything."""
        spec = importlib.util.find_spec('nccl.ep')
        self.assertTrue(spec.origin.startswith(sys.prefix), spec)
        with zipfile.ZipFile(WHEEL) as wheel:
            names = [n for n in wheel.namelist() if not n.split('/')[0].endswith('.dist-info')]
        self.assertEqual(names, ['nccl/ep/__init__.py'])  # no nccl/__init__.py, which would hide nccl4py

    def test_same(self):
        import nccl.ep
        import nccl.ep.group
        import nccl.ep.interop.torch
        from nccl.ep.handle import Handle
        import nccl_ep
        self.assertIs(nccl.ep.Group, nccl_ep.Group)
        self.assertIs(nccl.ep.group, nccl_ep.group)
        self.assertIs(Handle, nccl_ep.Handle)
        self.assertIs(nccl.ep.interop.torch, nccl_ep.interop.torch)
        self.assertEqual(nccl.ep.__all__, nccl_ep.__all__)
        self.assertNotIn('torch', sys.modules)

    def test_core(self):
        """The set-up of a framework, by NVIDIA's names alone."""
        import nccl.ep
        import nccl.core
        uid = nccl.core.UniqueId.from_bytes(nccl.core.get_unique_id().as_bytes)
        comm = nccl.core.Communicator.init(1, 0, uid)
        group = nccl.ep.Group.create(comm, nccl.ep.GroupConfig(num_experts=2, max_dispatch_tokens_per_rank=2,
                                                               max_token_bytes=64))
        self.assertEqual(group.get_async_error(), 0)
        group.destroy()
        comm.destroy()

    def test_versions(self):
        """What TensorRT-LLM asks (nccl4py 0.3), and what others ask (0.6); without packaging versions are tuples."""
        import nccl.ep
        import nccl.core
        self.assertGreaterEqual(tuple(nccl.get_version().nccl.version), (2, 30, 4))
        self.assertGreaterEqual(tuple(nccl.get_version().nccl_ep.version), (0, 2))
        self.assertEqual(nccl.core.get_version().libnccl.path.name, 'libnccl_ep_standin.so')
        self.assertEqual(nccl.get_version().nccl_ep.path, nccl.ep.get_lib_path())

    def test_nccl4py(self):
        """A nccl.core that is installed is the one that is found (a model: a module of that name)."""
        with tempfile.TemporaryDirectory() as tmp:
            os.makedirs(os.path.join(tmp, 'nccl', 'core'))
            with open(os.path.join(tmp, 'nccl', 'core', '__init__.py'), 'w') as f:
                f.write('whose = "nccl4py"\n')
            out = subprocess.run([sys.executable, '-c', 'import nccl.ep, nccl.core; print(nccl.core.whose)'], check=True,
                                 capture_output=True, text=True, env={**os.environ, 'PYTHONPATH': tmp}).stdout
        self.assertEqual(out, 'nccl4py\n')


if __name__ == '__main__':
    main('__main__')
