/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time of an operation goes, as the engine sees it: one clock, and no stamp in a kernel, whose clock is
 * another. Of the commands the first signal of each operation is followed: it comes after all rows, and the peer waits
 * for it. Off, it costs a load per turn and a branch per signal.
 */
#include "proxy/port.h"

#include "util/clock.h"

static void add(uint64_t *sum, uint64_t from, uint64_t to)
{
	port_count(sum, to > from ? to - from : 0);
}

/* What a GPU's kernel does not tell: how long its signal was queued and in flight, and the peers' came. */
static void operation_trace(const struct ep_port *p, const struct port_stamps *s)
{
	struct ep_trace *t = p->o.trace;
	unsigned row = p->o.trace_row;

	ep_trace_span(t, row, "operation", s->begun, s->ended, -1, 0);
	ep_trace_span(t, row, "queued", s->popped, s->given, -1, 0);
	ep_trace_span(t, row, "in flight", s->given, s->completed, -1, 0);
	if (s->arrived)
		ep_trace_span(t, row, "awaited", s->given, s->arrived, -1, 0);
}

/* An operation without a signal of this port is not counted, nor one whose signal never completed. */
static void operation_add(struct ep_port *p, const struct port_stamps *s)
{
	struct ep_port_times *t = &p->times;

	operation_trace(p, s);
	add(&t->popped, s->begun, s->popped);
	add(&t->given, s->begun, s->given);
	add(&t->completed, s->begun, s->completed);
	add(&t->ended, s->begun, s->ended);
	if (s->arrived) {
		add(&t->arrived, s->begun, s->arrived);
		port_count(&t->arrivals, 1);
	}
	port_count(&t->operations, 1);
}

static void words_poll(struct ep_port *p)
{
	struct port_stamps *s = &p->stamps;
	/* In this order: where the next operation shows, the end of this one does too. */
	uint32_t begun = __atomic_load_n(&p->o.open->begun, __ATOMIC_ACQUIRE);
	uint32_t ended = __atomic_load_n(&p->o.open->ended, __ATOMIC_ACQUIRE);

	if (s->begun && !s->ended && (int32_t)(ended - s->number) >= 0)
		s->ended = ep_now_ns();
	if (s->ended && s->completed) {
		operation_add(p, s);
		*s = (struct port_stamps){ .number = s->number };
	}
	if (begun == s->number)
		return;
	if (s->ended && s->given) /* in a graph the next kernel begins at once */
		p->late = *s;
	*s = (struct port_stamps){ .number = begun };
	s->begun = begun != ended ? ep_now_ns() : 0; /* else it was over before it was seen */
}

/* A producer that rings the bell wakes the engine by its first command: what this turn pops belongs to the operation
 * that shows now. */
void port_times_begin(struct ep_port *p)
{
	p->timed = p->o.open && (p->o.trace || __atomic_load_n(&p->timing, __ATOMIC_RELAXED));
	if (p->timed && p->o.rung)
		words_poll(p);
}

/* At the end of the turn, so that what was left of the operation before is popped: its acknowledgements. */
void port_times_end(struct ep_port *p)
{
	if (p->timed)
		words_poll(p);
}

void port_times_popped(struct ep_port *p, const struct port_cmd *cmd)
{
	struct port_stamps *s = &p->stamps;

	if (!s->begun || s->popped)
		return;
	s->popped = ep_now_ns();
	s->cmd = cmd;
}

void port_times_given(struct ep_port *p, const struct port_channel *ch, const struct port_cmd *cmd)
{
	struct port_stamps *s = &p->stamps;

	if (s->cmd != cmd)
		return;
	s->given = ep_now_ns();
	s->cmd = NULL;
	s->ch = ch;
	s->upto = ch->next;
}

static bool stamps_complete(struct port_stamps *s, const struct port_channel *ch, uint64_t upto)
{
	if (s->ch != ch || s->completed || (int64_t)(upto - s->upto) < 0)
		return false;
	s->completed = ep_now_ns();
	return true;
}

void port_times_completed(struct ep_port *p, const struct port_channel *ch, uint64_t upto)
{
	stamps_complete(&p->stamps, ch, upto);
	if (!stamps_complete(&p->late, ch, upto))
		return;
	operation_add(p, &p->late);
	p->late = (struct port_stamps){ 0 };
}

void port_times_arrived(struct ep_port *p)
{
	if (p->stamps.begun && !p->stamps.ended)
		p->stamps.arrived = ep_now_ns();
}

void ep_port_times(struct ep_port *port, struct ep_port_times *out)
{
	const struct ep_port_times *t = &port->times;

	__atomic_store_n(&port->timing, true, __ATOMIC_RELAXED);
	*out = (struct ep_port_times){
		.operations = __atomic_load_n(&t->operations, __ATOMIC_RELAXED),
		.popped = __atomic_load_n(&t->popped, __ATOMIC_RELAXED),
		.given = __atomic_load_n(&t->given, __ATOMIC_RELAXED),
		.completed = __atomic_load_n(&t->completed, __ATOMIC_RELAXED),
		.ended = __atomic_load_n(&t->ended, __ATOMIC_RELAXED),
		.arrivals = __atomic_load_n(&t->arrivals, __ATOMIC_RELAXED),
		.arrived = __atomic_load_n(&t->arrived, __ATOMIC_RELAXED),
	};
}
