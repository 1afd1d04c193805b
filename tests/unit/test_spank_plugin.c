/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The built plugin, loaded as Slurm loads it, with this program in Slurm's place: same calls, same order, same
 * awkward habits (callbacks once per source, twice in slurmstepd; items that are not available; an array that must
 * not be read at its end). Small enough for valgrind, which tests/bats/plugin_binary.bats runs it under.
 */
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
/* What the plugin is to find here must be visible to it. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
#pragma GCC visibility pop
#include <cmocka.h>

#define MAX_ENV	    128
#define MAX_OPTIONS 8

/* ---- Slurm's side
 * ------------------------------------------------------------------------------------------------ */

static struct {
	spank_context_t context;
	int can_register; /* only inside slurm_spank_init */
	struct spank_option *options[MAX_OPTIONS];
	int noptions;
	char *env[MAX_ENV + 1]; /* the job's environment, owned */
	uint32_t stepid, ntasks, nnodes, nodeid, nlocal, rank;
	int local;
	int refuse_items, refuse_setenv;
	char log[4096]; /* all messages, one a line, with their level */
} slurm;

static void add_log(const char *level, const char *format, va_list ap)
{
	size_t n = strlen(slurm.log);

	n += (size_t)snprintf(slurm.log + n, sizeof(slurm.log) - n, "%s: ", level);
	n += (size_t)vsnprintf(slurm.log + n, sizeof(slurm.log) - n, format, ap);
	snprintf(slurm.log + n, sizeof(slurm.log) - n, "\n");
}

#define LOGGER(name)                                                                                              \
	void name(const char *format, ...)                                                                        \
	{                                                                                                         \
		va_list ap;                                                                                       \
                                                                                                                  \
		va_start(ap, format);                                                                             \
		add_log(#name, format, ap);                                                                       \
		va_end(ap);                                                                                       \
	}
LOGGER(slurm_error)
LOGGER(slurm_info)
LOGGER(slurm_verbose)

void slurm_debug2(const char *format, ...)
{
	(void)format;
}

spank_context_t spank_context(void)
{
	return slurm.context;
}
const char *spank_strerror(spank_err_t err)
{
	return err == ESPANK_SUCCESS ? "success" : "refused by the test";
}

spank_err_t spank_option_register(spank_t sp, struct spank_option *opt)
{
	(void)sp;
	if (!slurm.can_register || opt->name == NULL || opt->usage == NULL || opt->cb == NULL ||
	    strlen(opt->name) > SPANK_OPTION_MAXLEN)
		return ESPANK_BAD_ARG;
	slurm.options[slurm.noptions++] = opt;
	return ESPANK_SUCCESS;
}

static int find_env(const char *name)
{
	size_t n = strlen(name);
	int i;

	for (i = 0; slurm.env[i] != NULL; i++)
		if (strncmp(slurm.env[i], name, n) == 0 && slurm.env[i][n] == '=')
			return i;
	return -1;
}

static const char *job_env(const char *name)
{
	int i = find_env(name);

	return i < 0 ? NULL : slurm.env[i] + strlen(name) + 1;
}

spank_err_t spank_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
	int i = find_env(name);

	(void)sp;
	if (slurm.context != S_CTX_REMOTE)
		return ESPANK_NOT_REMOTE;
	if (slurm.refuse_setenv)
		return ESPANK_BAD_ARG;
	if (i >= 0 && !overwrite)
		return ESPANK_ENV_EXISTS;
	if (i < 0)
		for (i = 0; slurm.env[i] != NULL; i++)
			assert_true(i < MAX_ENV - 1);
	free(slurm.env[i]);
	assert_true(asprintf(&slurm.env[i], "%s=%s", name, value) > 0);
	return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t sp, const char *name)
{
	int i = find_env(name);

	(void)sp;
	if (slurm.context != S_CTX_REMOTE)
		return ESPANK_NOT_REMOTE;
	if (i < 0)
		return ESPANK_SUCCESS;
	free(slurm.env[i]);
	for (; slurm.env[i] != NULL; i++)
		slurm.env[i] = slurm.env[i + 1];
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
	spank_err_t rc = ESPANK_SUCCESS;
	int remote = slurm.context == S_CTX_REMOTE;
	va_list ap;

	(void)sp;
	if (slurm.refuse_items || slurm.context == S_CTX_ALLOCATOR)
		return ESPANK_NOT_AVAIL;
	va_start(ap, item);
	switch (item) {
	case S_JOB_STEPID:
		*va_arg(ap, uint32_t *) = slurm.stepid;
		break;
	case S_JOB_TOTAL_TASK_COUNT:
		*va_arg(ap, uint32_t *) = slurm.ntasks;
		break;
	case S_JOB_NNODES:
		*va_arg(ap, uint32_t *) = slurm.nnodes;
		break;
	case S_JOB_NODEID:
		if (remote)
			*va_arg(ap, uint32_t *) = slurm.nodeid;
		else
			rc = ESPANK_NOT_REMOTE;
		break;
	case S_JOB_LOCAL_TASK_COUNT:
		if (remote)
			*va_arg(ap, uint32_t *) = slurm.nlocal;
		else
			rc = ESPANK_NOT_REMOTE;
		break;
	case S_JOB_ENV:
		if (remote)
			*va_arg(ap, char ***) = slurm.env;
		else
			rc = ESPANK_NOT_REMOTE;
		break;
	case S_TASK_ID:
		*va_arg(ap, int *) = slurm.local;
		break;
	case S_TASK_GLOBAL_ID:
		*va_arg(ap, uint32_t *) = slurm.rank;
		break;
	case S_JOB_LOCAL_TO_GLOBAL_ID: {
		uint32_t id = va_arg(ap, uint32_t);

		if (id >= slurm.nlocal) /* real Slurm reads past its array here */
			fail_msg("S_JOB_LOCAL_TO_GLOBAL_ID with id %u of %u", id, slurm.nlocal);
		*va_arg(ap, uint32_t *) = slurm.rank;
		break;
	}
	default:
		rc = ESPANK_BAD_ARG;
	}
	va_end(ap);
	return rc;
}

