/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "libsp/sp_pmix.h"
#include "libsp/sp_view.h"

/* Index of a node name in m->nodes, added at the end when new; -1 when there is no room. */
static int node_index(struct sp_mesh *m, const char *name, int *n)
{
	for (int i = 0; i < *n; i++)
		if (!strcmp(m->nodes[i], name))
			return i;
	if (*n == m->info.nnodes)
		return -1;
	snprintf(m->nodes[*n], SP_NODE_NAME, "%s", name);
	return (*n)++;
}

/* Nodes in the launcher's order (the plugin counts in it too), without those that have no rank. m->nodes has room for one
 * node a rank. */
static int map_nodes(struct sp_mesh *m, const struct sp_view *all, struct sp_error *err)
{
	char *list = sp_pmix_nodes(m->pmix), *save = NULL;
	int n = 0;

	for (char *name = list ? strtok_r(list, ",", &save) : NULL; name; name = strtok_r(NULL, ",", &save)) {
		int used = 0;

		for (int r = 0; r < m->info.world && !used; r++)
			used = !strcmp(all[r].node, name);
		if (used)
			node_index(m, name, &n);
	}
	free(list);
	for (int r = 0; r < m->info.world; r++) {
		m->node_of_rank[r] = all[r].node[0] ? node_index(m, all[r].node, &n) : -1;
		if (m->node_of_rank[r] < 0)
			return sp_errorf(err, SP_ELAUNCH, "PMIx does not tell the node of rank %d", r);
	}
	m->info.nnodes = n;
	return 0;
}

/* The launcher's view alone, for naming ranks that have not come. */
static void guess_nodes(struct sp_mesh *m)
{
	int n = 0;

	for (int r = 0; r < m->info.world; r++) {
		char name[SP_NODE_NAME];

		m->node_of_rank[r] = sp_pmix_node_of(m->pmix, r, name, sizeof(name)) ? -1 : node_index(m, name, &n);
	}
}

int sp_boot_missing(struct sp_mesh *m, const unsigned char *missing, const char *where, int seconds,
		    struct sp_error *err)
{
	char list[300] = "", more[32] = "";
	size_t at = 0;
	int total = 0, shown = 0;

	for (int r = 0; r < m->info.world; r++) {
		total += missing[r];
		if (!missing[r] || shown == 6)
			continue;
		int len = snprintf(list + at, sizeof(list) - at, "%srank %d (node %s)", shown ? ", " : "", r,
				   sp_mesh_node_of(m, r));

		if (len < 0 || (size_t)len >= sizeof(list) - at) {
			list[at] = 0;
			break;
		}
		at += (size_t)len;
		shown++;
	}
	if (total > shown)
		snprintf(more, sizeof(more), " and %d more", total - shown);
	if (!total)
		return sp_errorf(err, SP_ETIMEOUT, "%s: %d s were not enough for all %d ranks to meet, the last came late",
				 where, seconds, m->info.world);
	return sp_errorf(err, SP_ETIMEOUT, "%s: %s%s did not come within %d s; see what holds %s up there", where, list,
			 more, seconds, total == 1 ? "it" : "them");
}

/* This rank's view out, everyone's in. */
static int meet(struct sp_mesh *m, const struct sp_sizes *sizes, const struct sp_error *mistake, struct sp_view *all,
		struct sp_error *err)
{
	unsigned char *missing = calloc((size_t)m->info.world, 1);
	struct sp_view mine;
	int rc;

	if (!missing)
		return sp_errorf(err, SP_ENOMEM, "no memory for %d ranks", m->info.world);
	memset(&mine, 0, sizeof(mine));
	mine.local_size = sp_pmix_local_size(m->pmix);
	sp_pmix_node_of(m->pmix, m->info.rank, mine.node, sizeof(mine.node));
	sp_view_fill(&mine, sizes, mistake);
	rc = sp_pmix_exchange(m->pmix, "sp.view", &mine, sizeof(mine), all, m->init_timeout_s, missing, err);
	if (rc && err->code == SP_ETIMEOUT) {
		guess_nodes(m);
		sp_boot_missing(m, missing, "start (init_timeout, " SP_ENV_INIT_TIMEOUT ")", m->init_timeout_s, err);
	}
	free(missing);
	return rc;
}

int sp_boot_pmix(const struct sp_boot_opts *o, struct sp_mesh **out, struct sp_error *err)
{
	struct sp_error own = {.text = ""}, mistake;
	struct sp_view *all = NULL;
	struct sp_sizes sizes;
	struct sp_pmix *pmix;
	struct sp_mesh *m;
	char lost[400];
	int bad;

	err = err ? err : &own; /* its code is read here */
	if (sp_pmix_init(&pmix, err))
		return -1;
	m = sp_mesh_new("pmix", sp_pmix_size(pmix), sp_pmix_rank(pmix), sp_pmix_size(pmix), err);
	if (!m) {
		sp_pmix_finalize(pmix);
		return -1;
	}
	m->pmix = pmix;
	m->timeout_s = o->timeout_s > 0 ? o->timeout_s : 1800;
	bad = sp_boot_sizes(o, &sizes, &m->init_timeout_s, lost, sizeof(lost), &mistake);
	if (bad) /* the others wait for this rank: tell them why, with the deadline that is surely valid */
		m->init_timeout_s = o->init_timeout_s > 0 ? o->init_timeout_s : 120;
	all = calloc((size_t)m->info.world, sizeof(*all));
	if (!all) {
		sp_errorf(err, SP_ENOMEM, "no memory for the views of %d ranks", m->info.world);
		goto fail;
	}
	if (meet(m, &sizes, bad ? &mistake : NULL, all, err) || sp_view_agree(all, m->info.world, err) ||
	    map_nodes(m, all, err) || sp_mesh_place(m, &sizes, err) || sp_view_check_mesh(all, m, err))
		goto fail;
	sp_boot_notes(o, m, lost);
	free(all);
	*out = m;
	return 0;
fail:
	free(all);
	if (err->code == SP_ETIMEOUT) {
		m->failed = 1; /* only the end of the whole job frees the ranks that wait */
		*out = m;
		return -1;
	}
	sp_pmix_finalize(m->pmix);
	sp_mesh_free(m);
	return -1;
}
