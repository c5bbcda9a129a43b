#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the package finds its libraries, and that nothing is opened before it is used: loading.py HOME EP_INFO CC...

Each case is a process of its own: a library stays loaded. HOME has lib/ and bin/ as the wheel has them.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import nccl_ep
from ranks import main

HOME, EP_INFO, CC = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]
del sys.argv[1:]
PACKAGE = os.path.dirname(os.path.abspath(nccl_ep.__file__))
MAPS = "open('/proc/self/maps').read()"

# A model of NCCL: the names, another SONAME's answers.
NCCL = '''
int ncclCommCount(void *comm, int *out) { *out = 40 + (comm == (void *)0x5000); return 0; }
int ncclCommUserRank(void *comm, int *out) { (void)comm; *out = 3; return 0; }
int ncclGetVersion(int *out) { *out = 12345; return 0; }
int ncclCommCuDevice(void *comm, int *out) { (void)comm; (void)out; return 5; }
const char *ncclGetErrorString(int result) { return result == 5 ? "model: no device" : "?"; }
'''


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = folder.name

    def python(self, code, package=os.path.dirname(PACKAGE), fails=False, **env):
        """Runs code in a Python without site-packages, and returns what it prints."""
        clean = {k: v for k, v in os.environ.items() if k not in ('NCCL_EP_HOME', 'PYTHONPATH', 'LD_LIBRARY_PATH')}
        done = subprocess.run([sys.executable, '-S', '-c', code], capture_output=True, text=True,
                              env={**clean, 'PYTHONPATH': package, 'PYTHONDONTWRITEBYTECODE': '1', **env})
        self.assertEqual(done.returncode != 0, fails, done.stderr)
        return (done.stderr if fails else done.stdout).strip()

    def folder(self, *parts, **files):
        """A folder with libraries under other names: hard links where that works, they are large."""
        path = os.path.join(self.tmp, *parts)
        os.makedirs(path)
        for name, source in files.items():
            source, target = os.path.join(HOME, 'lib', source), os.path.join(path, name.replace('__', '.'))
            try:
                os.link(source, target)
            except OSError:
                shutil.copy(source, target)
        return path


class Import(Case):
    def test_pure(self):
        """Importing opens no library, imports no torch, numpy or CUDA, starts no thread and leaves the environment alone."""
        out = self.python(f'''
import os, sys, threading
before = dict(os.environ)
import nccl_ep, nccl_ep.core, nccl_ep.interop.torch, nccl_ep.info
nccl_ep.GroupConfig(num_experts=2), nccl_ep.Tensor(bytearray(4)), nccl_ep.get_unique_id(empty=True)
maps = {MAPS}
assert 'libnccl' not in maps and 'libcuda' not in maps and 'hip' not in maps, maps
foreign = [m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'cuda', 'nccl', 'packaging')]
assert not foreign, foreign
assert dict(os.environ) == before and threading.active_count() == 1
print(nccl_ep.get_lib_version(), 'libnccl_ep' in {MAPS}, 'standin' in {MAPS})
print(len(nccl_ep.get_unique_id().as_bytes), 'standin' in {MAPS})
''', NCCL_EP_HOME=HOME)
        self.assertEqual(out.split('\n'), ['0.2.0 True False', '128 True'])

    def test_version(self):
        """Comparable without packaging, too."""
        self.python('import nccl_ep; v = nccl_ep.get_lib_version(); assert (v.major, v.minor) == (0, 2), v', NCCL_EP_HOME=HOME)


