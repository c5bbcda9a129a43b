#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The stand-in against NVIDIA's NCCL 2.30.7.

nccl.py --fetch: reads the headers out of the package nvidia-nccl-cu13 (not all of its 200 MB) into a cache, by the index
that pip is configured for. nccl.py INCLUDE LIBRARY CC...: every function, type, value and macro that our nccl.h and
nccl_device.h declare is the same in NVIDIA's, and every call that NVIDIA's declare is in our library. Exit status 77,
with the reason, where the headers cannot be had.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

PACKAGE, VERSION = 'nvidia-nccl-cu13', '2.30.7'
CACHE = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache') / f'anyep/{PACKAGE}-{VERSION}'
INITIALIZERS = {'NCCL_CONFIG_INITIALIZER': 'ncclConfig_t', 'NCCL_SIM_INFO_INITIALIZER': 'ncclSimInfo_t'}
OURS_ALONE = ('ANYEP_STANDIN', 'NCCL_H_', '_NCCL_DEVICE_H_')
# Where there is no CUDA, what NVIDIA's header needs of it
CUDA = {'cuda_runtime.h': '#pragma once\ntypedef struct CUstream_st *cudaStream_t;\n', 'cuda_fp16.h': '', 'cuda_bf16.h': ''}


def skip(why):
    print(f'skipped: {why}')
    sys.exit(77)


def fetch():
    if (CACHE / 'nccl.h').exists():
        return
    with tempfile.TemporaryDirectory() as tmp:
        report = pathlib.Path(tmp, 'report.json')
        done = subprocess.run([sys.executable, '-m', 'pip', 'install', '--dry-run', '-q', '--no-deps', '--ignore-installed',
                               '--report', report, f'{PACKAGE}=={VERSION}'], capture_output=True, timeout=60, check=False)
        if done.returncode:
            skip(f'pip does not find {PACKAGE} {VERSION}')
        url = json.loads(report.read_text())['install'][0]['download_info']['url']
    try:
        # pip's own: its proxy, certificates and index, and ranges of a file instead of all of it
        from pip._internal.network.lazy_wheel import LazyZipOverHTTP
        from pip._internal.network.session import PipSession
        with LazyZipOverHTTP(url, PipSession()) as wheel, zipfile.ZipFile(wheel) as archive:
            files = {n.split('/include/')[1]: archive.read(n) for n in archive.namelist() if '/include/' in n and n.endswith('.h')}
    except Exception as error:  # pylint: disable=broad-except
        skip(f'{PACKAGE} {VERSION} cannot be read: {type(error).__name__}')
    for name in sorted(files, key=lambda n: n == 'nccl.h'):  # nccl.h last: it says that all are there
        (CACHE / name).parent.mkdir(parents=True, exist_ok=True)
        (CACHE / name).write_bytes(files[name])


def bare(text):
    return re.sub(r'/\*.*?\*/|//[^\n]*', ' ', text, flags=re.S)


def functions(text, prefix=''):
    """Name to (result, parameters)."""
    found = re.findall(r'^%s *([\w ]+?[ *]+)(p?nccl\w+)\(([^;{]*?)\);' % prefix, bare(text), re.M)
    return {name: (result.strip(), args) for result, name, args in found if not result.startswith(('typedef', 'return'))}


def facts(text):
    """Expressions whose values must agree: macros, enum values, sizes and offsets."""
    code = bare(text)
    shown = [m for m in re.findall(r'^#define (\w+)[ \t]', text, re.M) if m not in OURS_ALONE and m not in INITIALIZERS]
    for body, name in re.findall(r'typedef enum \{(.*?)\} (nccl\w+);', code, re.S):
        shown += [v.split('=')[0].strip() for v in body.split(',')] + [f'sizeof({name})']
    for tag, body in re.findall(r'struct (\w*) ?\{(.*?)\}', code, re.S):
        name = (re.search(r'struct %s \{.*?\} (\w+);' % tag, code, re.S) or re.search(r'struct %s (\w+);' % tag, code)).group(1) \
            if tag else re.search(re.escape(body) + r'\} (\w+);', code).group(1)
        shown.append(f'sizeof({name})')
        for line in body.split(';'):
            shown += [f'offsetof({name}, {m})' for m in re.findall(r'(\w+)(?:\[\w+\])?(?=,|$)', line.strip())]
    shown += [f'sizeof({t})' for t in re.findall(r'typedef struct \w+ ?\*(\w+);', code) if t.startswith('nccl')]
    return shown + ['NCCL_VERSION(2, 8, 4)', 'NCCL_VERSION(2, 30, 7)']


SHOW = """
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <nccl.h>
TEAMS
static void text(const char *n, const char *s) { printf("%s=\\"%s\\"\\n", n, s); }
static void real(const char *n, double d) { printf("%s=%g\\n", n, d); }
static void whole(const char *n, long long v) { printf("%s=%lld\\n", n, v); }
static void address(const char *n, const void *p) { printf("%s=%p\\n", n, p); }
static void bytes(const char *n, const void *p, size_t size)
{
	printf("%s=", n);
	for (size_t i = 0; i < size; i++)
		printf("%02x", ((const unsigned char *)p)[i]);
	printf("\\n");
}
#define SHOW(x) _Generic((x), char *: text, float: real, void *: address, default: whole)(#x, x);
int main(void)
{
"""
# nccl_device.h of NVIDIA is C++; of it only what ours declares, in the same words
TEAM = re.compile(r'^struct ncclTeam \{.*?\};', re.S | re.M)


