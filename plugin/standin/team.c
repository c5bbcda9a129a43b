/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/standin/comm.h"

enum team { WORLD, LSA, RAIL };

/* These calls return no result: without a communicator it is the rank itself. */
static ncclTeam_t team_of(ncclComm_t comm, enum team which, const char *call)
{
	ncclTeam_t team = { .nRanks = 1, .stride = 1 };
	struct ncclComm *c = NULL;

	if (ep_sc_get(comm, call, &c))
		return team;
	if (which == WORLD)
		team = (ncclTeam_t){ .nRanks = c->nranks, .rank = c->rank, .stride = 1 };
	else if (which == LSA)
		team = c->lsa;
	else
		team = (ncclTeam_t){ .nRanks = c->nranks / c->lsa.nRanks,
				     .rank = c->rank / c->lsa.nRanks,
				     .stride = c->lsa.nRanks };
	ep_sc_put(c);
	return team;
}

ncclTeam_t ncclTeamWorld(ncclComm_t comm)
{
	return team_of(comm, WORLD, "ncclTeamWorld");
}

ncclTeam_t ncclTeamLsa(ncclComm_t comm)
{
	return team_of(comm, LSA, "ncclTeamLsa");
}

ncclTeam_t ncclTeamRail(ncclComm_t comm)
{
	return team_of(comm, RAIL, "ncclTeamRail");
}

/* This rank is `from` in the world or in the LSA team; ranks of both are one apart. */
static int rank_of(ncclComm_t comm, bool world, ncclTeam_t team, int rank, const char *call)
{
	struct ncclComm *c = NULL;
	int from;

	if (ep_sc_get(comm, call, &c))
		return -1;
	from = world ? c->rank : c->lsa.rank;
	ep_sc_put(c);
	return from + (rank - team.rank) * team.stride;
}

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank)
{
	return rank_of(comm, true, team, rank, "ncclTeamRankToWorld");
}

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank)
{
	return rank_of(comm, false, team, rank, "ncclTeamRankToLsa");
}
