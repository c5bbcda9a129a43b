# SPDX-License-Identifier: Apache-2.0
"""Words that comments, messages and documents must not use, with what to write instead."""
import re

# Only what has no other meaning here. A blank also stands for a line break inside a comment or between two literals.
NOT_BUT = (
    (r'\bsentences?\b', 'message'),
    (r'\bafar\b|\bfar away\b', 'remote'),
    (r'\bmemory of (?:the|a|its) CPU\b(?! device)', 'host memory'),
    (r'\bmemory of (?:the|a|its) GPU\b', 'device memory'),
    (r'\bbad days?\b', 'fault injection'),
    (r'\bbest net\b', 'the first transport available on every rank'),
    (r'\bwas at hand\b', 'not yet tested on'),
    (r'\bdoes not go on\b', 'failed'),
    (r'\bwhich there is not\b', 'invalid'),
    (r'\bis no row of it\b', 'malformed row'),
    (r'\bmore than can be named\b', 'limit reached'),
    (r'\bof nobody\b', 'from an unknown sender'),
    (r'\blooks? for somebody\b', 'wrong destination'),
    (r'\bnowhere near\b', 'unknown'),
    (r'\bpass(?:es)? news on\b', 'forward a notice'),
    (r'\b(?:does|do|did) not come back from\b', 'stuck in'),
    (r'\blooks? (?:at (?:it|them) )?again\b', 'poll'),
    (r'\bno memory for\b', 'out of memory'),
)
_RULES = [(re.compile(bad.replace(' ', r'(?:[\s*]|"\s*")+'), re.I), good) for bad, good in NOT_BUT]
_FOLDERS = ('util', 'kernels', 'net', 'proxy', 'plugin', 'include', 'perf')
# A comment, or string literals side by side.
_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*', re.S)


def _texts(f):
    """(position, text) of everything that is prose."""
    if f.is_c and f.folder in _FOLDERS:
        return [(m.start(), m.group(0)) for m in _TEXT.finditer(f.text)]
    return [(0, f.text)] if f.path.endswith('.md') else []


def vocabulary(tree):
    for f in tree:
        for start, text in _texts(f):
            for rule, good in _RULES:
                for m in rule.finditer(text):
                    words = ' '.join(re.findall(r'\w+', m.group(0)))
                    yield f.path, f.line_of(start + m.start()), f'"{words}": write "{good}"'
