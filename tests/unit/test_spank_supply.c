/* SPDX-License-Identifier: Apache-2.0 */
/* Which task count the plugin gives, and when it gives none; plugstack arguments; the layout check and its texts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "spank/spank_layout.h"
#include "spank/spank_supply.h"

/* What the options file needs of Slurm; no test here gets there. */
void slurm_error(const char *format, ...)
{
	(void)format;
}
spank_err_t spank_option_register(spank_t sp, struct spank_option *opt)
{
	(void)sp;
	(void)opt;
	return ESPANK_ERROR;
}
const char *spank_strerror(spank_err_t err)
{
	(void)err;
	return "";
}

static char err[PLUG_ERR_LEN];

/* An environment written as "A=1 B=2". */
static const char *env_of(void *arg, const char *name, char *buf, size_t len)
{
	size_t n = strlen(name);

	for (const char *p = arg; p != NULL; p = strchr(p, ' ') ? strchr(p, ' ') + 1 : NULL)
		if (strncmp(p, name, n) == 0 && p[n] == '=') {
			snprintf(buf, len, "%.*s", (int)strcspn(p + n + 1, " "), p + n + 1);
			return buf;
		}
	return NULL;
}

static int supply(enum plug_command cmd, const char *text, const char *env)
{
	struct plug_conf conf;
	struct plug_scan s = {0};
	char line[512], *argv[64];
	int argc = 0;

	assert_int_equal(plug_conf_parse(0, NULL, &conf, err, sizeof(err)), 0);
	conf.max_sp = 16;
	snprintf(line, sizeof(line), "%s", text);
	for (char *w = strtok(line, " "); w != NULL; w = strtok(NULL, " "))
		argv[argc++] = w;
	argv[argc] = NULL;
	plug_scan_argv(cmd, argc, argv, &s);
	return plug_supply_count(&s, cmd == PLUG_SRUN, &conf, env_of, (void *)env);
}

#define INHERITED                                                                                                 \
	"SLURM_SPANK__SLURM_SPANK_OPTION_sp_sp_size=4 SLURM_JOB_NUM_NODES=2 SLURM_JOB_CPUS_PER_NODE=2(x2)"

