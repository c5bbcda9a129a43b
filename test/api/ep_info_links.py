#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How ep_info says GPUs and NICs are joined: ep_info_links.py EP_INFO MODEL SCHEMA. Hosts are modelled by copies of /sys
that this makes, and NVML by the library in the folder MODEL; what is printed as JSON follows SCHEMA, and the text agrees."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'perf'))
import schema  # noqa: E402

EP_INFO, MODEL, SCHEMA = (os.path.abspath(a) for a in sys.argv[1:4])
del sys.argv[1:]
NVIDIA, AMD, MELLANOX = '0x10de', '0x1002', '0x15b3'


class Host:
    """A copy of /sys, as far as it is read."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = self.folder.name

    def file(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w') as f:
            f.write(text + '\n')

    def link(self, path, to):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(os.path.join(self.root, to), path)

    def device(self, path, kind, vendor, numa):
        path = 'devices/' + path
        for name, text in (('class', kind), ('vendor', vendor), ('numa_node', str(numa))):
            self.file(os.path.join(path, name), text)
        self.link('bus/pci/devices/' + os.path.basename(path), path)

    def gpu(self, path, numa, vendor=NVIDIA, kind='0x030200'):
        self.device(path, kind, vendor, numa)

    def nic(self, name, path, numa):
        self.device(path, '0x020700', MELLANOX, numa)
        self.link(f'class/infiniband/{name}/device', 'devices/' + path)

    def amd_node(self, number, bus, peers):
        """A node of the kernel's topology, with links of type XGMI to other nodes and one by PCI to the CPU."""
        at = f'class/kfd/kfd/topology/nodes/{number}'
        self.file(f'{at}/properties', f'cpu_cores_count 0\nsimd_count 304\nlocation_id {bus << 8}\ndomain 0')
        self.file(f'{at}/io_links/0/properties', f'type 2\nnode_from {number}\nnode_to 0\nweight 20')
        for i, peer in enumerate(peers):
            self.file(f'{at}/io_links/{i + 1}/properties', f'type 11\nnode_from {number}\nnode_to {peer}\nweight 15')


