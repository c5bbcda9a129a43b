#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Python package nccl-extensions (nccl.ep) on this library: one LL and one HT round, checked to the bit.

  nccl_extensions.py fetch FOLDER [--python 3.12] [--machine x86_64]   downloads the wheels; needs a network
  nccl_extensions.py run FOLDER LIBNCCL_EP.SO LIBNCCL.SO [--ranks 2]   needs torch; on a GPU, or on the CPU without one

The package opens the libnccl_ep.so inside itself, so `run` unpacks it into a temporary folder, without NVIDIA's
libraries, and puts a link to ours in their place. One rank on a GPU has a communicator of the NCCL that torch brought;
several ranks on one GPU, which NCCL refuses, and the CPU have one of the stand-in, LIBNCCL.SO. Exit status 0, 1, or 77
if torch or the wheels are missing.
"""
import argparse
import ctypes
import glob
import os
import subprocess
import sys
import tempfile
import time
import zipfile

# Without their dependencies: torch and numpy are the machine's, and NCCL is not wanted.
PACKAGES = ['nccl-extensions==0.1.0', 'nccl4py==0.6.0', 'cuda-core~=1.0', 'cuda-bindings~=13.0', 'cuda-pathfinder',
            'packaging']
GLIBCS = ['manylinux_2_28', 'manylinux_2_27', 'manylinux_2_24', 'manylinux_2_17', 'manylinux2014']
SECONDS = 100
TMAX, HIDDEN, TOPK, LOCAL = 32, 2048, 4, 4


def fetch(args):
    command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:', '--dest', args.folder,
               '--implementation', 'cp', '--python-version', args.python]
    for glibc in GLIBCS:
        command += ['--platform', f'{glibc}_{args.machine}']
    return subprocess.run(command + PACKAGES, check=False).returncode


def unpack(folder, library, site):
    """The wheels without the libraries of NVIDIA's; True if nccl.ep is among them."""
    for wheel in glob.glob(os.path.join(folder, '*.whl')):
        with zipfile.ZipFile(wheel) as z:
            z.extractall(site, [n for n in z.namelist() if not (n.startswith('nccl/') and '/lib/cu1' in n)])
    package = os.path.join(site, 'nccl', 'ep')
    for cuda in ('cu12', 'cu13'):
        os.makedirs(os.path.join(package, 'lib', cuda))
        os.symlink(os.path.abspath(library), os.path.join(package, 'lib', cuda, 'libnccl_ep.so'))
    return os.path.exists(os.path.join(package, '__init__.py'))


def run(args):
    try:
        import torch  # noqa: F401: the ranks need it
    except ImportError:
        print('nccl_extensions: skipped: no torch here')
        return 77
    with tempfile.TemporaryDirectory() as tmp:
        site = os.path.join(tmp, 'site')
        if not unpack(args.folder, args.library, site):
            print(f'nccl_extensions: skipped: no wheels in {args.folder}; "fetch" downloads them')
            return 77
        env = dict(os.environ, PYTHONPATH=site + os.pathsep + os.environ.get('PYTHONPATH', ''))
        env.setdefault('NCCL_EP_TIMEOUT_MS', '30000')
        ranks = [subprocess.Popen([sys.executable, os.path.abspath(__file__), 'rank', tmp, os.path.abspath(args.library),
                                   os.path.abspath(args.nccl), str(r), str(args.ranks)], env=env)
                 for r in range(args.ranks)]
        failed = 0
        for r in ranks:
            try:
                failed += r.wait(SECONDS) != 0
            except subprocess.TimeoutExpired:
                r.kill()
                failed += 1
        print(f'nccl_extensions: {"failed" if failed else "passed"}, {args.ranks} ranks')
        return 1 if failed else 0


# ---- one rank ----

def shared_id(folder, rank, make):
    """The unique id, by way of a file."""
    path = os.path.join(folder, 'id')
    if rank == 0:
        with open(path + '.new', 'wb') as f:
            f.write(make())
        os.rename(path + '.new', path)
    end = time.time() + 30
    while not os.path.exists(path) and time.time() < end:
        time.sleep(0.01)
    with open(path, 'rb') as f:
        return f.read()


