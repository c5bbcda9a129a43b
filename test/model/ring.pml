/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ring, order and signal at small size, every interleaving: two producers push the puts of one channel, one of them two
 * at a time, the last to finish pushes the signal and waits for quiet; a consumer pops and sends; an unordered net
 * delivers in any order, some puts twice; the receiver shows the signal. A model of util/ring.h, kernels/gx/ring.h,
 * proxy/ring.c and proxy/order.c.
 *
 * Invariants: commands are popped whole and in the order of their claims, with their payload; when the signal is
 * visible or quiet ends, every put has arrived; nobody waits forever; a ring that a producer gave up (-DGIVE_UP) ends
 * for all.
 *
 * Each of these plants a bug that a run must find (test/model/check.sh):
 *   ONE_PHASE	the consumer checks only the first half
 *   NO_FENCE	the payload may be written after the entry
 *   EARLY	credit is published before the entry is read
 *   LATE	credit is published in steps too large for a claim of two
 *   HOLE	a producer gives up without reporting it
 *   POPPED	commands are counted as completed when they are popped
 *   SHOWN	a signal is visible as soon as it arrives
 *   COUNTED	arrivals are counted, not marked: duplicates count twice
 *   NARROW	as many numbers as the window, instead of twice as many
 */
#define PER 2		    /* puts of a producer */
#define TOTAL (2 * PER + 1) /* with the signal */
#define SIGNAL TOTAL	    /* its name; puts are 1 to 2 * PER */
#define WINDOW 2

/* Many laps, or credits in steps: both together have too many states for a test of seconds. */
#ifdef STEPS
#define ENTRIES 4
#define STEP 2
#else
#define ENTRIES 2
#ifdef LATE
#define STEP 2
#else
#define STEP 1
#endif
#endif
#ifdef NARROW
#define NUMBERS WINDOW
#else
#define NUMBERS (2 * WINDOW)
#endif

/* The head, the tail, and the entries: name * 2 + phase in each half. */
byte claim, seen, credit, done;
bool dead;
byte half0[ENTRIES], half1[ENTRIES];

byte owner[TOTAL + 2]; /* what must be popped at a position */
bool payload[TOTAL + 1];
byte finished;

byte sent;		  /* puts given to the net */
bool stopped;		  /* the consumer has ended */
byte name[TOTAL];	  /* of the put with this number */
byte way[TOTAL];	  /* 0 not sent, 1 in flight, 2 delivered, 3 delivered twice */
bool landed[TOTAL + 1];	  /* by name */
byte prefix, taken;
bool marked[WINDOW], signals[WINDOW];
bool shown;

#define PHASE(at) (1 - ((at) / ENTRIES) % 2)
#define WHOLE(at) (half0[(at) % ENTRIES] % 2 == PHASE(at) && half1[(at) % ENTRIES] % 2 == PHASE(at))
#ifdef ONE_PHASE
#define THERE(at) (half0[(at) % ENTRIES] % 2 == PHASE(at))
#else
#define THERE(at) WHOLE(at)
#endif

inline all_landed()
{
	assert(landed[1] && landed[2] && landed[3] && landed[4])
}

/* Two stores in any order. */
inline store(at, what)
{
	if
	:: half0[(at) % ENTRIES] = (what) * 2 + PHASE(at);
	   half1[(at) % ENTRIES] = (what) * 2 + PHASE(at)
	:: half1[(at) % ENTRIES] = (what) * 2 + PHASE(at);
	   half0[(at) % ENTRIES] = (what) * 2 + PHASE(at)
	fi
}

/* Claims n entries for what, what + 1, ... and waits until they are free. */
inline take(n, what)
{
	atomic {
		first = claim;
		claim = claim + n;
		owner[first] = what;
		if
		:: n == 2 -> owner[first + 1] = what + 1
		:: else
		fi
	}
	if
	:: dead -> goto out
	:: seen + ENTRIES >= first + n
	:: credit + ENTRIES >= first + n -> seen = credit
#ifdef GIVE_UP
	:: atomic { credit + ENTRIES < first + n -> dead = true }; goto out
#endif
#ifdef HOLE
	:: credit + ENTRIES < first + n -> goto out
#endif
	fi
}

