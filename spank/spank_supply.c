/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/spank_supply.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What decides the number of tasks of a step when it stands in the environment: srun's own input variables, and
 * the record sbatch and salloc leave of an option that srun would not read back. */
static const char *const task_variables[] = {
	"SLURM_NTASKS",		"SLURM_NPROCS",		 "SLURM_NTASKS_PER_NODE",   "SLURM_NTASKS_PER_CORE",
	"SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES", "SLURM_NTASKS_PER_SOCKET", "SLURM_HET_SIZE",
	"SLURM_PACK_SIZE",
};

const char *plug_getenv_process(void *arg, const char *name, char *buf, size_t len)
{
	(void)arg;
	(void)buf;
	(void)len;
	return getenv(name);
}

static int decided_by_environment(int inherited, plug_getenv_f *get, void *arg)
{
	char buf[64];

	for (size_t i = 0; inherited && i < sizeof(task_variables) / sizeof(task_variables[0]); i++)
		if (get(arg, task_variables[i], buf, sizeof(buf)) != NULL)
			return 1;
	return get(arg, "SLURM_HOSTFILE", buf, sizeof(buf)) != NULL; /* one line a task */
}

/* CPUs of the job on all its nodes, from "4(x2),3"; -1 when unknown. */
static int64_t job_cpus(plug_getenv_f *get, void *arg)
{
	char buf[4096], err[PLUG_ERR_LEN];
	const char *text = get(arg, "SLURM_JOB_CPUS_PER_NODE", buf, sizeof(buf));
	int *counts, n = 0;
	int64_t sum = -1;

	if (text == NULL || (counts = malloc(SP_ENV_MAX_NODES * sizeof(*counts))) == NULL)
		return -1;
	if (sp_env_parse_tasks_per_node(text, counts, SP_ENV_MAX_NODES, &n, err, sizeof(err)) == 0) {
		sum = 0;
		for (int i = 0; i < n; i++)
			sum += counts[i];
	}
	free(counts);
	return sum;
}

/* Would `tasks` more likely fail the helper step than serve it? */
static int fits_job(const struct plug_scan *scan, int64_t tasks, plug_getenv_f *get, void *arg)
{
	char buf[64];
	const char *nodes = get(arg, "SLURM_JOB_NUM_NODES", buf, sizeof(buf));
	int64_t cpus;

	if (scan->shape || (scan->nodes[0] != '\0' && (nodes == NULL || strcmp(scan->nodes, nodes) != 0)))
		return 0;
	if (scan->overcommit || get(arg, "SLURM_OVERCOMMIT", buf, sizeof(buf)) != NULL)
		return 1;
	cpus = job_cpus(get, arg);
	return cpus < 0 || tasks <= cpus;
}

int plug_supply_count(const struct plug_scan *scan, int inherited, const struct plug_conf *conf,
		      plug_getenv_f *get, void *arg)
{
	struct plug_opts o = {0};
	struct sp_sizes sizes;
	char err[PLUG_ERR_LEN];
	int own = 0;
	int64_t tasks;

	if (!conf->supply_tasks || scan->unsure || scan->het || scan->interactive || plug_scan_has_tasks(scan) ||
	    decided_by_environment(inherited, get, arg))
		return 0;
	for (int d = 0; d < PLUG_NDIMS; d++) {
		char buf[64];
		const char *text = inherited ? get(arg, plug_dim_inherited[d], buf, sizeof(buf)) : NULL;

		if (scan->value[d][0] != '\0') {
			text = scan->value[d];
			own = 1;
		}
		if (text == NULL)
			continue;
		o.given[d] = 1;
		/* A wrong value is reported when Slurm hands it to the option's callback. */
		if (plug_parse_dim(d, "", text, conf->max_sp, &o.size[d], err, sizeof(err)) < 0)
			return 0;
	}
	if (plug_sizes(&o, conf->max_sp, get, arg, &sizes, err, sizeof(err)) != 1)
		return 0;
	tasks = sp_env_product(&sizes);
	if (tasks < 1 || (!own && !fits_job(scan, tasks, get, arg)))
		return 0;
	return (int)tasks;
}

long plug_read_file(const char *path, int regular, size_t max, char **out)
{
	struct stat st;
	size_t len = 0, cap = 16384;
	char *buf = NULL;
	ssize_t got = -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0 || fstat(fd, &st) < 0 || (regular && !S_ISREG(st.st_mode)) || (buf = malloc(cap)) == NULL)
		goto out;
	while ((got = read(fd, buf + len, cap - len - 1)) > 0) {
		len += (size_t)got;
		if (len + 1 == cap) {
			char *more = cap < max ? realloc(buf, cap * 2) : NULL;

			if (more == NULL) {
				got = -1;
				break;
			}
			buf = more;
			cap *= 2;
		}
	}
out:
	if (fd >= 0)
		close(fd);
	if (got < 0) {
		free(buf);
		return -1;
	}
	buf[len] = '\0';
	*out = buf;
	return (long)len;
}

int plug_cmdline_read(char ***argv)
{
	char *text = NULL, **words;
	long len = plug_read_file("/proc/self/cmdline", 0, 4 << 20, &text);
	int argc = 0;

	if (len <= 0 || text[len - 1] != '\0') {
		free(text);
		return -1;
	}
	for (long i = 0; i < len; i++)
		argc += text[i] == '\0';
	words = malloc(((size_t)argc + 2) * sizeof(*words));
	if (words == NULL) {
		free(text);
		return -1;
	}
	/* The block is kept in front of the words so that one pointer frees both. */
	*words++ = text;
	for (int i = 0; i < argc; i++, text += strlen(text) + 1)
		words[i] = text;
	words[argc] = NULL;
	*argv = words;
	return argc;
}

void plug_cmdline_free(char **argv)
{
	if (argv != NULL) {
		free(argv[-1]);
		free(argv - 1);
	}
}
