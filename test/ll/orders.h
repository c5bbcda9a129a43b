/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of operations on two LL handles that all ranks follow, as scripts of rig.h: whole, staged, interleaved. */
#ifndef EP_TEST_LL_ORDERS_H
#define EP_TEST_LL_ORDERS_H

static const char *const ll_orders[] = {
	"DA CA",
	"DA CA DB CB",
	"DA DB CA CB",
	"dA xA cA xA",
	"dA DB CB xA CA",
	"dA dB xA xB cA cB xA xB",
	"dA DB xA cB CA xB",
	"DA",
	"dA dB xB dB xA xB CB",
	"dB xB DA cB CA xB",
};
#define LL_ORDERS (sizeof(ll_orders) / sizeof(ll_orders[0]))

#endif
