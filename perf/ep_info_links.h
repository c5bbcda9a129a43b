/* SPDX-License-Identifier: Apache-2.0 */
/* Links between the GPUs of a host, which PCI does not show. */
#ifndef EP_PERF_INFO_LINKS_H
#define EP_PERF_INFO_LINKS_H

#include <stdbool.h>

#define EP_LINKS_BUS 24 /* domain:bus:device.function, as sysfs writes it */

enum ep_link_kind { EP_LINK_NONE, EP_LINK_NVLINK, EP_LINK_XGMI };

struct ep_link {
	enum ep_link_kind kind;
	unsigned links;	     /* NVLink: how many */
	const char *version; /* NVLink, as "4.0"; "": unknown */
	bool by_switch;	     /* NVLink: through NVSwitches */
};

/* The links between n GPUs, link[n * n], as far as they are found: the others stay as they are. */

/* By NVML. NULL, or why it says nothing. */
const char *ep_links_nvml(const char (*bus)[EP_LINKS_BUS], int n, struct ep_link *link);
/* AMD: as the kernel has them below sys, "/sys" or a copy. */
void ep_links_kfd(const char *sys, const char (*bus)[EP_LINKS_BUS], int n, struct ep_link *link);

#endif
