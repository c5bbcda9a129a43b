/* SPDX-License-Identifier: Apache-2.0 */
/* LL: few tokens, least time. */
#ifndef EP_PLUGIN_LL_H
#define EP_PLUGIN_LL_H

#include "plugin/group/algo.h"

extern const struct ep_algo ep_ll_algo;

#endif