/* ---- the plugin
 * -------------------------------------------------------------------------------------------------- */

static struct {
	void *handle;
	spank_f *init, *post_opt, *local_user_init, *user_init, *task_init, *exit;
	double slowest_us;
} plugin;

static spank_f *hook(const char *name)
{
	spank_f *f = (spank_f *)dlsym(plugin.handle, name);

	assert_non_null(f);
	return f;
}

static int setup(void **state)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 40);

	(void)state;
	if (n <= 0)
		return -1;
	path[n] = '\0';
	strcpy(path + strlen(dirname(dirname(path))), "/lib/spank_sp.so"); /* build/tests/x -> build/lib/... */
	memset(&slurm, 0, sizeof(slurm));
	/* Slurm loads with RTLD_LAZY; NOW shows a symbol that is missing. Its statics start anew with every load.
	 */
	plugin.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (plugin.handle == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return -1;
	}
	plugin.init = hook("slurm_spank_init");
	plugin.post_opt = hook("slurm_spank_init_post_opt");
	plugin.local_user_init = hook("slurm_spank_local_user_init");
	plugin.user_init = hook("slurm_spank_user_init");
	plugin.task_init = hook("slurm_spank_task_init");
	plugin.exit = hook("slurm_spank_exit");
	return 0;
}

static int teardown(void **state)
{
	static const char *const names[] = {
		"SLURM_NTASKS",	 "SLURM_TASKS_PER_NODE", "SLURM_MPI_TYPE",
		"SLURM_SP_STEP", "SLURM_JOB_ID",	 "SP_DP_SHARD",
		"SP_ABI",	 "SLURM_HET_SIZE",	 "SLURM_SPANK__SLURM_SPANK_OPTION_sp_sp_size"};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	for (int i = 0; slurm.env[i] != NULL; i++)
		free(slurm.env[i]);
	return dlclose(plugin.handle);
}

static int timed(spank_f *f, int ac, char **av)
{
	struct timespec a, b;
	double us;
	int rc;

	clock_gettime(CLOCK_MONOTONIC, &a);
	rc = f(NULL, ac, av);
	clock_gettime(CLOCK_MONOTONIC, &b);
	us = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3;
	if (us > plugin.slowest_us)
		plugin.slowest_us = us;
	return rc;
}

static int init(spank_context_t context, const char *arg)
{
	char word[64], *av[] = {word, NULL};
	int rc;

	snprintf(word, sizeof(word), "%s", arg != NULL ? arg : "");
	slurm.context = context;
	slurm.can_register = 1;
	rc = timed(plugin.init, arg != NULL, av);
	slurm.can_register = 0;
	return rc;
}

