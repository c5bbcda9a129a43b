/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_TEST_ORACLE_REFUSE_H
#define EP_TEST_ORACLE_REFUSE_H

#include "test/oracle/world.h"

/* A job; arg is an int, enum ll_layout. Invalid calls return the documented result and have no effect. */
int ll_refuse_job(struct seat *seat, const void *arg);

#endif
