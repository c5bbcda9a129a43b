# SPDX-License-Identifier: Apache-2.0
"""Bad snippets, one or more per rule, that the style checker must find, and good ones it must leave alone."""

SPDX = '/* SPDX-License-Identifier: Apache-2.0 */\n'


def _fn(lines, name='f', head='static int {}(int a)'):
    return head.format(name) + '\n{\n' + '\ta++;\n' * (lines - 3) + '}\n'


def _inc(name):
    return SPDX + f'#include "{name}"\n'


def _many(count):
    return ''.join(_fn(10, f'g{i}') for i in range(count))

# (rules that must fail and no others, {path: text})
BAD = [
    ({'file_length'}, {'util/a.c': SPDX + 'int a;\n' * 600}),
    ({'file_length'}, {'test/a.c': SPDX + 'int a;\n' * 800}),
    ({'file_length'}, {'README.md': 'a\n' * 61}),
    ({'function_length'}, {'util/a.c': SPDX + _fn(70)}),
    ({'function_length'}, {'test/a.c': SPDX + _fn(101)}),
    ({'function_length', 'long_share'}, {'util/a.c': SPDX + _many(4) + _fn(101)}),
    ({'function_length', 'long_share'}, {'kernels/a.cu': SPDX + _fn(151, head='GX_KERNEL void {}(int a)')}),
    # The kernel's larger limit is for kernels only, wherever the file lies.
    ({'function_length', 'long_share'}, {'kernels/a.cu': SPDX + _fn(120)}),
    # A split head, a brace on the same line and an #if with two heads are functions too.
    ({'function_length'}, {'util/a.c': SPDX + 'static int\nf(int a,\n  int b) {\n' + '\ta = b;\n' * 60 + '}\n'}),
    ({'function_length', 'conditionals'},
     {'util/a.c': SPDX + '#if A\nint f(void)\n{\n#else\nint f(int a)\n{\n#endif\n' + '\ta();\n' * 60 + '}\n#if B\n#endif\n'}),
    ({'parameters'}, {'util/a.c': SPDX + 'int f(int a, int b, int c, int d, int e, int g, int h, int i)\n{\n}\n'}),
    ({'parameters'}, {'util/a.c': SPDX + 'int f(int a, int b, int c, int d, int e, int g, int h, int (*i)(int, int))\n{\n}\n'}),
    ({'conditionals'}, {'plugin/a.c': SPDX + '#ifdef A\n#elif B\n#endif\n'}),
    ({'banned_calls'}, {'plugin/a.c': SPDX + 'void f(void)\n{\n\tabort();\n}\n'}),
    ({'banned_calls'}, {'kernels/a.c': SPDX + 'void f(void)\n{\n\tprintf("");\n}\n'}),
    ({'banned_calls'}, {'net/a.c': SPDX + 'char *f(void)\n{\n\treturn getenv("A");\n}\n'}),
    ({'banned_calls'}, {'util/log.c': SPDX + 'void f(int a)\n{\n\tassert(a);\n}\n'}),
    ({'licence'}, {'util/a.c': 'int a;\n' + SPDX}),
    ({'licence'}, {'tool': '#!/bin/sh\ntrue\n'}),
    ({'layers'}, {'util/a.c': _inc('plugin/boot/boot.h')}),
    ({'layers'}, {'kernels/dev.h': _inc('net/net.h')}),
    ({'layers'}, {'net/a.c': _inc('proxy/ring.h')}),
    ({'layers'}, {'proxy/a.c': _inc('kernels/dev.h')}),
    ({'layers'}, {'plugin/a.c': _inc('test/rig.h')}),
    ({'layers'}, {'plugin/boot/a.c': _inc('kernels/dev.h')}),
    ({'layers'}, {'plugin/group/a.c': _inc('proxy/engine.h')}),
    # Upwards and sideways inside a folder
    ({'layers'}, {'plugin/group/a.c': _inc('plugin/ll/ll.h')}),
    ({'layers'}, {'plugin/link/a.c': _inc('plugin/group/group.h')}),
    ({'layers'}, {'plugin/ht/a.c': _inc('plugin/ll/ll.h')}),
    ({'layers'}, {'plugin/group/a.c': _inc('plugin/standin/comm.h')}),
    ({'layers'}, {'plugin/standin/a.c': _inc('plugin/link/link.h')}),
    ({'layers'}, {'net/watch.c': _inc('net/base/base.h')}),
    ({'layers'}, {'net/base/a.c': _inc('net/verbs/verbs.h')}),
    ({'layers'}, {'net/loop/a.c': _inc('net/fabric/fabric.h')}),
    ({'layers'}, {'kernels/gx/a.h': _inc('kernels/op/op.h')}),
    ({'layers'}, {'kernels/ll/a.cu': _inc('kernels/args.h')}),
    ({'layers'}, {'kernels/gx/host.h': _inc('kernels/host/launch.h')}),
    ({'layers'}, {'kernels/cuda/a.c': _inc('kernels/table.h')}),
    ({'layers'}, {'kernels/cuda/a.c': _inc('kernels/hip/hip.h')}),
    ({'layers'}, {'kernels/new.c': _inc('kernels/dev.h')}),
    ({'layers'}, {'plugin/a.c': SPDX + 'int a = cuInit;\n'}),
    ({'layers'}, {'plugin/a.c': SPDX + 'struct ibv_qp *a;\n'}),
    ({'layers'}, {'net/a.c': SPDX + '#include <infiniband/verbs.h>\n'}),
    ({'layers'}, {'net/a.c': SPDX + 'int num_experts;\n'}),
    ({'circles'}, {'util/a.h': _inc('util/b.h'), 'util/b.h': _inc('util/c.h'), 'util/c.h': _inc('util/a.h')}),
    ({'circles'}, {'proxy/a.c': _inc('proxy/b.h'), 'proxy/b.c': _inc('proxy/a.h'),
                   'proxy/a.h': SPDX + 'int a;\n', 'proxy/b.h': SPDX + 'int b;\n'}),
    ({'circles'}, {'include/nccl_ep.h': _inc('nccl_ep_ext.h'), 'include/nccl_ep_ext.h': _inc('nccl_ep.h')}),

    ({'words'}, {'README.md': 'see /ro' + 'ot/notes\n'}),
    ({'words'}, {'meson.build': "dir = '/wo" + "rk/main'\n"}),
    ({'words'}, {'run': '#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\npip -i https://py' + 'pi.org/simple\n'}),
    ({'vocabulary'}, {'net/a.c': SPDX + 'const char *a = "rank 3 is afar";\n'}),
    ({'vocabulary'}, {'util/a.h': SPDX + '/*\n * What lies in memory\n * of the CPU.\n */\n'}),
    ({'vocabulary'}, {'net/a.c': SPDX + 'const char *a = "no memory "\n\t"for the table";\n'}),
    ({'vocabulary'}, {'README.md': 'one sentence\n'}),
    ({'whitespace'}, {'README.md': 'a \n'}),
    ({'whitespace'}, {'README.md': 'a'}),
    ({'columns'}, {'test/a.c': SPDX + '\t' * 15 + 'a;\n'}),
]

