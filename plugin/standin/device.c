/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/standin/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util/error.h"
#include "util/param.h"

/* The calling thread's current device of this kind. A thread without one gets device 0 only if the user insists:
 * counting initialises the driver, which does not work in a child forked later. */
static int pick_kind(enum ep_dev_kind kind, bool insist, struct ep_sc_device *out)
{
	const struct ep_dev_ops *row = ep_dev_row(kind);
	int count = 0, ordinal = 0;

	if (row->current(&ordinal)) {
		if (!insist || row->count(&count) || !count)
			return -ENODEV;
		ordinal = 0;
	}
	*out = (struct ep_sc_device){ .kind = kind, .ordinal = ordinal };
	return 0;
}

int ep_sc_device_pick(struct ep_sc_device *out)
{
	const char *want = ep_param_str(EP_P_DEVICE);
	bool any = !strcasecmp(want, "auto"), known = any;
	char kept[512], names[128] = "auto";
	int rc = -ENODEV;

	snprintf(kept, sizeof(kept), "%s", ep_last_error());
	/* The host is kind 0: tried last, always there. */
	for (int kind = EP_DEV_KINDS - 1; kind >= 0 && rc; kind--) {
		const char *name = ep_dev_row((enum ep_dev_kind)kind)->name;
		size_t n = strlen(names);

		snprintf(names + n, sizeof(names) - n, ", %s", name);
		if (!any && strcasecmp(want, name))
			continue;
		known = true;
		rc = pick_kind((enum ep_dev_kind)kind, !any, out);
	}
	if (!known)
		return EP_FAIL(EP_DEV, EP_EARG, "NCCL_EP_DEVICE=%s: expected one of %s", want, names);
	if (rc)
		return EP_FAIL(EP_DEV, EP_EDEVICE, "NCCL_EP_DEVICE=%s: no such device is usable: %s", want,
			       ep_last_error());
	ep_last_error_set(kept); /* no GPU is not an error */
	return 0;
}

struct entry {
	struct entry *next;
	struct ep_sc_device device;
	struct ep_dev *dev;
	int users;
};

static struct {
	pthread_mutex_t lock;
	struct entry *head;
} devices = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Under the lock. */
static int entry_open(const struct ep_sc_device *device, struct entry **out)
{
	struct entry *e = EP_CALLOC(EP_DEV, 1, sizeof(*e), "a device");
	int rc;

	if (!e)
		return -ENOMEM;
	e->device = *device;
	rc = ep_dev_row(device->kind)->open(device->ordinal, &e->dev);
	if (rc) {
		free(e);
		return rc;
	}
	e->next = devices.head;
	devices.head = e;
	*out = e;
	return 0;
}

int ep_sc_device_open(const struct ep_sc_device *device, struct ep_dev **out)
{
	struct entry *e;
	int rc = 0;

	pthread_mutex_lock(&devices.lock);
	for (e = devices.head; e; e = e->next)
		if (e->device.kind == device->kind && e->device.ordinal == device->ordinal)
			break;
	if (!e)
		rc = entry_open(device, &e);
	if (!rc) {
		e->users++;
		*out = e->dev;
	}
	pthread_mutex_unlock(&devices.lock);
	return rc;
}

void ep_sc_device_close(struct ep_dev *dev)
{
	struct entry **at, *e;

	if (!dev)
		return;
	pthread_mutex_lock(&devices.lock);
	for (at = &devices.head; (e = *at) && e->dev != dev;)
		at = &e->next;
	if (e && --e->users == 0) {
		*at = e->next;
		e->dev->ops->close(e->dev);
		free(e);
	}
	pthread_mutex_unlock(&devices.lock);
}