static int option(const char *name, const char *value)
{
	for (int i = 0; i < slurm.noptions; i++)
		if (strcmp(slurm.options[i]->name, name) == 0)
			return slurm.options[i]->cb(slurm.options[i]->val, value, slurm.context == S_CTX_REMOTE);
	fail_msg("--%s is not registered", name);
	return 0;
}

static void assert_logged(const char *text)
{
	if (strstr(slurm.log, text) == NULL)
		fail_msg("expected in the log:\n  %s\nlog:\n%s", text, slurm.log);
}

/* srun up to local_user_init for a step of ntasks on nnodes. */
static int srun_step(uint32_t ntasks, uint32_t nnodes, const char *tpn, const char *mpi)
{
	int rc = timed(plugin.post_opt, 0, NULL);

	if (rc != 0)
		return rc;
	slurm.ntasks = ntasks;
	slurm.nnodes = nnodes;
	setenv("SLURM_TASKS_PER_NODE", tpn, 1);
	setenv("SLURM_MPI_TYPE", mpi, 1);
	return timed(plugin.local_user_init, 0, NULL);
}

/* ---- tests
 * ------------------------------------------------------------------------------------------------------- */

static void test_options_in_every_context(void **state)
{
	static const char *const names[] = {"sp-size", "dp-shard", "dp-replicate", "cp-size"};
	const spank_context_t with[] = {S_CTX_LOCAL, S_CTX_ALLOCATOR, S_CTX_REMOTE};

	(void)state;
	for (size_t c = 0; c < 3; c++) {
		slurm.noptions = 0;
		assert_int_equal(init(with[c], NULL), 0);
		assert_int_equal(slurm.noptions, 4);
		for (size_t i = 0; i < 4; i++) {
			assert_string_equal(slurm.options[i]->name, names[i]);
			assert_int_equal(slurm.options[i]->has_arg, 1);
			/* --help prints "--name=arginfo" into 81 bytes and wraps usage at blanks. */
			assert_true(strlen(slurm.options[i]->name) + strlen(slurm.options[i]->arginfo) < 28);
		}
	}
	slurm.noptions = 0;
	assert_int_equal(init(S_CTX_SLURMD, "nonsense"), 0); /* never keeps a node from starting */
	assert_int_equal(init(S_CTX_JOB_SCRIPT, "nonsense"), 0);
	assert_int_equal(slurm.noptions, 0);
}

static void test_local_accepts(void **state)
{
	(void)state;
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_int_equal(option("sp-size", "4"), 0);
	assert_int_equal(srun_step(8, 2, "4(x2)", "pmix"), 0);
	assert_logged(
		"slurm_verbose: sp: world 8 = dp_replicate 2 x dp_shard 1 x cp 1 x sp 4 on 2 nodes (4(x2) tasks)");
	assert_null(strstr(slurm.log, "slurm_error"));
	assert_null(getenv("SLURM_SP_STEP"));
}

static void test_local_last_value_wins(void **state)
{
	(void)state;
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_int_equal(option("sp-size", "8"), 0);
	assert_int_equal(option("sp-size", "2"), 0);
	assert_int_equal(srun_step(6, 1, "6", "pmix_v4"), 0);
	assert_logged("dp_replicate 3 x dp_shard 1 x cp 1 x sp 2");
}

static void test_local_refuses(void **state)
{
	(void)state;
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_int_equal(option("sp-size", "4"), 0);
	assert_int_equal(srun_step(6, 2, "3(x2)", "pmix"), -1);
	assert_string_equal(slurm.log,
			    "slurm_error: sp: --sp-size=4 needs a multiple of 4 tasks, this step has 6: "
			    "use 4 or 8 tasks, or --sp-size=3 or 6\n");
}

static void test_local_refuses_without_pmix(void **state)
{
	(void)state;
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_int_equal(option("sp-size", "4"), 0);
	assert_int_equal(srun_step(4, 1, "4", "none"), -1);
	assert_string_equal(slurm.log,
			    "slurm_error: sp: 4 tasks of one mesh need PMIx, this step uses --mpi=none: "
			    "add --mpi=pmix\n");
}

static void test_local_pmix_check_can_be_switched_off(void **state)
{
	(void)state;
	assert_int_equal(init(S_CTX_LOCAL, "require_pmix=no"), 0);
	assert_int_equal(option("sp-size", "4"), 0);
	assert_int_equal(srun_step(4, 1, "4", "none"), 0);
}