def board():
    """8 GPUs, two root complexes per NUMA node with two PCIe switches each; every switch has a GPU and a NIC."""
    host = Host()
    for i in range(8):
        switch = f'pci0000:0{i // 2}/0000:0{i // 2}:0{i % 2 + 1}.0/0000:2{i}:00.0'
        host.gpu(f'{switch}/0000:3{i}:00.0/0000:1{i}:00.0', i // 4)
        host.nic(f'mlx5_{i + 4}', f'{switch}/0000:3{i}:01.0/0000:4{i}:00.0', i // 4)  # mlx5_10 is behind mlx5_9
    return host


def workstation():
    """4 GPUs: 0 and 1 at one switch, 2 at a switch below it, 3 at another port of the root complex."""
    host = Host()
    switch = 'pci0000:00/0000:00:01.0/0000:02:00.0'
    host.gpu(f'{switch}/0000:03:00.0/0000:10:00.0', 0)
    host.gpu(f'{switch}/0000:03:01.0/0000:11:00.0', 0)
    host.gpu(f'{switch}/0000:03:02.0/0000:05:00.0/0000:06:00.0/0000:12:00.0', 0)
    host.gpu('pci0000:00/0000:00:02.0/0000:13:00.0', 0)
    host.device('pci0000:00/0000:00:03.0', '0x030000', '0x1a03', 0)  # a console's VGA
    host.nic('mlx5_0', 'pci0000:80/0000:80:01.0/0000:81:00.0', 1)
    return host


class Links(unittest.TestCase):
    def seen(self, host, layout, model=True, status=0):
        """The pairs by their names, with the document and the text, which agree."""
        env = {k: v for k, v in os.environ.items() if not k.startswith('NCCL_')}
        # No probing of transports and no search for Python's packages: neither is asked for here
        env.update(NVML_MODEL=layout, LD_LIBRARY_PATH=MODEL if model else '', NCCL_EP_NET='^verbs,fabric', PATH='')
        text, made = (subprocess.run([EP_INFO, '--sys', host.root] + more, env=env, capture_output=True, text=True,
                                     timeout=60) for more in ([], ['--json']))
        self.assertEqual((text.returncode, made.returncode), (status, status), text.stdout + made.stderr)
        document = json.loads(made.stdout)
        with open(SCHEMA) as f:
            self.assertEqual(list(schema.faults(document, json.load(f))), [])
        pairs = {(p['a'], p['b']): p for p in document['topology']['pairs']}
        self.matrix_check(document['topology']['devices'], pairs, text.stdout.splitlines())
        return pairs, document, text.stdout

    def matrix_check(self, devices, pairs, lines):
        names = [d['name'] for d in devices]
        head = next((i for i, line in enumerate(lines) if line.startswith('# links:')), None)
        self.assertIsNotNone(head)
        self.assertEqual(lines[head + 1].split()[1:len(names) + 1], names)
        for row, device in enumerate(devices):
            cells = lines[head + 2 + row].split()
            self.assertEqual(cells[0], device['name'])
            self.assertEqual(cells[len(names) + 1:], [device['pci'], str(device['numa']), device['device']])
            for column, other in enumerate(names):
                pair = pairs.get((device['name'], other)) or pairs.get((other, device['name']))
                want = pair and {'NVLink': f'NV{pair["links"]}', 'XGMI': 'XGMI', 'none': pair['pci']}[pair['link']]
                if want or row == column:
                    self.assertEqual(cells[column + 1], want or 'X', (device, other))

    def test_switch(self):
        """18 links of every GPU to NVSwitches; a NIC beside each GPU."""
        pairs, document, text = self.seen(board(), 'switch')
        for a in range(8):
            for b in range(a + 1, 8):
                pair = pairs[f'GPU{a}', f'GPU{b}']
                self.assertEqual((pair['link'], pair['links'], pair['switch'], pair['version']), ('NVLink', 18, True, '4.0'))
            for b in range(8):
                want = 'PIX' if a == b else 'PHB' if a // 2 == b // 2 else 'NODE' if a // 4 == b // 4 else 'SYS'
                self.assertEqual((pairs[f'GPU{a}', f'NIC{b}']['pci'], pairs[f'GPU{a}', f'NIC{b}']['link']), (want, 'none'))
        self.assertEqual([d['device'] for d in document['topology']['devices'][8:]], [f'mlx5_{i}' for i in range(4, 12)])
        self.assertIn('# NVLink 4.0 through NVSwitches\n', text)

    def test_none(self):
        """GPUs of PCIe only: how they are joined there."""
        pairs, document, text = self.seen(workstation(), 'none')
        ways = {('GPU0', 'GPU1'): 'PIX', ('GPU0', 'GPU2'): 'PXB', ('GPU1', 'GPU2'): 'PXB', ('GPU0', 'GPU3'): 'PHB',
                ('GPU1', 'GPU3'): 'PHB', ('GPU2', 'GPU3'): 'PHB'}
        ways.update({(f'GPU{i}', 'NIC0'): 'SYS' for i in range(4)})
        self.assertEqual({pair: p['pci'] for pair, p in pairs.items()}, ways)
        self.assertEqual({p['link'] for p in pairs.values()}, {'none'})
        self.assertEqual(document['topology']['nvml'], '')
        self.assertNotIn('# NVLink', text)

    def test_mesh(self):
        """Direct links, one of which is down."""
        pairs, _, text = self.seen(workstation(), 'mesh')
        self.assertEqual({pair: p['links'] for pair, p in pairs.items() if p['links'] != 4},
                         {('GPU0', 'GPU1'): 3} | {(f'GPU{i}', 'NIC0'): 0 for i in range(4)})
        self.assertEqual({(p['switch'], p['version']) for p in pairs.values() if p['links']}, {(False, '3.0')})
        self.assertIn('# NVLink 3.0, direct\n', text)

    def test_absent(self):
        """Without NVML, or with one that fails: a line, and the same verdict."""
        for model, layout, why in ((False, '', 'cannot be opened'), (True, 'fail', 'nvmlInit failed')):
            pairs, document, text = self.seen(workstation(), layout, model)
            if not model and not document['topology']['nvml']:
                self.skipTest('there is an NVML')
            self.assertIn(why, document['topology']['nvml'])
            self.assertEqual(text.count('# NVLink: not known, '), 1)
            self.assertEqual({p['link'] for p in pairs.values()}, {'none'})
            self.assertTrue(document['can_run'])

    def test_xgmi(self):
        """Two pairs of AMD's GPUs: XGMI inside a pair, PCI between them."""
        host = Host()
        for i in range(4):
            host.gpu(f'pci0000:{i}0/0000:{i}0:01.0/0000:{i}5:00.0', i // 2, AMD, '0x120000')
            host.amd_node(i + 1, i * 16 + 5, [(i ^ 1) + 1])
        host.file('class/kfd/kfd/topology/nodes/0/properties', 'cpu_cores_count 64\nsimd_count 0\nlocation_id 0')
        pairs, document, _ = self.seen(host, 'fail')
        self.assertEqual({pair for pair, p in pairs.items() if p['link'] == 'XGMI'}, {('GPU0', 'GPU1'), ('GPU2', 'GPU3')})
        self.assertEqual(pairs['GPU0', 'GPU2']['pci'], 'SYS')
        self.assertEqual(document['topology']['nvml'], '')  # nobody has asked it

    def test_nothing(self):
        """Neither GPU nor NIC, and no folder at all."""
        host = Host()
        env = dict(os.environ, LD_LIBRARY_PATH=MODEL, NCCL_EP_NET='^verbs,fabric', PATH='')
        for folder in (host.root, '/nonexistent'):
            made = subprocess.run([EP_INFO, '--sys', folder], env=env, capture_output=True, text=True, timeout=60)
            self.assertEqual(made.returncode, 0)
            self.assertIn('# links: no GPU and no RDMA device on PCI\n', made.stdout)


if __name__ == '__main__':
    unittest.main()