static void test_supply_srun(void **state)
{
	static const struct {
		const char *line, *env;
		int tasks;
	} t[] = {
		{"srun --sp-size=4 -N2 x", "", 4},
		{"srun --sp-size=4 --dp-replicate=2 x", "", 8},
		{"srun --sp-size=4 --dp-shard=3 --dp-replicate=2 --cp-size=2 x", "", 48},
		{"srun --dp-shard=3 x", "", 3},
		{"srun --sp-size=4 x", "SP_DP_SHARD=2", 8},
		{"srun --sp-size=4 x", "SP_DP_SHARD=2 SP_ABI=1", 4}, /* the outer step's, not a wish */
		{"srun --sp-size=4 x", "SP_DP_SHARD=two", 0},
		{"srun -N2 x", "", 0},
		{"srun -N2 x", "SP_SIZE=4", 0}, /* the variable alone is the trainer's business */
		{"srun --sp-size=none x", "", 0},
		{"srun --sp-size=none --dp-shard=2 x", "", 0},
		{"srun --sp-size=4x x", "", 0},
		{"srun --sp-size=17 x", "", 0}, /* above max_sp: the callback refuses it */
		{"srun --sp-size=16 --dp-shard=60000 x", "", 0},
		{"srun --sp-size=4 -n 8 x", "", 0},
		{"srun --sp-size=4 --ntasks-per-node=2 x", "", 0},
		{"srun --sp-size=4 x", "SLURM_NTASKS=8", 0},
		{"srun --sp-size=4 x", "SLURM_NPROCS=8", 0},
		{"srun --sp-size=4 x", "SLURM_NTASKS_PER_NODE=2", 0},
		{"srun --sp-size=4 x", "SLURM_NTASKS_PER_SOCKET=2", 0},
		{"srun --sp-size=4 x", "SLURM_HOSTFILE=hosts", 0},
		{"srun --sp-size=4 x", "SLURM_HET_SIZE=2", 0},
		{"srun --sp-size=4 x : --sp-size=2 y", "", 0},
		{"srun --sp-size=4 --interactive bash", "", 0},
		{"srun --sp-size=4 --pty bash", "", 4},
		{"srun --foreign word --sp-size=4 x", "", 0},
		/* inherited from sbatch or salloc */
		{"srun x", INHERITED, 4},
		{"srun -N2 x", INHERITED, 4},
		{"srun --sp-size=2 x", INHERITED, 2},
		{"srun --sp-size=none x", INHERITED, 0},
		{"srun -N1 x", INHERITED, 0}, /* a helper step shaped by hand */
		{"srun -w n1 x", INHERITED, 0},
		{"srun -c2 x", INHERITED, 0},
		{"srun -n1 x", INHERITED, 0},
		{"srun x", INHERITED " SLURM_NTASKS=8", 0},
		{"srun x", "SLURM_SPANK__SLURM_SPANK_OPTION_sp_sp_size=4 SLURM_JOB_CPUS_PER_NODE=1(x2)", 0},
		{"srun -O x", "SLURM_SPANK__SLURM_SPANK_OPTION_sp_sp_size=4 SLURM_JOB_CPUS_PER_NODE=1(x2)", 4},
		{"srun x",
		 "SLURM_SPANK__SLURM_SPANK_OPTION_sp_sp_size=4 SLURM_OVERCOMMIT=1 SLURM_JOB_CPUS_PER_NODE=1", 4},
		/* the user's own wish stands even where the job is too small: Slurm says so */
		{"srun --sp-size=4 x", "SLURM_JOB_CPUS_PER_NODE=1(x2) SLURM_JOB_NUM_NODES=2", 4},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		int got = supply(PLUG_SRUN, t[i].line, t[i].env);

		if (got != t[i].tasks)
			fail_msg("%s with %s: %d tasks, expected %d", t[i].line, t[i].env, got, t[i].tasks);
	}
}

static void test_supply_allocators(void **state)
{
	(void)state;
	assert_int_equal(supply(PLUG_SALLOC, "salloc --sp-size=4 -N2", ""), 4);
	assert_int_equal(supply(PLUG_SBATCH, "sbatch --sp-size=4 -N2 job.sh", ""), 4);
	/* Submitted from inside a job: its task count and its options are not this one's. */
	assert_int_equal(supply(PLUG_SBATCH, "sbatch --sp-size=4 job.sh", "SLURM_NTASKS=8"), 4);
	assert_int_equal(supply(PLUG_SBATCH, "sbatch -N2 job.sh", INHERITED), 0);
	assert_int_equal(supply(PLUG_SBATCH, "sbatch --sp-size=4 -n8 job.sh", ""), 0);
	assert_int_equal(supply(PLUG_SBATCH, "sbatch --sp-size=4 -m arbitrary job.sh", ""), 0);
}

static void test_supply_can_be_switched_off(void **state)
{
	char word[] = "supply_tasks=no", *av[] = {word}, *argv[] = {"srun", "--sp-size=4", "x", NULL};
	struct plug_conf conf;
	struct plug_scan s = {0};

	(void)state;
	assert_int_equal(plug_conf_parse(1, av, &conf, err, sizeof(err)), 0);
	plug_scan_argv(PLUG_SRUN, 3, argv, &s);
	assert_int_equal(plug_supply_count(&s, 1, &conf, env_of, ""), 0);
}