/* Inside an allocation that goes on, -1 would leave the step running for slurmctld: it is refused on the nodes
 * instead. */
static void test_local_refusal_inside_an_allocation(void **state)
{
	(void)state;
	setenv("SLURM_JOB_ID", "7", 1);
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_int_equal(option("sp-size", "4"), 0);
	assert_int_equal(srun_step(6, 2, "3(x2)", "pmix"), 0);
	assert_logged("slurm_error: sp: --sp-size=4 needs a multiple of 4 tasks");
	assert_string_equal(getenv("SLURM_SP_STEP"), "refused");
}

static void test_local_inherited_never_breaks(void **state)
{
	(void)state;
	setenv("SLURM_JOB_ID", "7", 1);
	setenv("SLURM_SPANK__SLURM_SPANK_OPTION_sp_sp_size", "4", 1);
	setenv("SLURM_SP_STEP", "stale", 1);
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_null(getenv("SLURM_SP_STEP"));
	assert_int_equal(option("sp-size", "4"), 0); /* from the environment */
	assert_int_equal(srun_step(1, 1, "1", "none"), 0);
	assert_string_equal(getenv("SLURM_SP_STEP"), "off");
	assert_null(strstr(slurm.log, "slurm_error"));
	assert_null(strstr(slurm.log, "slurm_info"));
	assert_logged("slurm_verbose: sp: step runs without the job's sequence parallelism: --sp-size=4 needs");
}

static void test_local_explicit_beats_inherited(void **state)
{
	(void)state;
	setenv("SLURM_SPANK__SLURM_SPANK_OPTION_sp_sp_size", "4", 1);
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_int_equal(option("sp-size", "4"), 0);
	assert_int_equal(option("sp-size", "4"), 0); /* the same value, but typed for this step */
	assert_int_equal(srun_step(6, 1, "6", "pmix"), -1);
}

static void test_local_none_switches_off(void **state)
{
	(void)state;
	setenv("SLURM_SPANK__SLURM_SPANK_OPTION_sp_sp_size", "4", 1);
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_int_equal(option("sp-size", "4"), 0);
	assert_int_equal(option("sp-size", "none"), 0);
	assert_int_equal(srun_step(3, 1, "3", "none"), 0);
	assert_string_equal(getenv("SLURM_SP_STEP"), "off");
	assert_string_equal(slurm.log, "");
}

static void test_local_environment_fills_gaps(void **state)
{
	(void)state;
	setenv("SP_DP_SHARD", "2", 1);
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_int_equal(option("sp-size", "2"), 0);
	assert_int_equal(srun_step(8, 1, "8", "pmix"), 0);
	assert_logged("dp_replicate 2 x dp_shard 2 x cp 1 x sp 2");
}

static void test_local_bad_environment(void **state)
{
	(void)state;
	setenv("SP_DP_SHARD", "two", 1);
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_int_equal(option("sp-size", "2"), 0);
	assert_int_equal(timed(plugin.post_opt, 0, NULL), -1);
	assert_logged(
		"slurm_error: sp: SP_DP_SHARD=two is not valid: give a whole number from 1 to 65536, or none");
}

static void test_local_heterogeneous(void **state)
{
	(void)state;
	setenv("SLURM_HET_SIZE", "2", 1);
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	assert_int_equal(option("sp-size", "2"), 0);
	assert_int_equal(srun_step(2, 1, "2", "pmix"), -1);
	assert_logged("sp: heterogeneous jobs are not supported: use one component, or --sp-size=none");
}

static void test_local_without_option_does_nothing(void **state)
{
	(void)state;
	assert_int_equal(init(S_CTX_LOCAL, NULL), 0);
	slurm.refuse_items = 1;
	assert_int_equal(srun_step(6, 2, "3(x2)", "none"), 0);
	assert_string_equal(slurm.log, "");
	assert_null(getenv("SLURM_NTASKS"));
}

