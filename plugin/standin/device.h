/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_STANDIN_DEVICE_H
#define EP_PLUGIN_STANDIN_DEVICE_H

#include "kernels/dev.h"

struct ep_sc_device {
	enum ep_dev_kind kind;
	int ordinal;
};

/* The device of the calling thread, by NCCL_EP_DEVICE, for a new communicator or allocation. */
int ep_sc_device_pick(struct ep_sc_device *out);

/* A device is opened once per process and shared by its ranks: opening loads all device code. */
int ep_sc_device_open(const struct ep_sc_device *device, struct ep_dev **out);
void ep_sc_device_close(struct ep_dev *dev);

#endif
