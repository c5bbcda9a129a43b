/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/standin/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "util/error.h"
#include "util/param.h"

int ep_sc_device_pick(struct ep_sc_device *out)
{
	const struct ep_dev_ops *cuda = ep_dev_row(EP_DEV_CUDA);
	const char *want = ep_param_str(EP_P_DEVICE);
	bool insist = !strcasecmp(want, "cuda");
	struct ep_sc_device device = { .kind = EP_DEV_HOST };
	int count = 0, ordinal = 0;
	char kept[512];

	if (!insist && strcasecmp(want, "auto") && strcasecmp(want, "host"))
		return EP_FAIL(EP_DEV, EP_EARG, "NCCL_EP_DEVICE=%s is none of auto, host and cuda", want);
	snprintf(kept, sizeof(kept), "%s", ep_last_error());
	/* A thread that has not chosen a GPU gets none: only who insists starts the driver, which a later fork would
	 * not survive. */
	if (strcasecmp(want, "host") && !cuda->current(&ordinal))
		device = (struct ep_sc_device){ .kind = EP_DEV_CUDA, .ordinal = ordinal };
	else if (insist && !cuda->count(&count) && count > 0)
		device.kind = EP_DEV_CUDA;
	else if (insist)
		return EP_FAIL(EP_DEV, EP_EDEVICE, "NCCL_EP_DEVICE=cuda, but no GPU can be used here: %s",
			       ep_last_error());
	ep_last_error_set(kept); /* that there is no GPU is not a failure */
	*out = device;
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
	struct entry *e = calloc(1, sizeof(*e));
	int rc;

	if (!e)
		return EP_FAIL(EP_DEV, ENOMEM, "no memory to open a device");
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
