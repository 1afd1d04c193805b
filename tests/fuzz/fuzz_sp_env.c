/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment contract on arbitrary text: bytes 0-3 are mesh sizes, the rest is a SLURM_TASKS_PER_NODE string.
 * What parses must place every task at its own slot, with coordinates inside their sizes.
 */
#include <stdlib.h>
#include <string.h>
#include "libsp/sp_env.h"

#define NODES 64
#define TASKS 4096

static void need(int condition)
{
	if (!condition)
		abort();
}

static void place(struct sp_sizes s, const int *counts, int nodes, int64_t world)
{
	static unsigned char seen[TASKS];
	static int node_of[TASKS], local_of[TASKS];
	struct sp_coord c;
	int node, local, spans, spanning;

	memset(seen, 0, (size_t)world);
	need(sp_env_place_all(&s, counts, nodes, node_of, local_of) == 0);
	spanning = sp_env_spanning_groups(&s, counts, nodes);
	need(spanning >= 0 && spanning <= world / s.sp);
	for (node = 0; node < nodes; node++)
		for (local = 0; local < counts[node]; local++) {
			need(sp_env_place(&s, counts, nodes, node, local, &c, &spans) == 0);
			need(c.slot >= 0 && c.slot < world && !seen[c.slot]++);
			need(node_of[c.slot] == node && local_of[c.slot] == local);
			need(c.sp < s.sp && c.cp < s.cp && c.dp_shard < s.dp_shard);
			need(((c.dp_replicate * s.dp_shard + c.dp_shard) * s.cp + c.cp) * s.sp + c.sp == c.slot);
			need(!spans || spanning > 0);
		}
	need(sp_env_place(&s, counts, nodes, nodes, 0, &c, NULL) == -1);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	int counts[NODES], nodes = 0, value, i;
	int64_t world = 0;
	struct sp_sizes s;
	char text[512], err[256] = "";

	if (size < 4 || size - 4 >= sizeof(text))
		return 0;
	s = (struct sp_sizes){ .sp = data[0] % 9, .cp = data[1] % 3, .dp_shard = data[2] % 5, .dp_replicate = data[3] % 5 };
	memcpy(text, data + 4, size - 4);
	text[size - 4] = '\0';
	if (sp_env_parse_int("--sp-size", text, 1, SP_ENV_MAX_SIZE, &value, err, sizeof(err)) == 0)
		need(value >= 1 && value <= SP_ENV_MAX_SIZE);
	else
		need(err[0] && strlen(err) < sizeof(err));
	if (sp_env_parse_tasks_per_node(text, counts, NODES, &nodes, err, sizeof(err)) < 0)
		return 0;
	need(nodes >= 1 && nodes <= NODES);
	for (i = 0; i < nodes; i++) {
		need(counts[i] >= 1 && counts[i] <= SP_ENV_MAX_SIZE);
		world += counts[i];
	}
	if (world <= TASKS && sp_env_complete(&s, world, err, sizeof(err)) == 0)
		place(s, counts, nodes, world);
	return 0;
}