static void test_conf(void **state)
{
	char *good[] = {"max_sp=8", "init_timeout=30", "require_pmix=no", "supply_tasks=no"};
	static const char *const bad[] = {
		"max_sp", "max_sp=",	    "max_sp=0",	      "max_sp=8x",     "max_spp=8",	  "=8",
		"",	  "init_timeout=0", "require_pmix=1", "supply_tasks=", "require_pmix=YES"};
	struct plug_conf c;

	(void)state;
	assert_int_equal(plug_conf_parse(0, NULL, &c, err, sizeof(err)), 0);
	assert_true(c.max_sp == 65536 && c.init_timeout == 120 && c.require_pmix && c.supply_tasks);
	assert_int_equal(plug_conf_parse(4, good, &c, err, sizeof(err)), 0);
	assert_true(c.max_sp == 8 && c.init_timeout == 30 && !c.require_pmix && !c.supply_tasks);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char word[32], *av[] = {word};

		snprintf(word, sizeof(word), "%s", bad[i]);
		err[0] = '\0';
		if (plug_conf_parse(1, av, &c, err, sizeof(err)) != -1)
			fail_msg("'%s' was accepted", bad[i]);
		assert_ptr_equal(strstr(err, "plugstack.conf: "), err);
	}
	assert_int_equal(plug_conf_parse(1, (char *[]){"sp_max=4"}, &c, err, sizeof(err)), -1);
	assert_string_equal(err,
			    "plugstack.conf: unknown argument 'sp_max=4': use max_sp=N, init_timeout=SECONDS, "
			    "require_pmix=yes|no, supply_tasks=yes|no");
}

static void test_parse_dim(void **state)
{
	int v = 9;

	(void)state;
	assert_int_equal(plug_parse_dim(PLUG_SP, "--sp-size", "none", 8, &v, err, sizeof(err)), 0);
	assert_int_equal(v, 0);
	assert_int_equal(plug_parse_dim(PLUG_SP, "--sp-size", "8", 8, &v, err, sizeof(err)), 0);
	assert_int_equal(v, 8);
	assert_int_equal(plug_parse_dim(PLUG_SP, "--sp-size", "9", 8, &v, err, sizeof(err)), -1);
	assert_string_equal(err, "--sp-size=9 is not valid: give a whole number from 1 to 8, or none");
	assert_int_equal(plug_parse_dim(PLUG_SHARD, "--dp-shard", "9", 8, &v, err, sizeof(err)),
			 0); /* max_sp is sp's */
	assert_int_equal(plug_parse_dim(PLUG_SP, "--sp-size", "", 8, &v, err, sizeof(err)), -1);
	assert_string_equal(err, "--sp-size has no value: give a whole number from 1 to 8, or none");
}

static void layout_refused(struct sp_sizes s, int64_t ntasks, int nnodes, const char *tpn, const char *text)
{
	struct plug_step step = {ntasks, nnodes, tpn};
	struct plug_layout l;

	assert_int_equal(plug_layout_make(&s, &step, &l, err, sizeof(err)), -1);
	assert_string_equal(err, text);
	plug_layout_free(&l);
}

static void test_layout_texts(void **state)
{
	(void)state;
	layout_refused(
		(struct sp_sizes){.sp = 4}, 6, 2, "3(x2)",
		"--sp-size=4 needs a multiple of 4 tasks, this step has 6: use 4 or 8 tasks, or --sp-size=3 or 6");
	layout_refused((struct sp_sizes){.sp = 4, .dp_shard = 2, .dp_replicate = 2}, 8, 2, "4(x2)",
		       "--sp-size=4 x --dp-shard=2 x --dp-replicate=2 needs exactly 16 tasks, this step has 8: "
		       "use 16 tasks, or --dp-replicate=1");
	layout_refused((struct sp_sizes){.sp = 4, .cp = 3}, 8, 2, "4(x2)",
		       "--sp-size=4 x --cp-size=3 needs a multiple of 12 tasks, this step has 8: use 12 tasks");
	layout_refused(
		(struct sp_sizes){.sp = 4}, 8, 2, "4",
		"SLURM_TASKS_PER_NODE=4 (4 tasks on 1 nodes) does not describe this step of 8 tasks on 2 nodes: "
		"give --ntasks-per-node");
	layout_refused((struct sp_sizes){.sp = 4}, 8, 1, "4(x2)",
		       "tasks per node '4(x2)' names more than 1 nodes; at most 1 are allowed");
	layout_refused(
		(struct sp_sizes){.sp = 4}, 8, 2, NULL,
		"tasks per node '' is not valid: give counts from 1 to 65536 in Slurm's form, as in 4(x2),3");
	layout_refused((struct sp_sizes){.sp = 4}, 8, 0, "8",
		       "a step on 0 nodes is not supported: use 1 to 65536");
}

