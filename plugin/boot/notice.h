/* SPDX-License-Identifier: Apache-2.0 */
/* Death notices. All with the endpoint's lock held. */
#ifndef EP_PLUGIN_BOOT_NOTICE_H
#define EP_PLUGIN_BOOT_NOTICE_H

#include "plugin/boot/endpoint.h"

/* from: the edge the notice came by, which is not sent it again; NULL if this rank noticed. */
void ep_notice_gone(struct ep_boot *b, const struct ep_frame *f, const char *why, struct ep_conn *from);
void ep_notice_parted(struct ep_boot *b, const struct ep_frame *f, const char *why, struct ep_conn *from);
void ep_notice_left(struct ep_boot *b, uint32_t rank, uint64_t seq);
void ep_notice_spread_left(struct ep_boot *b, uint32_t rank, uint64_t seq, struct ep_conn *from);
void ep_notice_check_left(struct ep_boot *b);
void ep_notice_tell(struct ep_boot *b, struct ep_conn *c);
void ep_notice_ended(struct ep_boot *b);     /* fails because of end_rank */
void ep_notice_callbacks(struct ep_boot *b); /* drops the lock around each call */

#endif
