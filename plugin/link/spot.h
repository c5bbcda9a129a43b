/* SPDX-License-Identifier: Apache-2.0 */
/* Where a device sits in the machine, as sysfs tells it, and how near two of them are. */
#ifndef EP_PLUGIN_SPOT_H
#define EP_PLUGIN_SPOT_H

#include <stdbool.h>
#include <stddef.h>

#define EP_SPOT_PATH 4096 /* bytes of a path */

struct ep_spot {
	char path[EP_SPOT_PATH]; /* in sysfs, all links followed; "" if unknown */
	int numa;		 /* -1: unknown, or several */
	int socket;		 /* of that node's CPUs; -1: unknown */
	char name[64];
};

/* Of two places. Larger is nearer; by_pci counts first. */
struct ep_near {
	int by_pci;  /* common PCI bridges, the root complex included; 0: none, -1: the second's path is unknown */
	int by_numa; /* 1: the same NUMA node */
};

/* pci: a device's folder in sysfs; "": nowhere, as its caller says. numa: -1 reads it there. */
void ep_spot_read(const char *name, const char *pci, int numa, struct ep_spot *out);
/* This process's CPUs. */
void ep_spot_cpus(const char *name, struct ep_spot *out);

/* The CPUs near a device, as a list such as "0-3,8"; "": unknown. */
void ep_spot_cpulist(const char *pci, char *out, size_t size);

/* PCI bridges from the root complex to the device, both included; 0: no PCI device. */
int ep_spot_depth(const struct ep_spot *spot);
struct ep_near ep_spot_near(const struct ep_spot *a, const struct ep_spot *b);
/* > 0: a is nearer. */
int ep_near_compare(struct ep_near a, struct ep_near b);
/* Whether data between them is known to cross from one CPU socket to another. */
bool ep_spot_across(const struct ep_spot *a, const struct ep_spot *b);

#endif