inline give(what)
{
#ifdef NO_FENCE
	if
	:: payload[what] = true; store(first, what)
	:: store(first, what); payload[what] = true
	fi
#else
	payload[what] = true;
	store(first, what)
#endif
}

proctype producer(byte id; byte batch)
{
	byte i, n, first, what;
	bool last;

	do
	:: i < PER ->
		d_step {
			n = (PER - i < batch -> PER - i : batch);
			what = id * PER + i + 1;
			i = i + n
		};
		take(n, what);
		do
		:: n > 0 ->
			give(what);
			atomic { n--; what++; first++ }
		:: else -> break
		od
	:: else -> break
	od;
	atomic { finished++; last = (finished == 2) };
	if
	:: last ->
		take(1, SIGNAL);
		give(SIGNAL);
		(done >= TOTAL || dead);
		if
		:: !dead -> all_landed()
		:: else
		fi
	:: else
	fi;
out:	skip
}

proctype consumer()
{
	byte at, a, b;

	do
	:: at < TOTAL ->
		if
		:: THERE(at)
		:: dead && !THERE(at) -> break
		fi;
#ifdef EARLY
		if
		:: at + 1 - credit >= STEP -> credit = at + 1
		:: else
		fi;
#endif
		a = half0[at % ENTRIES] / 2;
		b = half1[at % ENTRIES] / 2;
		assert(a == b && a == owner[at] && payload[a]);
		at++;
		if
		:: at - credit >= STEP -> credit = at
		:: else
		fi;
#ifdef POPPED
		done = at;
#endif
		sent - taken < WINDOW;
		atomic { name[sent] = a; way[sent] = 1; sent++ }
	:: else -> break
	od;
	stopped = true
}

/* proxy/order.c: only the number is sent; q is the put it stands for. */
inline arrive(q)
{
	delta = (q % NUMBERS + NUMBERS - taken % NUMBERS) % NUMBERS;
	spot = (taken + delta) % WINDOW;
#ifdef SHOWN
	if
	:: name[q] == SIGNAL -> all_landed(); shown = true
	:: else
	fi;
#endif
	if
#ifdef COUNTED
	:: true ->
		if
		:: name[q] == SIGNAL -> signals[prefix % WINDOW] = true
		:: else
		fi;
		prefix++
#else
	:: delta >= NUMBERS / 2 || marked[spot] -> assert(way[q] == 3) /* rejected: only duplicates */
	:: else ->
		assert(delta < WINDOW && taken + delta == q);
		marked[spot] = true;
		signals[spot] = (name[q] == SIGNAL);
		do
		:: prefix < taken + WINDOW && marked[prefix % WINDOW] -> prefix++
		:: else -> break
		od
#endif
	fi;
	do
	:: taken < prefix ->
		if
		:: signals[taken % WINDOW] -> all_landed(); shown = true
		:: else
		fi;
		marked[taken % WINDOW] = false;
		signals[taken % WINDOW] = false;
		taken++
	:: else -> break
	od
}

#define CAN(q) (way[q] == 1 || (way[q] == 2 && taken <= (q) + NUMBERS / 2))
#ifdef POPPED
#define COMPLETED skip
#else
#define COMPLETED done++
#endif

/* The net and the receiver: puts in flight arrive at any time; duplicates until half of the numbers have passed. */
proctype receiver()
{
	byte q, delta, spot;

	do
	:: atomic {
		if
		:: CAN(0) -> q = 0
		:: CAN(1) -> q = 1
		:: CAN(2) -> q = 2
		:: CAN(3) -> q = 3
		:: CAN(4) -> q = 4
		fi;
		if
		:: way[q] == 1 -> landed[name[q]] = true; COMPLETED
		:: else
		fi;
		way[q]++;
		arrive(q) }
	:: atomic { stopped && taken >= sent -> break }
	od;
	assert(shown || dead)
}

init
{
	atomic {
		run producer(0, 1);
		run producer(1, 2);
		run consumer();
		run receiver()
	}
}
