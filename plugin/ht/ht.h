/* SPDX-License-Identifier: Apache-2.0 */
/* HT: many tokens, most bandwidth. */
#ifndef EP_PLUGIN_HT_H
#define EP_PLUGIN_HT_H

#include "plugin/group/algo.h"

extern const struct ep_algo ep_ht_algo;

#endif