def values(cc, includes, text, teams):
    lines = [f'SHOW({e})' for e in text]
    lines += ['{ static const %s x = %s; bytes("%s", &x, sizeof(x)); }' % (t, i, i) for i, t in INITIALIZERS.items()]
    with tempfile.TemporaryDirectory() as tmp:
        source = pathlib.Path(tmp, 'facts.c')
        source.write_text(SHOW.replace('TEAMS', teams) + '\n'.join(lines) + '\nreturn 0;\n}\n')
        subprocess.run([*cc, '-std=gnu11', '-w', *includes, '-o', f'{tmp}/facts', source], check=True)
        return subprocess.run([f'{tmp}/facts'], capture_output=True, text=True, check=True).stdout.splitlines()


def signatures(cc, includes, ours, prelude):
    """Compiles NVIDIA's header with one assertion for each of our functions; the compiler's errors."""
    with tempfile.TemporaryDirectory() as tmp:
        source = pathlib.Path(tmp, 'signatures.c')
        source.write_text('#include <stdint.h>\n#include <stddef.h>\n#include <nccl.h>\n' + prelude + ''.join(
            f'_Static_assert(__builtin_types_compatible_p(__typeof__({name}), {result} ({args})), "{name} differs");\n'
            for name, (result, args) in ours.items()))
        done = subprocess.run([*cc, '-std=gnu11', '-w', '-fsyntax-only', *includes, source], capture_output=True, text=True, check=False)
        return [line for line in done.stderr.splitlines() if 'error' in line]


def follows(cc, include):
    """Whether NVIDIA's device headers compile after the nccl.h of a folder. They need C++ and CUDA."""
    with tempfile.TemporaryDirectory() as tmp:
        source = pathlib.Path(tmp, 'device.cc')
        source.write_text(f'#include <nccl.h>\n#include "{CACHE}/nccl_device.h"\nncclTeam_t team;\n')
        return not subprocess.run([*cc, '-x', 'c++', '-std=c++17', '-w', '-fsyntax-only', f'-I{include}', f'-I{CACHE}', source],
                                  capture_output=True, check=False).returncode


def main(include, library, *cc):
    if not (CACHE / 'nccl.h').exists():
        skip(f'no headers of {PACKAGE} {VERSION} in the cache; ./run test fetches them')
    ours = [pathlib.Path(include, n).read_text() for n in ('nccl.h', 'nccl_device.h')]
    theirs = [(CACHE / 'nccl.h').read_text(), '\n'.join(p.read_text() for p in sorted(CACHE.glob('nccl_device/*.h')))]
    bad = []
    with tempfile.TemporaryDirectory() as tmp:
        for name, text in CUDA.items():
            pathlib.Path(tmp, name).write_text(text)
        cuda = ['-idirafter', tmp]
        team = TEAM.search(theirs[1]).group(0) + '\ntypedef struct ncclTeam ncclTeam_t;\n'
        device = functions(ours[1])
        host = functions(theirs[1], 'NCCL_EXTERN_C __host__') # what is in the library: the rest is inline or for kernels
        team_calls = ''.join(f'{host[n][0]} {n}({host[n][1]});\n' for n in device)
        expressions = facts(ours[0]) + facts(ours[1])[:-2]
        a = values(cc, [f'-I{include}', *cuda], expressions, '#include <nccl_device.h>')
        b = values(cc, [f'-I{CACHE}', *cuda], expressions, team)
        bad += [f'ours {x}, theirs {y}' for x, y in zip(a, b) if x != y]
        bad += signatures(cc, [f'-I{CACHE}', *cuda], {**functions(ours[0]), **device}, team + team_calls)
    exported = {s.split()[-1] for s in subprocess.run([os.environ.get('NM', 'nm'), '-D', '--defined-only', library],
                                                      capture_output=True, text=True, check=True).stdout.splitlines()}
    wanted = set(functions(theirs[0])) | set(host)
    bad += [f'{name} is not in {os.path.basename(library)}' for name in sorted(wanted - exported)]
    if follows(cc, CACHE) and not follows(cc, include):
        bad.append("NVIDIA's nccl_device.h does not compile after our nccl.h")
    for line in bad:
        print('not ok:', line)
    print(f'{len(a)} values, {len(functions(ours[0])) + len(device)} functions of ours, {len(wanted)} of theirs; {len(bad)} differ')
    return 1 if bad or len(a) != len(b) or len(a) < 100 or len(wanted) < 100 else 0


if __name__ == '__main__':
    sys.exit(fetch() if sys.argv[1:] == ['--fetch'] else main(*sys.argv[1:]))
