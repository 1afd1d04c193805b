/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_ENV_H
#define LIBSP_SP_ENV_H
/*
 * The contract between the SPANK plugin, the trainer and users of libsp: names and parsing of the
 * SP_* environment, the layout rules of the process mesh and their one-line error texts.
 *
 * Pure functions on plain integers and strings; depends on libc alone, allocates nothing, logs nothing.
 *
 *     world = dp_replicate x dp_shard x cp x sp          (sp varies fastest)
 *
 * A rank's place ("slot") in that order comes from (node, local index), not from its global rank, so
 * that an sp group stays inside one node for any srun --distribution:
 *
 *     node 0: 3 tasks   node 1: 3 tasks   sp = 2
 *     slots  [0 1] 4     [2 3] 5           complete groups first, node by node;
 *                                          what is left over forms groups across nodes, in node order
 */
#include <stddef.h>
#include <stdint.h>

#define SP_ENV_ABI 1
#define SP_ENV_MAX_SIZE 65536 /* largest value of one mesh dimension */
#define SP_ENV_MAX_NODES 65536

/* Input to the programs (environment beats configuration file, srun options beat both) and, with the
 * ones below, what the plugin exports from remote task_init. All decimal integers. */
#define SP_ENV_SP_SIZE "SP_SIZE"
#define SP_ENV_DP_REPLICATE "SP_DP_REPLICATE"
#define SP_ENV_DP_SHARD "SP_DP_SHARD"
#define SP_ENV_CP_SIZE "SP_CP_SIZE"
#define SP_ENV_INIT_TIMEOUT "SP_INIT_TIMEOUT" /* seconds to wait for all ranks at start; default 120 */

/* Exported by the plugin only. */
#define SP_ENV_ABI_NAME "SP_ABI"
#define SP_ENV_WORLD "SP_WORLD_SIZE"
#define SP_ENV_RANK "SP_RANK"             /* global rank of the task in the step */
#define SP_ENV_SLOT "SP_SLOT"             /* place in mesh order */
#define SP_ENV_SP_RANK "SP_SP_RANK"
#define SP_ENV_CP_RANK "SP_CP_RANK"
#define SP_ENV_SHARD_RANK "SP_DP_SHARD_RANK"
#define SP_ENV_REPLICATE_RANK "SP_DP_REPLICATE_RANK"
#define SP_ENV_LOCAL_RANK "SP_LOCAL_RANK"
#define SP_ENV_LOCAL_SIZE "SP_LOCAL_SIZE"
#define SP_ENV_NODE "SP_NODE"
#define SP_ENV_NNODES "SP_NNODES"
#define SP_ENV_TASKS_PER_NODE "SP_TASKS_PER_NODE" /* Slurm's compressed form, "4(x2),3" */

/* Mesh sizes. 0 means "not given". */
struct sp_sizes {
	int sp, cp, dp_shard, dp_replicate;
};

/* A rank's place: coordinates and the slot they add up to:
 * slot = ((replicate * dp_shard + shard) * cp + c) * sp + s. */
struct sp_coord {
	int slot, sp, cp, dp_shard, dp_replicate;
};

/* Parses a decimal integer in [min, max] with nothing around it: no sign, blank, leading zero ("0" itself
 * is fine) or trailing text. Returns 0, or -1 with one line in err naming `what`, the value and the range. */
int sp_env_parse_int(const char *what, const char *text, int min, int max, int *out, char *err, size_t errlen);

/* Parses Slurm's SLURM_TASKS_PER_NODE ("6,1(x2)") into counts[0..*n), at most max nodes, each count
 * 1..SP_ENV_MAX_SIZE. Returns 0, or -1 with err set. */
int sp_env_parse_tasks_per_node(const char *text, int *counts, int max, int *n, char *err, size_t errlen);

/* Fills what is not given: sp, cp and dp_shard become 1, dp_replicate what is left of `world`
 * (world = 0: unknown, dp_replicate becomes 1). Returns 0 when sp*cp*dp_shard*dp_replicate == world (or
 * world was 0), else -1 with one line that says what was given and the nearest task counts or sizes that fit. */
int sp_env_complete(struct sp_sizes *s, int64_t world, char *err, size_t errlen);

/* Product of the given sizes (unset ones count 1), or -1 on overflow past SP_ENV_MAX_SIZE. */
int64_t sp_env_product(const struct sp_sizes *s);

/* Place of the task `local` of node `node` when node i runs counts[i] tasks. Sizes must be complete and
 * their product the sum of counts (else -1). Returns 0 and fills *out; *spans (may be NULL) becomes 1 when
 * the task's sp group has members on several nodes, else 0. O(nnodes). */
int sp_env_place(const struct sp_sizes *s, const int *counts, int nnodes, int node, int local,
                 struct sp_coord *out, int *spans);

/* Inverse direction for whole maps: node_of[slot], local_of[slot] for every slot (arrays of `world`
 * entries, owned by the caller). Returns 0 or -1 as sp_env_place. */
int sp_env_place_all(const struct sp_sizes *s, const int *counts, int nnodes, int *node_of, int *local_of);

/* Number of sp groups that have members on several nodes; -1 as above. */
int sp_env_spanning_groups(const struct sp_sizes *s, const int *counts, int nnodes);

#endif
