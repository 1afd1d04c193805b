/* SPDX-License-Identifier: Apache-2.0 */
/* trainer: the job. Reads the command line and the configuration, starts the mesh and one rank (or, with --loop, several). */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>
#include "trainer/config.h"
#include "trainer/config_keys.h"
#include "trainer/run.h"
#include "trainer/signals.h"

#define MAX_SET  256
#define MAX_LOOP 256

struct command {
	struct tr_config_args config;
	const char *set[MAX_SET];
	int loop, loop_nodes;
};

static const char help_text[] =
	"usage: trainer [--config FILE] [--set KEY=VALUE]... [--loop N[,NODES]]\n"
	"       srun --sp-size=4 -N2 trainer\n"
	"\n"
	"Trains the model of a configuration file on a packed dataset; the same command again continues where it stopped.\n"
	"\n"
	"  --config FILE      the configuration; without it " TR_CONFIG_DEFAULT " of the working directory\n"
	"  --set KEY=VALUE    one value over the file's, nested keys with dots: --set model.hidden_size=64 (repeatable)\n"
	"  --loop N[,NODES]   N virtual ranks in this one process, without Slurm: for trying a mesh out and for tests\n"
	"  --help, --version\n"
	"\n"
	"Relative paths in the configuration and in --set count from the configuration file's folder.\n"
	"\n"
	"Exit codes: 0 done, 1 other failure, 2 command line or configuration, 3 dataset, 4 launcher, plugin and mesh do not\n"
	"fit, 5 checkpoint or output, 6 a rank was late or lost, 7 loss or gradient not finite, 85 stopped by a signal\n"
	"(SIGUSR2, SIGTERM, SIGINT) after saving: run the same command again.\n"
	"\n"
	"Configuration keys:\n";

static void print_key(const struct tr_key *k)
{
	printf("  %-46s ", k->name);
	switch (k->type) {
	case TR_KEY_INT:
		printf("integer, %.0f to %.0f\n", k->lo, k->hi);
		break;
	case TR_KEY_REAL:
		printf("number, %s %g and at most %g\n", k->open ? "above" : "at least", k->lo, k->hi);
		break;
	case TR_KEY_BOOL:
		printf("true or false\n");
		break;
	case TR_KEY_ENUM:
		for (int i = 0; k->choices[i]; i++)
			printf("%s%s", i ? " | " : "", k->choices[i]);
		printf("\n");
		break;
	case TR_KEY_PATH:
		printf("path\n");
		break;
	case TR_KEY_NAME:
		printf("name\n");
		break;
	}
}

static int help(void)
{
	fputs(help_text, stdout);
	for (int i = 0; i < tr_nkeys; i++)
		print_key(&tr_keys[i]);
	return fflush(stdout) ? TR_EXIT_FAIL : TR_EXIT_OK;
}

/* Versions of what this process has loaded, asked by name: the headers of MPI, PMIx and HDF5 are other folders' business. */
static void *symbol(const char *name) { return dlsym(RTLD_DEFAULT, name); }

static void print_versions(void)
{
	const char *(*pmix)(void) = (const char *(*)(void))(uintptr_t)symbol("PMIx_Get_version");
	int (*mpi)(char *, int *) = (int (*)(char *, int *))(uintptr_t)symbol("MPI_Get_library_version");
	int (*h5)(unsigned *, unsigned *, unsigned *) =
		(int (*)(unsigned *, unsigned *, unsigned *))(uintptr_t)symbol("H5get_libversion");
	const int *(*dnnl)(void) = (const int *(*)(void))(uintptr_t)symbol("dnnl_version"); /* major, minor, patch first */
	char text[8192] = "";
	unsigned a, b, c;
	int n = 0;

	if (dnnl)
		printf("  oneDNN     %d.%d.%d\n", dnnl()[0], dnnl()[1], dnnl()[2]);
	if (mpi && !mpi(text, &n)) {
		text[strcspn(text, ",\n")] = 0;
		printf("  MPI        %s\n", text);
	}
	if (pmix)
		printf("  PMIx       %.60s\n", pmix());
	if (h5 && !h5(&a, &b, &c))
		printf("  HDF5       %u.%u.%u\n", a, b, c);
	printf("  libyaml    %s\n  jansson    %s\n", yaml_get_version_string(), jansson_version_str());
}

