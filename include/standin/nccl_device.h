/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Teams of ranks, which NCCL declares in its nccl_device.h. The stand-in has nothing that kernels could call. NVIDIA's
 * own device headers may follow nccl.h instead of this one.
 */
#ifndef _NCCL_DEVICE_H_
#define _NCCL_DEVICE_H_

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* nRanks ranks, stride apart; rank is this rank's index among them. */
struct ncclTeam {
	int nRanks, rank, stride;
};
typedef struct ncclTeam ncclTeam_t;

/* All ranks; those that can load from and store to each other's memory; those at this place of each such team. Of an
 * invalid communicator the rank alone. */
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
/* A rank of the team as one of the world, and of ncclTeamLsa. -1: the communicator is invalid. */
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
