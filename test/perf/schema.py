# SPDX-License-Identifier: Apache-2.0
"""The part of JSON Schema that doc/ep_perf.schema.json uses; anything else in a schema is an error, not ignored."""

KNOWN = {'$schema', '$ref', 'title', 'description', 'definitions', 'type', 'enum', 'minimum', 'maximum', 'required',
         'properties', 'additionalProperties', 'items'}
TYPES = {'object': dict, 'array': list, 'string': str, 'boolean': bool, 'integer': int, 'number': (int, float),
         'null': type(None)}


def _is(value, name):
    if isinstance(value, bool):
        return name == 'boolean'
    return isinstance(value, TYPES[name])


def faults(value, schema, root=None, at='$'):
    """Every place where the value is not what the schema says, as text."""
    root = root or schema
    unknown = set(schema) - KNOWN
    assert not unknown, f'{at}: the schema uses {unknown}, which schema.py does not check'
    if '$ref' in schema:
        name = schema['$ref'].removeprefix('#/definitions/')
        yield from faults(value, root['definitions'][name], root, at)
        return
    types = schema.get('type', list(TYPES))
    types = types if isinstance(types, list) else [types]
    if not any(_is(value, t) for t in types):
        yield f'{at}: {value!r} is not {" or ".join(types)}'
        return
    if 'enum' in schema and value not in schema['enum']:
        yield f'{at}: {value!r} is none of {schema["enum"]}'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get('minimum', value) or value > schema.get('maximum', value):
            yield f'{at}: {value} is out of range'
    if isinstance(value, dict):
        members = schema.get('properties', {})
        for name in schema.get('required', []):
            if name not in value:
                yield f'{at}: {name} is missing'
        for name, inner in value.items():
            if name in members:
                yield from faults(inner, members[name], root, f'{at}.{name}')
            elif schema.get('additionalProperties') is False:
                yield f'{at}: {name} is not in the schema'
    if isinstance(value, list):
        for i, inner in enumerate(value):
            yield from faults(inner, schema.get('items', {}), root, f'{at}[{i}]')
