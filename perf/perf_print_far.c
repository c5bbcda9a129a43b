/* SPDX-License-Identifier: Apache-2.0 */
/* A second table for runs across nodes, as comments behind the first, and the same in JSON. */
#include <stdio.h>

#include "perf/perf.h"

/* An interval that was measured; asymmetric ranks can make it negative. */
struct part {
	double us;
	bool known;
};

struct parts {
	struct part send, engine, net, signal, unpack, kernel;
};

/*
 * From the begin of the kernel to its end. An ordered net stores signals itself: then the wait for them is part of
 * `unpack`.
 */
static struct parts parts_of(const struct perf_far *far)
{
	bool known = far->operations > 0, stored = known && far->arrivals > 0;

	return (struct parts){
		.send = { far->popped, known },
		.engine = { far->given - far->popped, known },
		.net = { far->completed - far->given, known },
		.signal = { far->arrived - far->completed, stored },
		.unpack = { far->ended - (stored ? far->arrived : far->completed), known },
		.kernel = { far->ended, known },
	};
}

static void print_part(struct part part)
{
	if (part.known)
		printf(" %9.2f", part.us);
	else
		printf(" %9s", "-");
}

static void print_net(const struct perf_net *net)
{
	printf("# net %s, device %s, %s, rows in %s memory", net->name, net->device,
	       net->ordered ? "ordered" : "unordered", net->direct ? "device" : "host");
	if (net->rate > 0)
		printf(", %g Gb/s", net->rate);
	if (net->latency > 0)
		printf(", latency %g us", net->latency);
	printf("\n# what the rank that sent most gave to it in a phase; wire: the least time by its rate and "
	       "latency\n");
	printf("# times as the engines saw them: send + ring: the first signal after the kernel began; engine, net: "
	       "until "
	       "it was\n#   given, completed; signal: until the last of the others was stored; unpack: until the "
	       "kernel "
	       "ended\n");
	printf("#%9s  %-14s %11s %9s %8s %7s %8s %8s %7s %9s %9s %9s %9s %9s %9s\n", "tokens", "phase", "bytes", "wire",
	       "commands", "puts", "signals", "put rate", "rate", "send+ring", "engine", "net", "signal", "unpack",
	       "kernel");
	printf("#%9s  %-14s %11s %9s %8s %7s %8s %8s %7s %9s %9s %9s %9s %9s %9s\n", "", "", "(B)", "(us)", "", "", "",
	       "(M/s)", "(GB/s)", "(us)", "(us)", "(us)", "(us)", "(us)", "(us)");
}

static double time_of(const struct perf_row *row)
{
	return row->device_us > 0 ? row->device_us : row->host_us;
}

void perf_print_far(const struct perf_facts *facts, const struct perf_row *rows, int count)
{
	if (!facts->net.name[0])
		return;
	print_net(&facts->net);
	for (int i = 0; i < count; i++) {
		const struct perf_far *far = &rows[i].far;
		struct parts parts = parts_of(far);

		if (!far->rounds)
			continue;
		printf("#%9d  %-14s %11.0f", rows[i].tokens, perf_phase_names[rows[i].phase], far->bytes);
		print_part((struct part){ far->wire_us, far->wire_us >= 0 });
		printf(" %8.1f %7.1f %8.1f %8.3f %7.2f", far->commands, far->puts, far->signals,
		       (far->puts + far->signals) / time_of(&rows[i]), 1e-3 * far->bytes / time_of(&rows[i]));
		print_part(parts.send);
		print_part(parts.engine);
		print_part(parts.net);
		print_part(parts.signal);
		print_part(parts.unpack);
		print_part(parts.kernel);
		printf("\n");
	}
	printf("#\n");
}

static void json_part(FILE *out, const char *name, struct part part)
{
	if (part.known)
		fprintf(out, ", \"%s\": %.3f", name, part.us);
	else
		fprintf(out, ", \"%s\": null", name);
}

void perf_json_far(FILE *out, const struct perf_row *row)
{
	const struct perf_far *far = &row->far;
	struct parts parts = parts_of(far);

	if (!far->rounds)
		return;
	fprintf(out, ", \"net_bytes\": %.0f, \"net_commands\": %.1f, \"net_puts\": %.1f, \"net_signals\": %.1f",
		far->bytes, far->commands, far->puts, far->signals);
	json_part(out, "wire_us", (struct part){ far->wire_us, far->wire_us >= 0 });
	json_part(out, "send_ring_us", parts.send);
	json_part(out, "engine_us", parts.engine);
	json_part(out, "net_us", parts.net);
	json_part(out, "signal_us", parts.signal);
	json_part(out, "unpack_us", parts.unpack);
	json_part(out, "kernel_us", parts.kernel);
}

void perf_json_net(FILE *out, const struct perf_net *net)
{
	if (!net->name[0])
		return;
	fprintf(out, "  \"net\": \"%s\", \"net_device\": \"%s\", \"net_ordered\": %s, \"net_direct\": %s", net->name,
		net->device, net->ordered ? "true" : "false", net->direct ? "true" : "false");
	json_part(out, "net_gbps", (struct part){ net->rate, net->rate > 0 });
	json_part(out, "net_latency_us", (struct part){ net->latency, net->latency > 0 });
	fprintf(out, ",\n");
}