static int version(void)
{
	printf("trainer %s\n", SU_VERSION);
	printf("  backends   %s, %s (plain C oracle); no CUDA in this build\n", kn_cpu()->name, kn_ref()->name);
	print_versions();
	return fflush(stdout) ? TR_EXIT_FAIL : TR_EXIT_OK;
}

static int parse_loop(const char *text, struct command *c, struct tr_error *err)
{
	char copy[32], why[200], *comma;

	snprintf(copy, sizeof copy, "%s", text);
	comma = strchr(copy, ',');
	if (comma)
		*comma++ = 0;
	c->loop_nodes = 1;
	if (strlen(text) >= sizeof copy || sp_env_parse_int("--loop", copy, 1, MAX_LOOP, &c->loop, why, sizeof why) ||
	    (comma && sp_env_parse_int("--loop", comma, 1, c->loop, &c->loop_nodes, why, sizeof why)))
		return tr_errorf(err, TR_EXIT_USAGE, "--loop '%.40s': give a number of virtual ranks from 1 to %d, and if wanted "
				 "of virtual nodes: --loop 4 or --loop 4,2", text, MAX_LOOP);
	return 0;
}

/* The value of an option given as "--name value" or "--name=value"; NULL when argv[*i] is not that option. */
static const char *option(const char *name, int argc, char **argv, int *i, struct tr_error *err)
{
	size_t n = strlen(name);

	if (strncmp(argv[*i], name, n) || (argv[*i][n] && argv[*i][n] != '='))
		return NULL;
	if (argv[*i][n] == '=')
		return argv[*i] + n + 1;
	if (*i + 1 < argc)
		return argv[++*i];
	tr_errorf(err, TR_EXIT_USAGE, "%s needs a value; `trainer --help` shows how", name);
	return "";
}

static int parse_command(int argc, char **argv, struct command *c, struct tr_error *err)
{
	const char *v;

	for (int i = 1; i < argc && !err->text[0]; i++) {
		if ((v = option("--config", argc, argv, &i, err))) {
			c->config.file = v;
		} else if ((v = option("--set", argc, argv, &i, err))) {
			if (c->config.nset == MAX_SET)
				return tr_errorf(err, TR_EXIT_USAGE, "--set is given more than %d times", MAX_SET);
			c->set[c->config.nset++] = v;
		} else if ((v = option("--loop", argc, argv, &i, err))) {
			if (!err->text[0])
				parse_loop(v, c, err);
		} else {
			return tr_errorf(err, TR_EXIT_USAGE, "unknown argument '%.80s'; it can be --config, --set, --loop, --help "
					 "or --version", argv[i]);
		}
	}
	c->config.set = c->set;
	if (c->loop && getenv("SLURM_STEP_NUM_TASKS") && strcmp(getenv("SLURM_STEP_NUM_TASKS"), "1"))
		tr_errorf(err, TR_EXIT_USAGE, "--loop makes virtual ranks in one process, but this step has %.20s tasks: leave "
			  "--loop out", getenv("SLURM_STEP_NUM_TASKS"));
	return err->text[0] ? -1 : 0;
}

/* Before the mesh is up every rank finds the same mistake; the first of the step speaks for all. */
static int first_of_step(void)
{
	const char *id = getenv("SLURM_STEP_ID") ? getenv("SLURM_PROCID") : NULL;

	if (!id)
		id = getenv("PMIX_RANK");
	return !id || !strcmp(id, "0");
}

static int fail_early(const struct tr_error *err)
{
	if (first_of_step())
		fprintf(stderr, "trainer: %s\n", err->text);
	return err->exit_code;
}