GOOD = {
    'util/log.c': SPDX + 'void f(void)\n{\n\tfprintf(a, "exit(1)"); /* abort() */\n\tsnprintf(b);\n\t_Static_assert(1, "");\n}\n',
    'util/param.c': SPDX + 'char *f(void)\n{\n\treturn getenv("A");\n}\n',
    'util/many.c': SPDX + _many(50) + _fn(60),
    'util/few.c': SPDX + _many(40) + _fn(100),
    **{f'util/filler{i}.c': SPDX + _many(50) for i in range(5)},
    'kernels/k.cu': SPDX + _many(40) + _fn(150, head='GX_KERNEL void {}(int a)'),
    'kernels/gx/gx.h': SPDX + '#ifndef A\n#define A\n#if B\n#elif C\n#endif\n#endif\n',
    'plugin/a.h': SPDX + '#ifndef A\n#define A\n#include "util/log.h"\n#include "kernels/dev.h"\n#include <stdio.h>\n#endif\n',
    'plugin/check/check.c': _inc('plugin/check/check.h') + '#include "plugin/boot/topo.h"\n#include "plugin/ll/ll.h"\n',
    'plugin/check/check.h': _inc('plugin/group/group.h'),
    'plugin/group/group.h': _inc('plugin/link/link.h') + '#include "plugin/standin/query.h"\n',
    'plugin/link/link.h': _inc('proxy/engine.h'),
    'plugin/standin/comm.c': _inc('plugin/boot/boot.h') + '#include "plugin/standin/query.h"\n',
    'net/net.c': _inc('net/verbs/verbs.h') + '#include "net/option.h"\n',
    'net/verbs/verbs.h': _inc('net/base/base.h'),
    'kernels/table.c': _inc('kernels/host/host.h') + '#include "kernels/dev.h"\n',
    'kernels/host/host.h': _inc('kernels/dev.h') + '#include "kernels/kernels.cu"\n',
    'util/words.c': SPDX + '/* The GPU\'s lookup; somebody */\nint sentence, afar; /* not a remote CPU */\n',
    'plugin/comm.c': SPDX + 'const char *a = "cuInit ibv_open fi_read"; /* cuInit */\ncudaStream_t s;\n',
    'plugin/api.c': SPDX + 'int ncclFoo(int a, int b, int c, int d, int e, int g, int h, int i)\n{\n}\n',
    'plugin/table.c': SPDX + 'static const struct x t[] = {\n' + '\t{ 1, f(2) },\n' * 200 + '};\n' + _fn(20),
    'perf/ep_info.c': SPDX + 'int main(void)\n{\n\tprintf("");\n\texit(0);\n}\n',
    'test/a.c': SPDX + 'Test(a, b)\n{\n\texit(0);\n}\n' + 'int a;\n' * 700 + '#if A\n#endif\n#if B\n#endif\n',
    'run': '#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0\ntrue\n',
    'README.md': 'AnyEP\n',
}


def run(make_file, check, rules):
    wrong = 0
    caught = set()
    for want, files in BAD:
        said = []
        got = set(check([make_file(p, t) for p, t in files.items()], said.append))
        caught |= got
        if got != want:
            wrong += 1
            print(f'planted {sorted(files)} for {sorted(want)}: found {sorted(got)}: {said}')
    said = []
    if check([make_file(p, t) for p, t in GOOD.items()], said.append):
        wrong += 1
        print('the good tree was not left alone:', *said, sep='\n')
    for rule in rules:
        if rule.__name__ not in caught:
            wrong += 1
            print(f'no planted snippet for {rule.__name__}')
    print(f'style self-test: {len(BAD) + 1 + len(rules) - wrong} passed, {wrong} failed')
    return wrong != 0
