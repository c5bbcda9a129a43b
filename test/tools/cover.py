#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cover.py [-t N] [-s SEED] [--forbid EXPR]... [--let NAME=EXPR]... NAME=V1,V2,...: a t-wise covering set of test cells.

Prints cells, one "name=value name=value ..." line each, such that every combination of values of every N factors that
can occur at all occurs in at least one. EXPR is a Python expression over the factors' names (numbers are numbers)
that is true for cells which must not occur, e.g. --forbid 'mode == "ht" and k > 8'. --let gives an expression over
factors a name for such rules; it is no factor. The same seed gives the same cells.
Arguments may come from a file, one per line: cover.py @matrix.args

Every value of every factor is an item with a number; a cell, and whatever a rule forbids, is a bit mask of items.
Rows are built one by one: from a tuple that is not covered yet, each factor then takes the value that covers most.
"""
import argparse
import itertools
import random
import re
import sys

CANDIDATES = 6  # rows tried per row taken; 25 factors 3-wise: 1 gives 589 rows, 6 566, 20 556 for 2.5 times the time


def value_of(word):
    try:
        return int(word, 0)
    except ValueError:
        return word


class Space:
    """Factors, their values as items, and the masks of items that must not occur together."""

    def __init__(self, factors, forbid, let=()):
        self.let = [word.partition('=') for word in let]
        self.names = [name for name, _ in factors]
        self.items = [(name, value) for name, values in factors for value in values]
        self.of = {}  # factor -> its items
        for i, (name, _) in enumerate(self.items):
            self.of.setdefault(name, []).append(i)
        self.mask_of = {name: sum(1 << i for i in items) for name, items in self.of.items()}
        self.forbidden = [[] for _ in self.items]  # item -> masks it is part of
        self.wide = set()  # factors of rules over four and more, which show a conflict late
        for text in forbid:
            self.add_rule(text)

    def add_rule(self, text):
        for name, _, expr in self.let:
            text = re.sub(rf'\b{name}\b', f'({expr})', text)
        code = compile(text, '--forbid', 'eval')
        unknown = [n for n in code.co_names if n not in self.of]
        used = [n for n in self.names if n in code.co_names]
        if unknown or not used:
            raise ValueError(f'--forbid {text}: no factor is called {", ".join(unknown) or "so"}')
        self.wide.update(used if len(used) > 3 else [])
        for items in itertools.product(*(self.of[n] for n in used)):
            if eval(code, {'__builtins__': {}}, dict(self.items[i] for i in items)):
                mask = sum(1 << i for i in items)
                for i in items:
                    self.forbidden[i].append(mask)

    def add(self, mask, blocked, item):
        """The partial cell with one item more, and the items that can no longer join it; None when it is forbidden."""
        mask |= 1 << item
        for bad in self.forbidden[item]:
            rest = bad & ~mask
            if not rest:
                return None
            if not rest & (rest - 1):
                blocked |= rest
        return None if mask & blocked else (mask, blocked)

    def start(self, items):
        state = (0, sum(1 << i for i in range(len(self.items)) if (1 << i) in self.forbidden[i]))
        for i in items:
            state = state and self.add(*state, i)
        return state

    def complete(self, mask, blocked, free, pick):
        """The mask of a full legal cell that contains the partial one, or None. pick orders the items to try."""
        if not free:
            return mask
        # What is forced comes first, and what is impossible shows early; else the order given.
        left = [((self.mask_of[n] & ~blocked).bit_count(), n) for n in free]
        count, name = min(left, key=lambda x: min(x[0], 2))
        if count == 0:
            return None
        rest = [n for n in free if n != name]
        for item in pick([i for i in self.of[name] if not blocked >> i & 1], mask):
            state = self.add(mask, blocked, item)
            full = state and self.complete(*state, rest, pick)
            if full:
                return full
        return None

    def row(self, items, pick, rng):
        """complete() from a tuple of items, the other factors in random order. Wide ones come first: with others between
        them, all values of those would be tried before a conflict is undone."""
        state = self.start(items)
        taken = {self.items[i][0] for i in items}
        free = [n for n in self.names if n not in taken]
        rng.shuffle(free)
        free.sort(key=lambda n: n not in self.wide)
        return state and self.complete(*state, free, pick)

    def cell(self, mask):
        return dict(self.items[i] for i in range(len(self.items)) if mask >> i & 1)


class Uncovered:
    """The tuples still to be covered: for every strength - 1 items a mask of the items that complete them."""

    def __init__(self, space, strength):
        self.strength = strength
        self.masks = {}
        for names in itertools.combinations(space.names, strength):
            for items in itertools.product(*(space.of[n] for n in names)):
                if space.start(items):
                    self.change(items, True)

    def change(self, items, put):
        for i in items:
            key = tuple(x for x in items if x != i)
            self.masks[key] = self.masks.get(key, 0) | 1 << i if put else self.masks.get(key, 0) & ~(1 << i)

    def __contains__(self, items):
        return self.masks.get(items[:-1], 0) >> items[-1] & 1

    def gain(self, item, mask, chosen):
        """How many tuples the item covers together with a partial cell; chosen are the items of its mask."""
        if self.strength == 1:
            return self.masks[()] >> item & 1
        if self.strength == 2:
            return (self.masks.get((item,), 0) & mask).bit_count()
        return sum((self.masks.get((a, item) if a < item else (item, a), 0) & mask).bit_count() for a in chosen)


def items_of(mask):
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def cover(space, strength, seed):
    rng = random.Random(seed)
    strength = min(strength, len(space.names))
    left = Uncovered(space, strength)
    todo = [items for names in itertools.combinations(space.names, strength)
            for items in itertools.product(*(space.of[n] for n in names)) if items in left]
    rng.shuffle(todo)

    def pick(items, mask):
        chosen = list(items_of(mask))
        rng.shuffle(items)
        return sorted(items, key=lambda i: left.gain(i, mask, chosen), reverse=True)

    rows = []
    while todo:
        best, best_gain, tried = None, -1, 0
        while todo and tried < CANDIDATES:
            # Candidates start from tuples at the end; those covered meanwhile, and those no cell can contain, go.
            at = len(todo) - 1 - tried
            if at < 0:
                break
            if todo[at] not in left:
                todo[at] = todo[-1]
                todo.pop()
                continue
            full = space.row(todo[at], pick, rng)
            if not full:
                left.change(todo[at], False)
                continue
            gain = sum(t in left for t in itertools.combinations(items_of(full), strength))
            best, best_gain = (full, gain) if gain > best_gain else (best, best_gain)
            tried += 1
        if best:
            for t in itertools.combinations(items_of(best), strength):
                if t in left:
                    left.change(t, False)
            rows.append(space.cell(best))
    return rows


def covered(space, row, strength):
    return itertools.combinations([(n, row[n]) for n in space.names], strength)


def self_test():
    spaces = [
        ('a=0,1 b=0,1 c=0,1', [], 2, 6),
        ('a=1,2,3 b=1,2,3 c=1,2,3 d=1,2,3', [], 2, 14),
        ('ranks=1,2,4,8 k=1,2,8 mode=ll,ht dtype=bf16,f16,f32 hidden=128,7168 mask=0,1',
         ['mode == "ht" and mask', 'ranks == 1 and mask', 'k == 8 and hidden == 128 and dtype == "f32"'], 2, 20),
        ('ranks=1,2,4,8 k=1,2,8 mode=ll,ht dtype=bf16,f16,f32 hidden=128,7168 mask=0,1',
         ['mode == "ht" and mask', 'ranks == 1 and mask', 'k == 3'], 3, 60),
        # Pairs no rule names are impossible too: c must differ from a and from b, so a and b must be alike.
        ('a=0,1 b=0,1 c=0,1 d=0,1,2', ['a == c', 'b == c'], 2, 6),
        ('a=0,1,2 b=0,1,2 c=0,1', ['a == 2'], 2, 9),
        # Rules over four factors, as those of a number that two of them make.
        ('a=1,2 b=1,2,3 c=1,4 d=1,2 e=0,1,2', ['c * d > a * b * 2', 'e and a * b > 3 and d > 1'], 2, 16),
        ('only=1,2,3', [], 2, 3),
        ('one=1,2 two=1,2', [], 3, 4),
    ]
    for text, forbid, strength, most in spaces:
        factors = parse(text.split())
        space = Space(factors, forbid)
        cells = [dict(zip(space.names, v)) for v in itertools.product(*(values for _, values in factors))]
        # The truth by brute force: what full cells contain that no expression forbids.
        cells = [cell for cell in cells if not any(eval(f, {}, dict(cell)) for f in forbid)]
        t = min(strength, len(space.names))
        want = {c for cell in cells for c in covered(space, cell, t)}
        for seed in range(5):
            rows = cover(space, strength, seed)
            got = {c for row in rows for c in covered(space, row, t)}
            bad = [row for row in rows if row not in cells]
            if got != want or bad or len(rows) > most or rows != cover(space, strength, seed):
                sys.exit(f'cover.py: {text} seed {seed}: {len(rows)} rows (at most {most}), {len(want - got)} tuples '
                         f'missing, {len(got - want)} too many, forbidden {bad}')
    # A name for an expression: the same cells as with the expression itself.
    named = Space(parse(['a=0,1,2', 'b=0,1,2', 'c=0,1']), ['ab > 2 and c'], ['ab=a + b'])
    plain = Space(parse(['a=0,1,2', 'b=0,1,2', 'c=0,1']), ['a + b > 2 and c'])
    if cover(named, 2, 1) != cover(plain, 2, 1) or any(r['a'] + r['b'] > 2 and r['c'] for r in cover(named, 2, 1)):
        sys.exit('cover.py: --let changes the cells')
    square = Space(parse(['a=0,1,2', 'b=0,1,2', 'c=0,1,2']), [])
    if cover(square, 2, 1) == cover(square, 2, 2):
        sys.exit('cover.py: the seed changes nothing')
    print(f'cover.py: self-test passed, {len(spaces)} spaces x 5 seeds')


def parse(words):
    factors = []
    for word in words:
        name, eq, values = word.partition('=')
        if not (eq and name.isidentifier() and values) or name in dict(factors):
            raise ValueError(f'{word}: not NAME=V1,V2,... with a new name')
        factors.append((name, list(dict.fromkeys(value_of(v) for v in values.split(',')))))
    return factors


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                   fromfile_prefix_chars='@')
    args.add_argument('factor', nargs='*')
    args.add_argument('-t', '--strength', type=int, choices=(2, 3), default=2)
    args.add_argument('-s', '--seed', type=int, default=1)
    args.add_argument('--forbid', action='append', default=[], metavar='EXPR')
    args.add_argument('--let', action='append', default=[], metavar='NAME=EXPR')
    args.add_argument('--self-test', action='store_true')
    args = args.parse_intermixed_args()
    if args.self_test:
        return self_test()
    try:
        space = Space(parse(args.factor), args.forbid, args.let)
    except (ValueError, SyntaxError) as e:
        sys.exit(f'cover.py: {e}')
    rows = cover(space, args.strength, args.seed) if space.names else []
    if not rows:
        sys.exit('cover.py: nothing to cover: no factors, or every cell is forbidden')
    for row in rows:
        print(' '.join(f'{n}={row[n]}' for n in space.names))
    return 0


if __name__ == '__main__':
    sys.exit(main())