static void note(void *arg, const char *line)
{
	(void)arg;
	printf("note: %s\n", line);
	fflush(stdout);
}

static void boot_opts(const struct tr_config *cfg, struct sp_boot_opts *o)
{
	*o = (struct sp_boot_opts){.timeout_s = (int)cfg->ddp_timeout, .note = note};
	tr_config_sizes(cfg, &o->sizes);
	o->init_timeout_s = getenv(SP_ENV_INIT_TIMEOUT) ? 0 : (int)cfg->init_timeout;
}

/* Where every rank has the same trouble libsp lets one of them speak. Without PMIx no rank knows of another: then, too, all
 * have it, unless one node differs, which the others report when they miss it. */
static int boot_failed(struct sp_mesh *mesh, const struct sp_error *se)
{
	struct tr_error err = {0};

	tr_error_sp(&err, se);
	if (!se->mute && (getenv("PMIX_RANK") || first_of_step()))
		fprintf(stderr, "trainer: %s\n", err.text);
	fflush(stderr);
	if (mesh) /* ranks that wait for one that does not come leave only together */
		sp_mesh_abort(mesh, err.exit_code, err.text);
	return err.exit_code;
}

static int run_single(const struct tr_config *cfg)
{
	struct tr_console console = {.lock = PTHREAD_MUTEX_INITIALIZER};
	struct sp_boot_opts o;
	struct sp_mesh *mesh = NULL;
	struct sp_error se = {0};

	boot_opts(cfg, &o);
	if (sp_boot(&o, &mesh, &se))
		return boot_failed(mesh, &se);
	return tr_run(cfg, mesh, 1, &console);
}

struct loop_rank {
	pthread_t thread;
	const struct tr_config *cfg;
	struct sp_mesh *mesh;
	struct tr_console *console;
	int n, code;
};

static void *loop_rank_main(void *arg)
{
	struct loop_rank *l = arg;

	l->code = tr_run(l->cfg, l->mesh, l->n, l->console);
	return NULL;
}

static int run_loop(const struct tr_config *cfg, const struct command *c)
{
	struct tr_console console = {.lock = PTHREAD_MUTEX_INITIALIZER};
	struct sp_mesh *mesh[MAX_LOOP] = {0};
	struct loop_rank rank[MAX_LOOP];
	struct sp_boot_opts o;
	struct sp_error se = {0};
	int started = 0, code = 0, rc = 0;

	boot_opts(cfg, &o);
	if (sp_boot_loop(&o, c->loop, c->loop_nodes, mesh, &se))
		return boot_failed(NULL, &se);
	for (; started < c->loop; started++) {
		rank[started] = (struct loop_rank){.cfg = cfg, .mesh = mesh[started], .console = &console, .n = c->loop};
		rc = pthread_create(&rank[started].thread, NULL, loop_rank_main, &rank[started]);
		if (rc)
			break;
	}
	if (rc) {
		char line[160];
		snprintf(line, sizeof line, "cannot start virtual rank %d: %s", started, strerror(rc));
		tr_console_error(&console, TR_EXIT_FAIL, line);
		for (int i = started; i < c->loop; i++) {
			sp_mesh_abort(mesh[i], TR_EXIT_FAIL, line);
			sp_mesh_close(mesh[i]);
		}
	}
	for (int i = 0; i < started; i++) {
		pthread_join(rank[i].thread, NULL);
		code = code ? code : rank[i].code;
	}
	return console.exit_code ? console.exit_code : code;
}

int main(int argc, char **argv)
{
	struct command c = {.loop = 0};
	struct tr_error err = {0};
	static struct tr_config cfg; /* large; main's own */

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return help();
		if (!strcmp(argv[i], "--version"))
			return version();
	}
	if (parse_command(argc, argv, &c, &err) || tr_config_load(&c.config, &cfg, &err))
		return fail_early(&err);
	tr_signals_install();
	return c.loop ? run_loop(&cfg, &c) : run_single(&cfg);
}
