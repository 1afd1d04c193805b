/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPANK_OPTS_H
#define SPANK_OPTS_H
/*
 * The options --sp-size, --cp-size, --dp-shard, --dp-replicate: table, callbacks and what they left behind. Slurm
 * calls a callback once for every source (inherited environment, #SBATCH lines, command line; in a compute node's
 * slurmstepd the same value twice), so the last value stands and calling again changes nothing.
 */
#include <slurm/spank.h>
#include "libsp/sp_env.h"
#include "spank/spank_cmdline.h"
#include "spank/spank_conf.h"

#define PLUG_PREFIX  "sp: " /* begins every message of the plugin */
#define PLUG_ERR_LEN 400

extern const char *const plug_dim_option[PLUG_NDIMS]; /* "--sp-size", ... */
extern const char
	*const plug_dim_env[PLUG_NDIMS]; /* "SP_SIZE", ...: a user's default for an option that is not given */
extern const char
	*const plug_dim_inherited[PLUG_NDIMS]; /* the variable by which sbatch and salloc hand the option on */

/* One value: a whole number up to the dimension's limit, or "none" (*out = 0). Returns 0, or -1 with err set. */
int plug_parse_dim(enum plug_dim dim, const char *what, const char *text, int max_sp, int *out, char *err,
		   size_t errlen);

struct plug_opts {
	int given[PLUG_NDIMS]; /* the option was seen; size 0 then means "none" */
	int size[PLUG_NDIMS];
	int calls[PLUG_NDIMS];
	char error[PLUG_ERR_LEN]; /* remote only: first error, reported in task_init */
};

/* Registers all options in the calling context. Returns 0 or -1 (logged). */
int plug_opts_register(spank_t sp, const struct plug_conf *conf);
const struct plug_opts *plug_opts(void);

/* Looks a variable up in the environment that counts in this context; NULL when unset. buf may be used for the
 * text. */
typedef const char *plug_getenv_f(void *arg, const char *name, char *buf, size_t len);

/*
 * Sizes in force: options, then SP_* variables for what has no option (unless they were exported by this plugin
 * for an outer step). Returns 1 when the feature is on, 0 when it is off, -1 with err set.
 */
int plug_sizes(const struct plug_opts *o, int max_sp, plug_getenv_f *get, void *arg, struct sp_sizes *out,
	       char *err, size_t errlen);

#endif
