/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/spank_opts.h"

#include <stdio.h>
#include <string.h>

const char *const plug_dim_option[PLUG_NDIMS] = {
	[PLUG_SP] = "--sp-size",
	[PLUG_CP] = "--cp-size",
	[PLUG_SHARD] = "--dp-shard",
	[PLUG_REPLICATE] = "--dp-replicate",
};
const char *const plug_dim_env[PLUG_NDIMS] = {
	[PLUG_SP] = SP_ENV_SP_SIZE,
	[PLUG_CP] = SP_ENV_CP_SIZE,
	[PLUG_SHARD] = SP_ENV_DP_SHARD,
	[PLUG_REPLICATE] = SP_ENV_DP_REPLICATE,
};
/* "SLURM_SPANK_", then _SLURM_SPANK_OPTION_<plugin>_<option>: the plugin's name in SPANK_PLUGIN is part of the
 * interface. */
const char *const plug_dim_inherited[PLUG_NDIMS] = {
	[PLUG_SP] = "SLURM_SPANK__SLURM_SPANK_OPTION_sp_sp_size",
	[PLUG_CP] = "SLURM_SPANK__SLURM_SPANK_OPTION_sp_cp_size",
	[PLUG_SHARD] = "SLURM_SPANK__SLURM_SPANK_OPTION_sp_dp_shard",
	[PLUG_REPLICATE] = "SLURM_SPANK__SLURM_SPANK_OPTION_sp_dp_replicate",
};

static struct plug_opts opts;
static int max_sp = SP_ENV_MAX_SIZE;

const struct plug_opts *plug_opts(void)
{
	return &opts;
}

int plug_parse_dim(enum plug_dim dim, const char *what, const char *text, int sp_limit, int *out, char *err,
		   size_t errlen)
{
	size_t n;

	if (text != NULL && strcmp(text, "none") == 0) {
		*out = 0;
		return 0;
	}
	if (sp_env_parse_int(what, text, 1, dim == PLUG_SP ? sp_limit : SP_ENV_MAX_SIZE, out, err, errlen) == 0)
		return 0;
	n = strlen(err);
	snprintf(err + n, errlen - n, ", or none");
	return -1;
}

static int option_cb(int val, const char *optarg, int remote)
{
	char err[PLUG_ERR_LEN];
	int size = 0;

	/* What was accepted at submission stands, whatever limit a compute node's plugstack.conf has. */
	if (plug_parse_dim(val, plug_dim_option[val], optarg, remote ? SP_ENV_MAX_SIZE : max_sp, &size, err,
			   sizeof(err)) < 0) {
		if (!remote) {
			slurm_error(PLUG_PREFIX "%s", err);
			return -1;
		}
		/* A failure here would drain the node or go unnoticed; task_init reports it. */
		if (opts.error[0] == '\0')
			snprintf(opts.error, sizeof(opts.error), "%s", err);
		return 0;
	}
	opts.given[val] = 1;
	opts.size[val] = size;
	opts.calls[val]++;
	return 0;
}

/* Slurm keeps pointers to these. */
static struct spank_option option_table[] = {
	{"sp-size", "N|none",
	 "[sp] tasks that share one sequence (Ulysses sequence parallelism); alone it also gives the task count",
	 1, PLUG_SP, option_cb},
	{"dp-shard", "N|none", "[sp] data-parallel ranks that share the optimizer state (ZeRO)", 1, PLUG_SHARD,
	 option_cb},
	{"dp-replicate", "N|none", "[sp] copies of the model; default: whatever the number of tasks leaves", 1,
	 PLUG_REPLICATE, option_cb},
	{"cp-size", "N|none", "[sp] context-parallel size", 1, PLUG_CP, option_cb},
};

int plug_opts_register(spank_t sp, const struct plug_conf *conf)
{
	max_sp = conf->max_sp;
	for (size_t i = 0; i < sizeof(option_table) / sizeof(option_table[0]); i++) {
		spank_err_t rc = spank_option_register(sp, &option_table[i]);

		if (rc != ESPANK_SUCCESS) {
			slurm_error(PLUG_PREFIX "cannot register --%s: %s", option_table[i].name,
				    spank_strerror(rc));
			return -1;
		}
	}
	return 0;
}

int plug_sizes(const struct plug_opts *o, int sp_limit, plug_getenv_f *get, void *arg, struct sp_sizes *out,
	       char *err, size_t errlen)
{
	int s[PLUG_NDIMS], on = 0, exported;
	char buf[64];

	for (int d = 0; d < PLUG_NDIMS; d++)
		on |= o->given[d] && o->size[d] > 0;
	if (!on || (o->given[PLUG_SP] && o->size[PLUG_SP] == 0))
		return 0;
	/* Inside a task SP_* describe the step around us, not a wish of the user. */
	exported = get(arg, SP_ENV_ABI_NAME, buf, sizeof(buf)) != NULL;
	for (int d = 0; d < PLUG_NDIMS; d++) {
		const char *text = o->given[d] || exported ? NULL : get(arg, plug_dim_env[d], buf, sizeof(buf));

		s[d] = o->given[d] ? o->size[d] : 0;
		if (text != NULL && plug_parse_dim(d, plug_dim_env[d], text, sp_limit, &s[d], err, errlen) < 0)
			return -1;
	}
	*out = (struct sp_sizes){
		.sp = s[PLUG_SP], .cp = s[PLUG_CP], .dp_shard = s[PLUG_SHARD], .dp_replicate = s[PLUG_REPLICATE]};
	return 1;
}