static void test_bad_values(void **state)
{
	static const char *const bad[] = {
		"", "0", "-1", "x", "4x", "65537", "None", "none ", "99999999999999999999"};

	(void)state;
	assert_int_equal(init(S_CTX_ALLOCATOR, NULL), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		slurm.log[0] = '\0';
		assert_int_equal(option("dp-shard", bad[i]), -1); /* -1: a positive value would be ignored */
		assert_logged("slurm_error: sp: --dp-shard");
		assert_logged("give a whole number from 1 to 65536, or none\n");
	}
	assert_int_equal(option("dp-shard", "2"), 0);
	assert_int_equal(timed(plugin.post_opt, 0, NULL), 0);
}

static void test_admin_limit(void **state)
{
	(void)state;
	assert_int_equal(init(S_CTX_ALLOCATOR, "max_sp=8"), 0);
	assert_int_equal(option("sp-size", "8"), 0);
	assert_int_equal(option("sp-size", "9"), -1);
	assert_logged("sp: --sp-size=9 is not valid: give a whole number from 1 to 8, or none");
}

static void test_product_too_large(void **state)
{
	(void)state;
	assert_int_equal(init(S_CTX_ALLOCATOR, NULL), 0);
	assert_int_equal(option("sp-size", "4000"), 0);
	assert_int_equal(option("dp-shard", "4000"), 0);
	assert_int_equal(timed(plugin.post_opt, 0, NULL), -1);
	assert_logged("sp: --sp-size=4000 x --dp-shard=4000 is more than 65536 tasks: make the sizes smaller");
}

static void test_unknown_argument(void **state)
{
	(void)state;
	assert_int_equal(init(S_CTX_LOCAL, "sp_max=8"), -1);
	assert_logged("slurm_error: sp: plugstack.conf: unknown argument 'sp_max=8': use max_sp=N, "
		      "init_timeout=SECONDS, "
		      "require_pmix=yes|no, supply_tasks=yes|no");
}

/* slurmstepd of node `node`, up to the tasks; the environment is srun's. */
static void stepd(uint32_t stepid, const char *tpn, uint32_t ntasks, uint32_t nnodes, uint32_t node,
		  uint32_t nlocal)
{
	slurm.stepid = stepid;
	slurm.ntasks = ntasks;
	slurm.nnodes = nnodes;
	slurm.nodeid = node;
	slurm.nlocal = nlocal;
	slurm.context = S_CTX_REMOTE;
	spank_setenv(NULL, "SLURM_STEP_TASKS_PER_NODE", tpn, 1);
	spank_setenv(NULL, "SLURM_TASKS_PER_NODE", "9(x9)", 1); /* may be the job's */
}

static int remote_until_tasks(const char *arg, const char *sp_size)
{
	int rc = init(S_CTX_REMOTE, arg);

	/* Before 24.05: from the launch message, then from the environment. */
	if (sp_size != NULL)
		rc |= option("sp-size", sp_size) | option("sp-size", sp_size);
	rc |= timed(plugin.post_opt, 0, NULL);
	return rc | timed(plugin.user_init, 0, NULL);
}

static int run_task(int local, uint32_t rank)
{
	slurm.local = local;
	slurm.rank = rank;
	return timed(plugin.task_init, 0, NULL);
}

static void expect_env(const char *name, const char *value)
{
	const char *got = job_env(name);

	if (got == NULL || strcmp(got, value) != 0)
		fail_msg("%s is '%s', expected '%s'", name, got != NULL ? got : "(unset)", value);
}

static void test_remote_exports(void **state)
{
	static const struct {
		const char *name, *value;
	} want[] = {
		{"SP_ABI", "1"},
		{"SP_SIZE", "2"},
		{"SP_CP_SIZE", "1"},
		{"SP_DP_SHARD", "1"},
		{"SP_DP_REPLICATE", "3"},
		{"SP_WORLD_SIZE", "6"},
		{"SP_RANK", "5"},
		{"SP_SLOT", "5"},
		{"SP_SP_RANK", "1"},
		{"SP_CP_RANK", "0"},
		{"SP_DP_SHARD_RANK", "0"},
		{"SP_DP_REPLICATE_RANK", "2"},
		{"SP_LOCAL_RANK", "2"},
		{"SP_LOCAL_SIZE", "3"},
		{"SP_NODE", "1"},
		{"SP_NNODES", "2"},
		{"SP_TASKS_PER_NODE", "3(x2)"},
		{"SP_INIT_TIMEOUT", "120"},
		{"SLURM_PMIX_FENCE", "ring"},
		{"SLURM_PMIX_TIMEOUT", "180"},
	};

	(void)state;
	stepd(0, "3(x2)", 6, 2, 1, 3);
	assert_int_equal(remote_until_tasks(NULL, "2"), 0);
	assert_int_equal(run_task(0, 1), 0);
	expect_env("SP_SLOT", "2");
	expect_env("SP_RANK", "1"); /* cyclic: ranks 1, 3, 5 on node 1 */
	assert_int_equal(run_task(2, 5), 0);
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		expect_env(want[i].name, want[i].value);
	assert_string_equal(slurm.log, "");
	assert_int_equal(plugin.exit(NULL, 0, NULL), 0);
}