static void check_advice(int sp, int64_t ntasks, int nnodes, const char *tpn, int rc, const char *text)
{
	struct sp_sizes s = {.sp = sp};
	struct plug_step step = {ntasks, nnodes, tpn};
	struct plug_layout l;
	char got[256] = "";

	assert_int_equal(plug_layout_make(&s, &step, &l, err, sizeof(err)), 0);
	assert_int_equal(plug_layout_advice(&l, got, sizeof(got)), rc);
	assert_string_equal(got, text);
	plug_layout_free(&l);
}

static void test_layout_advice(void **state)
{
	(void)state;
	check_advice(4, 8, 2, "4(x2)", -1, "");
	check_advice(2, 6, 3, "4,1(x2)", 1, "1 of 3 sp groups spans nodes: --ntasks-per-node=2 keeps them inside");
	check_advice(2, 8, 3, "6,1(x2)", 1,
		     "1 of 4 sp groups spans nodes: --distribution=plane=2 keeps them inside");
	check_advice(4, 4, 2, "2(x2)", 0, "1 of 1 sp groups spans nodes: 1 node (-N) would keep them inside");
	check_advice(4, 8, 4, "2(x4)", 0, "2 of 2 sp groups span nodes: 2 nodes (-N) would keep them inside");
	check_advice(3, 6, 2, "4,2", 1, "1 of 2 sp groups spans nodes: --ntasks-per-node=3 keeps them inside");
}

static void test_layout_summary(void **state)
{
	struct sp_sizes s = {.sp = 2};
	struct plug_step step = {6, 3, "4,1(x2)"};
	struct plug_layout l;
	char got[256];

	(void)state;
	assert_int_equal(plug_layout_make(&s, &step, &l, err, sizeof(err)), 0);
	plug_layout_summary(&l, &step, got, sizeof(got));
	assert_string_equal(got, "world 6 = dp_replicate 3 x dp_shard 1 x cp 1 x sp 2 on 3 nodes (4,1(x2) tasks), "
				 "1 sp group across nodes");
	plug_layout_free(&l);
	plug_layout_free(&l); /* twice is fine */
}

static void test_files(void **state)
{
	char path[] = "/tmp/sp_supply_XXXXXX", fifo[64], *text = NULL, **argv = NULL;
	int fd = mkstemp(path), argc;

	(void)state;
	assert_true(fd >= 0);
	for (int i = 0; i < 5000; i++)
		assert_int_equal(write(fd, "#SBATCH line\n", 13), 13);
	close(fd);
	assert_int_equal(plug_read_file(path, 1, 1 << 20, &text), 65000);
	assert_int_equal(text[65000], '\0');
	assert_memory_equal(text + 64987, "#SBATCH line\n", 13);
	free(text);
	assert_int_equal(plug_read_file(path, 1, 4096, &text), -1); /* larger than allowed */
	/* A pipe must not be drained: its bytes are Slurm's. Nor may opening one block. */
	snprintf(fifo, sizeof(fifo), "%s.fifo", path);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(plug_read_file(fifo, 1, 1 << 20, &text), -1);
	assert_int_equal(plug_read_file("/nonexistent", 1, 1 << 20, &text), -1);
	unlink(fifo);
	unlink(path);
	argc = plug_cmdline_read(&argv);
	assert_true(argc >= 1);
	assert_non_null(strstr(argv[0], "test_spank_supply"));
	assert_null(argv[argc]);
	plug_cmdline_free(argv);
	plug_cmdline_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_supply_srun),
		cmocka_unit_test(test_supply_allocators),
		cmocka_unit_test(test_supply_can_be_switched_off),
		cmocka_unit_test(test_conf),
		cmocka_unit_test(test_parse_dim),
		cmocka_unit_test(test_layout_texts),
		cmocka_unit_test(test_layout_advice),
		cmocka_unit_test(test_layout_summary),
		cmocka_unit_test(test_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
