/* SPDX-License-Identifier: Apache-2.0 */
/* ep_info between its files. */
#ifndef EP_PERF_INFO_H
#define EP_PERF_INFO_H

/* Before anything else: what nets say of themselves in the log is kept, for ep_info_nets. */
void ep_info_listen(void);
/* Every net: its devices, or why it has none; and what one rank here would use. */
void ep_info_nets(void);
/* Kinds of NICs the net verbs knows. Weak: there may be no such net in this library. */
void ep_info_profiles(void) __attribute__((weak));

#endif
