/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sbatch and salloc: the allocation must be large enough for the mesh.
 *
 * Neither reads a task count from its environment, and without one they ask for one CPU a node, which no later
 * srun can undo
 * ("More processors requested than permitted"). So a command that names a mesh but no task count starts once more
 * with
 * --ntasks=N as its first word: before Slurm has read an option, with the environment it was started with.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/spank_hooks.h"
#include "spank/spank_layout.h"
#include "spank/spank_opts.h"
#include "spank/spank_supply.h"

/* Longest script that is read for #SBATCH lines; Slurm's own limit is 4 MB (max_script_size). */
#define SCRIPT_MAX (4 << 20)
/* Set in the second start: never a third. */
#define AGAIN_VAR "SP_TASKS_SUPPLIED"

static struct {
	struct plug_conf conf;
	int inherited[PLUG_NDIMS];
} alloc;

/* Reads the #SBATCH lines of the script on sbatch's command line. Returns -1 when there is a script that cannot be
 * read here (standard input, a pipe, found through PATH): its lines may hold a task count. */
static int scan_script_of(int argc, char **argv, struct plug_scan *scan)
{
	char *text = NULL;
	long len;
	int rc;

	if (scan->wrap)
		return 0;
	if (scan->program >= argc)
		return -1;
	len = plug_read_file(argv[scan->program], 1, SCRIPT_MAX, &text);
	if (len < 0)
		return -1;
	rc = plug_scan_script(text, (size_t)len, scan);
	free(text);
	return rc;
}

/* Everything the command was told: command line over script. Returns 0 or -1 when that is not known for certain.
 */
static int scan_command(enum plug_command cmd, int argc, char **argv, struct plug_scan *scan)
{
	struct plug_scan script = {0}, line = {0};

	plug_scan_argv(cmd, argc, argv, &line);
	if (cmd == PLUG_SBATCH) {
		script.wrap = line.wrap;
		script.program = line.program;
		if (line.unsure || scan_script_of(argc, argv, &script) < 0)
			return -1;
		/* sbatch ranks its environment above the script. A value that an outer job handed on is no wish of
		 * this submission's user, the script's line is. */
		for (int d = 0; d < PLUG_NDIMS; d++)
			if (script.value[d][0] != '\0')
				unsetenv(plug_dim_inherited[d]);
	}
	plug_scan_argv(cmd, argc, argv, &script);
	*scan = script;
	return 0;
}

/* Starts this program anew with --ntasks=N. Returns only when that is impossible. */
static void start_again(int argc, char **argv, int tasks)
{
	char exe[PATH_MAX], option[32], mark[48], *env_text = NULL, **words, **envp = NULL;
	long env_len = plug_read_file("/proc/self/environ", 0, 16 << 20, &env_text);
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	int nenv = 0;

	words = calloc((size_t)argc + 2, sizeof(*words));
	for (long i = 0; i < env_len; i++)
		nenv += env_text[i] == '\0';
	envp = calloc((size_t)nenv + 2, sizeof(*envp));
	if (n <= 0 || env_len < 0 || words == NULL || envp == NULL)
		goto out;
	exe[n] = '\0';
	snprintf(option, sizeof(option), "--ntasks=%d", tasks);
	snprintf(mark, sizeof(mark), "%s=%d", AGAIN_VAR, tasks);
	words[0] = argv[0];
	words[1] = option;
	memcpy(words + 2, argv + 1, sizeof(*words) * (size_t)(argc - 1));
	/* Slurm has added to the environment since (a configless host's SLURM_CONF, for one). */
	nenv = 0;
	for (char *p = env_text; p < env_text + env_len; p += strlen(p) + 1)
		envp[nenv++] = p;
	envp[nenv] = mark;
	execve(exe, words, envp);
out:
	slurm_verbose(PLUG_PREFIX "cannot supply the task count: %m; give -n %d", tasks);
	free(words);
	free(envp);
	free(env_text);
}

/* The command this process is; 0 for one that is neither (scrontab uses the same context). */
static enum plug_command this_command(const char *argv0)
{
	const char *slash = strrchr(argv0, '/'), *name = slash != NULL ? slash + 1 : argv0;

	return strcmp(name, "sbatch") == 0 ? PLUG_SBATCH : strcmp(name, "salloc") == 0 ? PLUG_SALLOC : 0;
}

static void supply_tasks(void)
{
	struct plug_scan scan = {0};
	char **argv = NULL;
	int argc = plug_cmdline_read(&argv), tasks;
	enum plug_command cmd = argc > 0 ? this_command(argv[0]) : 0;

	if (cmd != 0 && scan_command(cmd, argc, argv, &scan) == 0) {
		tasks = plug_supply_count(&scan, 0, &alloc.conf, plug_getenv_process, NULL);
		if (tasks > 0 && getenv(AGAIN_VAR) == NULL)
			start_again(argc, argv, tasks);
	}
	plug_cmdline_free(argv);
}

int plug_alloc_init(spank_t sp, int ac, char **av)
{
	char err[PLUG_ERR_LEN];

	if (plug_conf_parse(ac, av, &alloc.conf, err, sizeof(err)) < 0) {
		slurm_error(PLUG_PREFIX "%s", err);
		return -1;
	}
	if (plug_opts_register(sp, &alloc.conf) < 0)
		return -1;
	supply_tasks();
	unsetenv(AGAIN_VAR);
	for (int d = 0; d < PLUG_NDIMS; d++)
		alloc.inherited[d] = getenv(plug_dim_inherited[d]) != NULL;
	return 0;
}

int plug_alloc_post_opt(spank_t sp)
{
	struct sp_sizes sizes, complete;
	char err[PLUG_ERR_LEN];
	int own = 0, rc;

	(void)sp;
	rc = plug_sizes(plug_opts(), alloc.conf.max_sp, plug_getenv_process, NULL, &sizes, err, sizeof(err));
	if (rc == 1)
		rc = plug_layout_sizes(&sizes, &complete, err, sizeof(err));
	if (rc == 0)
		return 0;
	for (int d = 0; d < PLUG_NDIMS; d++)
		own |= plug_opts()->calls[d] > alloc.inherited[d];
	if (!own) /* a job submitted from inside another one: its steps decide */
		return 0;
	slurm_error(PLUG_PREFIX "%s", err);
	return -1;
}