class StandIn:
    """A communicator of the stand-in beside torch's NCCL: all that nccl.ep needs of one is its address."""

    def __init__(self, library, folder, rank, ranks):
        class UniqueId(ctypes.Structure):
            _fields_ = [('internal', ctypes.c_char * 128)]

        self.nccl = ctypes.CDLL(library, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        unique, comm = UniqueId(), ctypes.c_void_p()

        def make():
            assert self.nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
            return bytes(unique)

        ctypes.memmove(ctypes.byref(unique), shared_id(folder, rank, make), ctypes.sizeof(unique))
        result = self.nccl.ncclCommInitRank(ctypes.byref(comm), ranks, unique, rank)
        assert result == 0, f'ncclCommInitRank: {result}'
        self.ptr = comm.value

    def destroy(self):
        assert self.nccl.ncclCommDestroy(ctypes.c_void_p(self.ptr)) == 0


class Rank:
    def __init__(self, folder, nccl_library, rank, ranks):
        import torch
        self.torch, self.rank, self.ranks = torch, rank, ranks
        self.gpu = torch.cuda.is_available()
        self.device = torch.device('cuda', 0) if self.gpu else torch.device('cpu')
        if self.gpu:
            torch.cuda.set_device(0)
            torch.zeros(1, device=self.device)
        self.stream = torch.cuda.current_stream().cuda_stream if self.gpu else 0
        self.experts = LOCAL * ranks
        if self.gpu and ranks > 1:
            self.comm = StandIn(nccl_library, folder, rank, ranks)
            self.what = 'the stand-in'
            return
        if not self.gpu:
            ctypes.CDLL(nccl_library, mode=os.RTLD_GLOBAL | os.RTLD_NOW)  # nccl.core takes the one that is loaded
        import nccl.core
        unique = shared_id(folder, rank, lambda: nccl.core.get_unique_id().as_bytes)
        self.comm = nccl.core.Communicator.init(ranks, rank, nccl.core.UniqueId.from_bytes(unique))
        libnccl = nccl.core.get_version().libnccl
        self.what = f'nccl.core on NCCL {libnccl and libnccl.version}'

    def inputs(self, seed, src):
        """Tokens, routing and weights of a rank. Small multiples of powers of two: sums are exact in fp32."""
        torch = self.torch
        g = torch.Generator().manual_seed(seed * 100 + src)
        t = TMAX - src * 3
        x = torch.randint(-16, 17, (t, HIDDEN), generator=g).float() / 16
        x[:, 0], x[:, 1] = src, torch.arange(t)  # says which token it is
        idx = torch.stack([torch.randperm(self.experts, generator=g)[:min(TOPK, self.experts)] for _ in range(t)])
        idx[torch.rand(idx.shape, generator=g) < 0.1] = -1
        w = torch.randint(1, 65, idx.shape, generator=g).float() / 64
        return x.bfloat16(), idx, w

    def put(self, tensor):
        return tensor.contiguous().to(self.device)

    def empty(self, shape, dtype, fill):
        return self.torch.full(shape, fill, dtype=dtype, device=self.device)

    def sync(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def same(self, what, got, want):
        got, want = got.cpu(), want.cpu()
        assert got.shape == want.shape and self.torch.equal(got, want), \
            f'rank {self.rank}: {what}: {int((got != want).sum())} of {want.numel()} values are wrong'


def expert(x, e):
    """What expert e makes of its rows; exact."""
    return x.float() * (1 + e % 4)


def ll_round(r, ep):
    torch, first = r.torch, r.rank * LOCAL
    everyone = [r.inputs(1, src) for src in range(r.ranks)]
    x, idx, w = (r.put(t) for t in everyone[r.rank])
    group = ep.Group.create(r.comm, ep.GroupConfig(algorithm=ep.Algorithm.LOW_LATENCY, num_experts=r.experts,
                                                   max_dispatch_tokens_per_rank=TMAX, max_token_bytes=2 * HIDDEN))
    handle = group.create_handle(ep.Layout.EXPERT_MAJOR, ep.Tensor(idx), stream=r.stream)
    out = r.empty((LOCAL, r.ranks * TMAX, HIDDEN), torch.bfloat16, float('nan'))
    count = r.empty((LOCAL,), torch.int32, -1)
    handle.dispatch(ep.DispatchInputs(tokens=ep.Tensor(x)), ep.DispatchOutputs(tokens=ep.Tensor(out)),
                    layout_info=ep.LayoutInfo(expert_counters=ep.Tensor(count)), stream=r.stream)
    handle.complete(stream=r.stream)
    r.sync()
    answers = torch.zeros_like(out)
    for e in range(LOCAL):
        want = torch.cat([s[0][(s[1] == first + e).any(1)] for s in everyone])
        r.same(f'rows of expert {e}', count[e], torch.tensor(len(want), dtype=torch.int32))
        got = out[e, :len(want)].cpu()
        r.same(f'tokens of expert {e}', got[torch.argsort(got[:, 0].float() * TMAX + got[:, 1].float())], want)
        answers[e, :len(want)] = expert(out[e, :len(want)], first + e).bfloat16()
    sums = r.empty(tuple(x.shape), torch.bfloat16, float('nan'))
    handle.combine(ep.CombineInputs(tokens=ep.Tensor(answers)),
                   ep.CombineOutputs(tokens=ep.Tensor(sums), topk_weights=ep.Tensor(w)), stream=r.stream)
    handle.complete(stream=r.stream)
    r.sync()
    x, idx, w = everyone[r.rank]
    want = torch.zeros(x.shape)
    for k in range(idx.shape[1]):
        rows = torch.stack([expert(x[t], int(idx[t, k])).bfloat16().float() for t in range(len(x))])
        want += torch.where(idx[:, k:k + 1] >= 0, w[:, k:k + 1] * rows, torch.zeros(()))
    r.same('LL sums', sums, want.bfloat16())
    handle.destroy()
    group.destroy()


def ht_rows(r, everyone):
    """What this rank receives: rows by (source, token), and their local experts and weights."""
    torch, first = r.torch, r.rank * LOCAL
    rows, ids, weights = [], [], []
    for x, idx, w in everyone:
        for t in range(len(x)):
            mine = sorted((int(e) - first, float(w[t, k])) for k, e in enumerate(idx[t]) if first <= e < first + LOCAL)
            if mine:
                pad = idx.shape[1] - len(mine)
                rows.append(x[t])
                ids.append([e for e, _ in mine] + [-1] * pad)
                weights.append([v for _, v in mine] + [0.0] * pad)
    return torch.stack(rows), torch.tensor(ids), torch.tensor(weights)


def ht_round(r, ep):
    torch = r.torch
    everyone = [r.inputs(2, src) for src in range(r.ranks)]
    x, idx, w = (r.put(t) for t in everyone[r.rank])
    n, k = r.ranks * TMAX, idx.shape[1]
    group = ep.Group.create(r.comm, ep.GroupConfig(algorithm=ep.Algorithm.HIGH_THROUGHPUT, num_experts=r.experts,
                                                   max_dispatch_tokens_per_rank=TMAX, max_recv_tokens_per_rank=n,
                                                   max_token_bytes=2 * HIDDEN))
    total = r.empty((1,), torch.int32, -1)
    handle = group.create_handle(ep.Layout.FLAT, ep.Tensor(idx), stream=r.stream,
                                 layout_info=ep.LayoutInfo(recv_total_counter=ep.Tensor(total)))
    out = r.empty((n, HIDDEN), torch.bfloat16, float('nan'))
    out_idx, out_w = r.empty((n, k), torch.int64, 77), r.empty((n, k), torch.float32, float('nan'))
    handle.dispatch(ep.DispatchInputs(tokens=ep.Tensor(x), topk_weights=ep.Tensor(w)),
                    ep.DispatchOutputs(tokens=ep.Tensor(out), topk_weights=ep.Tensor(out_w), topk_idx=ep.Tensor(out_idx)),
                    stream=r.stream)
    handle.complete(stream=r.stream)
    r.sync()
    rows, ids, weights = ht_rows(r, everyone)
    r.same('recv_total', total, torch.tensor([len(rows)], dtype=torch.int32))
    r.same('HT tokens', out[:len(rows)], rows)
    r.same('HT ids', out_idx, torch.cat([ids, torch.full((n - len(ids), k), -1)]))
    r.same('HT weights', out_w, torch.cat([weights, torch.zeros(n - len(ids), k)]))
    answers = torch.zeros_like(out)
    factor = sum(torch.where(ids[:, j] >= 0, weights[:, j] * (1 + ids[:, j] % 4), torch.zeros(())) for j in range(k))
    answers[:len(rows)] = r.put((rows.float() * factor[:, None]).bfloat16())
    sums = r.empty(tuple(x.shape), torch.bfloat16, float('nan'))
    handle.combine(ep.CombineInputs(tokens=ep.Tensor(answers)), ep.CombineOutputs(tokens=ep.Tensor(sums)), stream=r.stream)
    handle.complete(stream=r.stream)
    r.sync()
    x, idx, w = everyone[r.rank]
    want = torch.zeros(x.shape)
    for owner in range(r.ranks):
        here = (idx // LOCAL == owner) & (idx >= 0)
        factor = torch.where(here, w * (1 + idx % LOCAL % 4), torch.zeros(())).sum(1)
        want += (x.float() * factor[:, None]).bfloat16().float()
    r.same('HT sums', sums, want.bfloat16())
    handle.destroy()
    group.destroy()


def rank_main(args):
    r = Rank(args.folder, args.nccl, args.rank, args.ranks)
    import nccl.ep as ep
    assert os.path.samefile(ep.get_lib_path(), args.library), f'{ep.get_lib_path()} was loaded'
    ll_round(r, ep)
    ht_round(r, ep)
    r.comm.destroy()
    print(f'rank {r.rank} of {r.ranks}: nccl.ep on library {ep.get_lib_version()}, {r.what}, {r.device}: LL and HT right')
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    p = commands.add_parser('fetch')
    p.add_argument('folder')
    p.add_argument('--python', default='%d.%d' % sys.version_info[:2])
    p.add_argument('--machine', default=os.uname().machine)
    p.set_defaults(call=fetch)
    p = commands.add_parser('run')
    p.add_argument('folder')
    p.add_argument('library')
    p.add_argument('nccl')
    p.add_argument('--ranks', type=int, default=1)
    p.set_defaults(call=run)
    p = commands.add_parser('rank')  # of run
    for name, kind in (('folder', str), ('library', str), ('nccl', str), ('rank', int), ('ranks', int)):
        p.add_argument(name, type=kind)
    p.set_defaults(call=rank_main)
    args = parser.parse_args()
    return args.call(args)


if __name__ == '__main__':
    sys.exit(main())
