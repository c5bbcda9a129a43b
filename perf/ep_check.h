/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The self-test of `ep_info --check`. It is a module of its own, because it calls NCCL and NCCL EP by their names:
 * ep_info opens both libraries at run time, then the module, whose undefined symbols they fill. So ep_info itself runs
 * where one of them is missing or broken, and says so.
 */
#ifndef EP_PERF_EP_CHECK_H
#define EP_PERF_EP_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "util/param.h"

#define EP_CHECK_PATH 200
#define EP_CHECK_PARAM 96
#define EP_CHECK_SYMBOL "ep_check_run"

enum ep_check_phase {
	EP_CHECK_LIBRARIES,
	EP_CHECK_COMM,
	EP_CHECK_LL_GROUP,
	EP_CHECK_LL,
	EP_CHECK_HT_GROUP,
	EP_CHECK_HT,
	EP_CHECK_DONE
};

/* What is known of a rank. Plain data: it travels between ranks. */
struct ep_check_rank {
	char host[64], boot[40]; /* the name, and what tells hosts of one name apart */
	int rank, node, local;	 /* node, local: of the group; by host where no group came to be */
	int device;		 /* -1: the CPU */
	char uuid[36], pci[32];	 /* of a GPU */
	char nccl[EP_CHECK_PATH], ep[EP_CHECK_PATH];
	int nccl_version, ep_version, anyep_version;
	char net[64], nic[64]; /* "": all ranks are in one node */
	double comm_ms, ll_group_ms, ll_ms, ht_group_ms, ht_ms;
	int phase;	  /* enum ep_check_phase: where it failed, or EP_CHECK_DONE */
	bool unchecked;	  /* HT's values: the oracle does not know this order of ranks */
	char error[768];  /* "": none */
	char cause[400];  /* of what this rank's host lacks */
	char remedy[300]; /* for it */
	char param[EP_PARAMS][EP_CHECK_PARAM];
};

struct ep_check_job {
	int rank, ranks, local; /* of this process under a launcher */
	bool processes;		/* alone: ranks are processes, not threads */
	double seconds;		/* alone: after that the test has failed */
	/* NULL: this process is alone. `bytes` of every rank; 0, or -1 with a message. */
	int (*gather)(void *arg, const void *mine, size_t bytes, void *all, char *text, size_t size);
	void *arg;
	/* In each rank, once its communicator knows the device: fills uuid and pci. */
	void (*device)(struct ep_check_rank *rank);
};

/*
 * Alone: all[ranks] are filled. Under a launcher: all[rank] of this process. 0, or -1 if a rank known here has an
 * error; text is for what belongs to no rank.
 */
typedef int (*ep_check_fn)(const struct ep_check_job *job, struct ep_check_rank *all, char *text, size_t size);

#endif