class Search(Case):
    CODE = 'import nccl_ep; print(nccl_ep.get_lib_path())'

    def package(self, **files):
        """A copy of the package, with these files in its lib/."""
        place = os.path.join(self.tmp, 'site')
        shutil.copytree(PACKAGE, os.path.join(place, 'nccl_ep'), ignore=shutil.ignore_patterns('__pycache__', 'lib'))
        if files:
            self.folder('site', 'nccl_ep', 'lib', **files)
        return place

    def test_order(self):
        package = self.package(libnccl_ep__so__0='libnccl_ep.so.0')
        self.folder('home', 'lib64', libnccl_ep__so='libnccl_ep.so.0')
        beside = os.path.join(package, 'nccl_ep', 'lib', 'libnccl_ep.so.0')
        lib64 = os.path.join(self.tmp, 'home', 'lib64', 'libnccl_ep.so')
        system = self.folder('system', libnccl_ep__so__0='libnccl_ep.so.0')
        home = os.path.join(self.tmp, 'home')
        self.assertEqual(self.python(self.CODE, package, NCCL_EP_HOME=home, LD_LIBRARY_PATH=system), lib64)
        lib = os.path.join(self.folder('home', 'lib', libnccl_ep__so__0='libnccl_ep.so.0'), 'libnccl_ep.so.0')
        self.assertEqual(self.python(self.CODE, package, NCCL_EP_HOME=home), lib)
        self.assertEqual(self.python(self.CODE, package, LD_LIBRARY_PATH=system), beside)
        # NVIDIA's nccl.ep sets NCCL_EP_HOME to its own folder, where no library lies in lib/ itself
        self.assertEqual(self.python(self.CODE, package, NCCL_EP_HOME='/nowhere'), beside)

    def test_system(self):
        system = self.folder('system', libnccl_ep__so__0='libnccl_ep.so.0', libnccl_ep_standin__so='libnccl_ep_standin.so')
        code = 'import nccl_ep; nccl_ep.get_unique_id(); print(nccl_ep.get_home(), nccl_ep.get_lib_path())'
        self.assertEqual(self.python(code, self.package(), LD_LIBRARY_PATH=system),
                         f'{self.tmp} {system}/libnccl_ep.so.0')

    def test_standin(self):
        """An installation without the package's stand-in: the package's own is taken."""
        package = self.package(libnccl_ep__so__0='libnccl_ep.so.0', libnccl_ep_standin__so='libnccl_ep_standin.so')
        self.folder('home', 'lib', libnccl_ep__so__0='libnccl_ep.so.0')
        code = 'import nccl_ep; nccl_ep.get_unique_id(); from nccl_ep.core import _standin; print(_standin.loaded.path)'
        self.assertEqual(self.python(code, package, NCCL_EP_HOME=os.path.join(self.tmp, 'home')),
                         os.path.join(package, 'nccl_ep', 'lib', 'libnccl_ep_standin.so'))

    def test_absent(self):
        said = self.python(self.CODE, self.package(), fails=True, NCCL_EP_HOME='/nowhere')
        for part in ('RuntimeError: Failed to dlopen libnccl_ep (/nowhere/lib/', 'site/nccl_ep/lib/', 'set NCCL_EP_HOME'):
            self.assertIn(part, said)
        place = os.path.join(self.tmp, 'alone')
        self.folder('alone', 'lib', libnccl_ep__so__0='libnccl_ep.so.0')
        self.assertIn('Failed to dlopen libnccl_ep_standin', self.python(
            'import nccl_ep; nccl_ep.get_unique_id()', os.path.join(self.tmp, 'site'), fails=True, NCCL_EP_HOME=place))

    def test_broken(self):
        """A file that is no library is reported: the next place would hide it."""
        package = self.package(libnccl_ep__so__0='libnccl_ep.so.0')
        path = os.path.join(self.folder('home', 'lib'), 'libnccl_ep.so.0')
        with open(path, 'w') as f:
            f.write('no library')
        said = self.python(self.CODE, package, fails=True, NCCL_EP_HOME=os.path.join(self.tmp, 'home'))
        self.assertIn(f'Failed to dlopen libnccl_ep ({path})', said)

    def test_function(self):
        """A library that lacks a function serves until it is called."""
        self.folder('home', 'lib', libnccl_ep__so__0='libnccl_ep_standin.so')
        code = '''
import nccl_ep
assert nccl_ep.get_lib_path() and nccl_ep.bindings.get_last_error() == ''
nccl_ep.get_lib_version()
'''
        said = self.python(code, fails=True, NCCL_EP_HOME=os.path.join(self.tmp, 'home'))
        self.assertIn('FunctionNotFoundError: function ncclEpGetVersion is not found', said)


