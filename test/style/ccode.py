# SPDX-License-Identifier: Apache-2.0
"""Just enough of C to measure it: text without comments and strings, functions with length and parameters, includes."""
import re
from collections import namedtuple

Function = namedtuple('Function', 'name line length params head')

_LEX = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
_DIRECTIVE = re.compile(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.M)
_IF = re.compile(r'^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b', re.M)
_GUARD = re.compile(r'\s*#ifndef (\w+)\n#define \1\n')
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(<[^>]+>|"[^"]+")', re.M)


def _blank(match):
    text = match.group(0)
    if text[0] == '"':
        return '""' + '\n' * text.count('\n')
    if text[0] == "'":
        return "' '"
    return ' ' + '\n' * text.count('\n')


def strip(text):
    """The text with comments and the insides of literals gone, line numbers kept."""
    return _LEX.sub(_blank, text)


def conditionals(text):
    """How many #if, #ifdef, #ifndef, #elif there are, the include guard aside."""
    code = strip(text)
    return len(_IF.findall(code)) - (1 if _GUARD.match(code) else 0)


def includes(text):
    """(line, '"a/b.h"' or '<c.h>') of every include."""
    no_comments = re.sub(r'/\*.*?\*/', lambda m: '\n' * m.group(0).count('\n'), text, flags=re.S)
    return [(no_comments.count('\n', 0, m.start()) + 1, m.group(1)) for m in _INCLUDE.finditer(no_comments)]


def _parameters(head):
    """Parameters of the last bracket pair at the top of a function's head."""
    depth, start, groups = 0, 0, []
    for i, c in enumerate(head):
        if c == '(':
            depth += 1
            start = i + 1 if depth == 1 else start
        elif c == ')':
            depth -= 1
            if depth == 0:
                groups.append(head[start:i])
    inner = re.sub(r'\s+', ' ', groups[-1]).strip()
    while re.search(r'[(\[{][^()\[\]{}]*[)\]}]', inner):
        inner = re.sub(r'[(\[{][^()\[\]{}]*[)\]}]', '', inner)
    return 0 if inner in ('', 'void') else inner.count(',') + 1


def _function(head, first, last):
    bare = re.sub(r'__attribute__\s*\(\(.*?\)\)|__launch_bounds__\s*\([^)]*\)|\[\[.*?\]\]', ' ', head, flags=re.S)
    bare = bare.strip()
    if not bare.endswith(')') or bare.count('(') != bare.count(')') or re.match(r'(typedef|struct|union|enum)\b[^(]*$', bare):
        return None
    if '=' in re.sub(r'\(.*\)', '', bare, flags=re.S):
        return None
    name = re.search(r'(\w+)\s*\(', bare)
    if not name:
        return None
    return Function(name.group(1), first, last - first + 1, _parameters(bare), bare)


def functions(text):
    """Every function definition. Braces are counted; one at column 0 ends whatever an #if left open."""
    code = _DIRECTIVE.sub(lambda m: '\n' * m.group(0).count('\n'), strip(text))
    code = re.sub(r'extern\s+""\s*\{', lambda m: ' ' * 10 + '\n' * m.group(0).count('\n'), code)
    depth, line, head, head_line, found = 0, 1, '', 1, []
    opened = None
    for i, c in enumerate(code):
        if c == '\n':
            line += 1
        if c == '{':
            if depth == 0:
                opened = (head, head_line)
            depth += 1
        elif c == '}':
            depth = 0 if i == 0 or code[i - 1] == '\n' else max(0, depth - 1)
            if depth == 0 and opened:
                f = _function(*opened, line)
                if f:
                    found.append(f)
                # "} name = {" of a table goes on; a function or type is over
                head, opened = '', None
        elif depth == 0:
            if c == ';':
                head = ''
            else:
                if not head.strip():
                    head_line = line
                head += c
    return found