static void test_remote_keeps_a_users_settings(void **state)
{
	(void)state;
	stepd(0, "2", 2, 1, 0, 2);
	spank_setenv(NULL, "SLURM_PMIX_FENCE", "tree", 1);
	spank_setenv(NULL, "SLURM_PMIX_TIMEOUT", "33", 1);
	spank_setenv(NULL, "SP_INIT_TIMEOUT", "40", 1);
	assert_int_equal(remote_until_tasks("init_timeout=10", "2"), 0);
	assert_int_equal(run_task(0, 0), 0);
	expect_env("SLURM_PMIX_FENCE", "tree");
	expect_env("SLURM_PMIX_TIMEOUT", "33");
	expect_env("SP_INIT_TIMEOUT", "40");
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_timeouts(void **state)
{
	(void)state;
	stepd(0, "2", 2, 1, 0, 2);
	spank_setenv(NULL, "SP_INIT_TIMEOUT", "40", 1);
	assert_int_equal(remote_until_tasks("init_timeout=10", "2"), 0);
	expect_env("SLURM_PMIX_TIMEOUT", "100"); /* libsp's own deadline comes first */
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_errors_wait_for_task_init(void **state)
{
	(void)state;
	stepd(0, "3", 3, 1, 0, 3);
	assert_int_equal(remote_until_tasks(NULL, "2"), 0); /* nothing fails before */
	assert_int_equal(run_task(0, 0), -1);
	assert_string_equal(slurm.log,
			    "slurm_error: sp: --sp-size=2 needs a multiple of 2 tasks, this step has 3: "
			    "use 2 or 4 tasks, or --sp-size=1 or 3\n");
	slurm.log[0] = '\0';
	assert_int_equal(run_task(1, 1), -1);
	assert_string_equal(slurm.log, ""); /* one line a node */
	assert_null(job_env("SP_ABI"));
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_bad_option_value(void **state)
{
	(void)state;
	stepd(0, "2", 2, 1, 0, 2);
	assert_int_equal(remote_until_tasks(NULL, "two"), 0);
	assert_int_equal(run_task(0, 0), -1);
	assert_logged("slurm_error: sp: --sp-size=two is not valid");
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_bad_configuration(void **state)
{
	(void)state;
	stepd(0, "2", 2, 1, 0, 2);
	assert_int_equal(remote_until_tasks("nonsense", "2"), 0);
	assert_int_equal(run_task(0, 0), -1);
	assert_logged("slurm_error: sp: plugstack.conf: unknown argument 'nonsense'");
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_bad_configuration_spares_others(void **state)
{
	(void)state;
	stepd(0, "2", 2, 1, 0, 2);
	assert_int_equal(remote_until_tasks("nonsense", NULL), 0);
	assert_int_equal(run_task(0, 0), 0);
	assert_string_equal(slurm.log, "");
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_admin_limit_is_the_submit_sides(void **state)
{
	(void)state;
	stepd(0, "8", 8, 1, 0, 8);
	assert_int_equal(remote_until_tasks("max_sp=2", "8"), 0);
	assert_int_equal(run_task(0, 0), 0);
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_layout_disagrees(void **state)
{
	(void)state;
	stepd(0, "2,4", 6, 2, 0, 3);
	assert_int_equal(remote_until_tasks(NULL, "2"), 0);
	assert_int_equal(run_task(0, 0), -1);
	assert_logged("sp: node 0 of the step runs 3 tasks, SLURM_TASKS_PER_NODE=2,4 says otherwise");
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_items_missing(void **state)
{
	(void)state;
	stepd(0, "2", 2, 1, 0, 2);
	assert_int_equal(init(S_CTX_REMOTE, NULL) | option("sp-size", "2") | timed(plugin.post_opt, 0, NULL), 0);
	slurm.refuse_items = 1;
	assert_int_equal(timed(plugin.user_init, 0, NULL), 0);
	assert_int_equal(run_task(0, 0), -1);
	assert_logged("this Slurm is not supported");
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_environment_full(void **state)
{
	(void)state;
	stepd(0, "2", 2, 1, 0, 2);
	assert_int_equal(remote_until_tasks(NULL, "2"), 0);
	slurm.refuse_setenv = 1;
	assert_int_equal(run_task(0, 0), -1);
	assert_logged("could not be worked out or put into its environment");
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_special_steps(void **state)
{
	const uint32_t ids[] = {0xfffffffb, 0xfffffffc, 0xfffffffa,
				0xfffffffd}; /* batch, extern, interactive, pending */

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		if (i > 0) {
			assert_int_equal(teardown(NULL), 0);
			assert_int_equal(setup(NULL), 0);
		}
		stepd(ids[i], "1", 1, 1, 0, 1);
		assert_int_equal(remote_until_tasks("nonsense", "4"), 0);
		assert_int_equal(run_task(0, 0), 0);
		assert_null(job_env("SP_ABI"));
		assert_null(job_env("SLURM_PMIX_FENCE"));
		plugin.exit(NULL, 0, NULL);
	}
}

static void test_remote_switched_off(void **state)
{
	(void)state;
	stepd(0, "3", 3, 1, 0, 3);
	spank_setenv(NULL, "SLURM_SP_STEP", "off", 1);
	assert_int_equal(remote_until_tasks(NULL, "2"), 0);
	assert_int_equal(run_task(0, 0), 0);
	assert_null(job_env("SP_ABI"));
	assert_null(job_env("SLURM_SP_STEP")); /* no nested srun shall find it */
	assert_null(job_env("SLURM_PMIX_FENCE"));
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_refused(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	stepd(0, "3", 3, 1, 0, 3);
	spank_setenv(NULL, "SLURM_SP_STEP", "refused", 1);
	assert_int_equal(remote_until_tasks(NULL, "2"), 0);
	assert_null(job_env("SLURM_SP_STEP"));
	pid = fork();
	if (pid == 0) {
		run_task(0, 0); /* must not come back */
		_exit(77);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	plugin.exit(NULL, 0, NULL);
}

static void test_remote_large_step(void **state)
{
	char tpn[32];

	(void)state;
	snprintf(tpn, sizeof(tpn), "8(x8192)");
	stepd(0, tpn, 65536, 8192, 8191, 8);
	assert_int_equal(remote_until_tasks(NULL, "8"), 0);
	assert_int_equal(run_task(7, 65535), 0);
	expect_env("SP_SLOT", "65535");
	expect_env("SP_DP_REPLICATE_RANK", "8191");
	plugin.exit(NULL, 0, NULL);
}

/* Printed, never judged: the promise is below 1 ms a hook. */
static int print_times(void **state)
{
	(void)state;
	fprintf(stderr, "slowest hook of all calls: %.0f us\n", plugin.slowest_us);
	return 0;
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_options_in_every_context),
		T(test_local_accepts),
		T(test_local_last_value_wins),
		T(test_local_refuses),
		T(test_local_refuses_without_pmix),
		T(test_local_pmix_check_can_be_switched_off),
		T(test_local_refusal_inside_an_allocation),
		T(test_local_inherited_never_breaks),
		T(test_local_explicit_beats_inherited),
		T(test_local_none_switches_off),
		T(test_local_environment_fills_gaps),
		T(test_local_bad_environment),
		T(test_local_heterogeneous),
		T(test_local_without_option_does_nothing),
		T(test_bad_values),
		T(test_admin_limit),
		T(test_product_too_large),
		T(test_unknown_argument),
		T(test_remote_exports),
		T(test_remote_keeps_a_users_settings),
		T(test_remote_timeouts),
		T(test_remote_errors_wait_for_task_init),
		T(test_remote_bad_option_value),
		T(test_remote_bad_configuration),
		T(test_remote_bad_configuration_spares_others),
		T(test_remote_admin_limit_is_the_submit_sides),
		T(test_remote_layout_disagrees),
		T(test_remote_items_missing),
		T(test_remote_environment_full),
		T(test_remote_special_steps),
		T(test_remote_switched_off),
		T(test_remote_refused),
		T(test_remote_large_step),
	};

	return cmocka_run_group_tests(tests, NULL, print_times);
}