class BesideNccl(Case):
    """The stand-in takes nothing from a NCCL that is loaded before or after it."""

    def nccl(self):
        source, path = os.path.join(self.tmp, 'nccl.c'), os.path.join(self.tmp, 'libnccl.so.2')
        with open(source, 'w') as f:
            f.write(NCCL)
        subprocess.run([*CC, '-shared', '-fPIC', '-Wl,-soname,libnccl.so.2', source, '-o', path], check=True)
        return path

    def test_both_orders(self):
        load = f"import ctypes; model = ctypes.CDLL({self.nccl()!r}, mode=ctypes.RTLD_GLOBAL); n = ctypes.c_int()\n"
        use = 'import nccl_ep; mine = nccl_ep.Communicator.init(1, 0, nccl_ep.get_unique_id())\n'
        check = '''
assert ctypes.CDLL('libnccl.so.2')._handle == model._handle
assert model.ncclGetVersion(ctypes.byref(n)) == 0 and n.value == 12345, n.value
assert ctypes.CDLL(None).ncclGetVersion(ctypes.byref(n)) == 0 and n.value == 12345, n.value
assert nccl_ep.core.standin_version() == 23007 and (mine.rank, mine.nranks) == (0, 1)
other = nccl_ep.Communicator(ptr=0x5000)
assert (other.rank, other.nranks) == (3, 41)
try:
    other.device
except nccl_ep.NCCLError as e:
    assert str(e) == 'NCCL error code 5 (InvalidUsage) of ncclCommCuDevice: model: no device', e
else:
    raise AssertionError('no error')
mine.destroy()
'''
        for code in (load + use, use + load):
            self.python(code + check, NCCL_EP_HOME=HOME)

    def test_alone(self):
        """A communicator of NCCL needs no stand-in."""
        self.folder('home', 'lib', libnccl_ep__so__0='libnccl_ep.so.0')
        self.python(f"import ctypes, nccl_ep; model = ctypes.CDLL({self.nccl()!r})\n"
                    'assert nccl_ep.Communicator(ptr=0x5000).nranks == 41', NCCL_EP_HOME=os.path.join(self.tmp, 'home'))

    def test_symbols(self):
        """NCCL's names stay local; those of libnccl_ep are global: FlashInfer finds the mask calls by CDLL(None)."""
        self.python('''
import ctypes, os, nccl_ep
nccl_ep.get_unique_id()
assert hasattr(ctypes.CDLL(None), 'ncclEpMaskQuery') and not hasattr(ctypes.CDLL(None), 'ncclCommCount')
try:
    ctypes.CDLL('libnccl.so.2', mode=os.RTLD_NOLOAD | os.RTLD_NOW)
except OSError:
    pass
else:
    raise AssertionError('something is loaded under the SONAME of NCCL')
''', NCCL_EP_HOME=HOME)


class Info(Case):
    def test_equals(self):
        for option in ('-e', '-p'):
            want = subprocess.run([EP_INFO, option], capture_output=True, text=True, check=True,
                                  env={**os.environ, 'NCCL_EP_HOME': HOME}).stdout
            got = subprocess.run([sys.executable, '-m', 'nccl_ep.info', option], capture_output=True, text=True, check=True,
                                 env={**os.environ, 'NCCL_EP_HOME': HOME}).stdout
            self.assertEqual(got, want)
            self.assertIn('NCCL_EP_TIMEOUT_MS' if option == '-e' else 'mlx5', got)

    def test_foreign_names(self):
        """A name that nobody reads is told; NCCL_EP_HOME is read by those who search for the library."""
        said = subprocess.run([EP_INFO], capture_output=True, text=True, check=True,
                              env={**os.environ, 'NCCL_EP_HOME': HOME, 'NCCL_EP_HOMES': HOME}).stdout
        told = [line for line in said.splitlines() if 'no parameter has that name' in line]
        self.assertEqual(told, ['# NCCL_EP_HOMES is set, but no parameter has that name'])

    def test_library(self):
        said = self.python("import runpy, sys; sys.argv = ['info', '-l']; runpy.run_module('nccl_ep.info', run_name='__main__')",
                           NCCL_EP_HOME=HOME)
        for part in (f'{HOME}/lib/libnccl_ep.so.0', 'libnccl_ep_standin.so', nccl_ep.__version__, '2.30.7'):
            self.assertIn(part, said)

    def test_absent(self):
        self.folder('home', 'lib', libnccl_ep__so__0='libnccl_ep.so.0')
        said = self.python("from nccl_ep import info; import sys; sys.exit(info.main([]))", fails=True,
                           NCCL_EP_HOME=os.path.join(self.tmp, 'home'))
        self.assertIn('was installed without its tools', said)


if __name__ == '__main__':
    main('__main__')
