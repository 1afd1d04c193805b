/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/run.h"
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "io/io_file.h"
#include "trainer/runlock.h"
#include "trainer/save.h"
#include "trainer/text.h"

/* ---- words ------------------------------------------------------------------------------------------------ */
void tr_say(struct tr_rank *r, const char *fmt, ...)
{
	char line[1400];
	va_list ap;

	if (!r->lead)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&r->console->lock);
	printf("%s\n", line);
	fflush(stdout);
	pthread_mutex_unlock(&r->console->lock);
}

void tr_console_error(struct tr_console *c, int exit_code, const char *line)
{
	pthread_mutex_lock(&c->lock);
	if (!c->exit_code) {
		c->exit_code = exit_code;
		fprintf(stderr, "trainer: %s\n", line);
		fflush(stderr);
	}
	pthread_mutex_unlock(&c->lock);
}

/* ---- votes ------------------------------------------------------------------------------------------------ */
struct ballot {
	int32_t exit_code;
	char text[508];
};

int tr_vote(struct tr_rank *r, int rc, struct tr_error *err)
{
	int n = r->info.world, failed = 0, first = -1;
	struct ballot mine = {.exit_code = rc ? err->exit_code : 0}, *all;
	int64_t any = rc != 0;
	struct sp_error se = {0};

	r->agreed = 0;
	if (sp_comm_host_max(r->world, &any, 1, &se)) {
		*err = (struct tr_error){0};
		return tr_error_sp(err, &se);
	}
	if (!any)
		return 0;
	if (rc)
		snprintf(mine.text, sizeof mine.text, "%.507s", err->text);
	*err = (struct tr_error){0};
	all = malloc((size_t)n * sizeof *all);
	if (!all)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory");
	if (sp_comm_host_gather(r->world, &mine, sizeof mine, all, &se)) {
		free(all);
		return tr_error_sp(err, &se);
	}
	for (int i = 0; i < n; i++)
		if (all[i].exit_code) {
			failed++;
			first = first < 0 ? i : first;
		}
	r->agreed = 1;
	if (first < 0)
		tr_errorf(err, TR_EXIT_FAIL, "a rank failed without saying why");
	else if (failed == n || n == 1 || all[first].exit_code == TR_EXIT_PREEMPTED)
		tr_errorf(err, all[first].exit_code, "%.507s", all[first].text);
	else {
		int rank = sp_comm_world_rank(r->world, first);
		tr_errorf(err, all[first].exit_code, "rank %d (%s)%s: %.507s", rank, sp_mesh_node_of(r->mesh, rank),
			  failed > 1 ? " and others" : "", all[first].text);
	}
	free(all);
	return -1;
}

/* ---- start ------------------------------------------------------------------------------------------------ */
static int env_int(const char *name)
{
	const char *t = getenv(name);
	char *end;
	long v = t ? strtol(t, &end, 10) : 0;

	return t && *t && !*end && v > 0 && v < 1000000 ? (int)v : 0;
}

/* threads: of the configuration, else OMP_NUM_THREADS, else this task's cores. Slurm may have bound the task to cores of its own
 * (then the affinity mask is smaller than the machine and the job's share), or let all tasks of a node share what the job has. */
static int choose_threads(const struct tr_rank *r)
{
	int online = (int)sysconf(_SC_NPROCESSORS_ONLN), mine = 1, job = env_int("SLURM_CPUS_ON_NODE");
	int local = r->ranks_here > 1 ? r->ranks_here : r->info.local_size, n;
	cpu_set_t set;

	if (r->cfg.threads)
		return (int)r->cfg.threads;
	n = env_int("OMP_NUM_THREADS");
	if (n)
		return n;
	mine = sched_getaffinity(0, sizeof set, &set) ? online : CPU_COUNT(&set);
	job = job && job < online ? job : online;
	n = r->ranks_here == 1 && mine < job ? mine : (mine < job ? mine : job) / (local > 0 ? local : 1);
	if (r->ranks_here == 1 && env_int("SLURM_CPUS_PER_TASK"))
		n = env_int("SLURM_CPUS_PER_TASK") < mine ? env_int("SLURM_CPUS_PER_TASK") : mine;
	return n > 1 ? n : 1;
}

static int open_device(struct tr_rank *r, struct tr_error *err)
{
	struct kn_open_args a = {0};
	struct sp_error se = {0};
	int rc;

	r->ops = r->cfg.device == TR_DEVICE_REF ? kn_ref() : kn_cpu();
	a.threads = r->threads = choose_threads(r);
	rc = r->ops->open(&a, &r->ctx);
	if (rc)
		return tr_errorf(err, TR_EXIT_FAIL, "cannot start the %s backend with %d threads: %s", r->ops->name, a.threads,
				 strerror(-rc));
	if (sp_mesh_attach(r->mesh, r->ops, r->ctx, &se))
		return tr_error_sp(err, &se);
	r->world = sp_mesh_comm(r->mesh, SP_GROUP_WORLD);
	r->slot = sp_comm_rank(r->world);
	r->lead = r->slot == 0;
	return 0;
}

static int open_dataset(struct tr_rank *r, struct tr_error *err)
{
	struct io_error ioe = {0};

	if (io_dataset_open(r->cfg.dataset, &r->ds, &ioe))
		return tr_error_io(err, TR_EXIT_DATA, &ioe);
	io_dataset_info(r->ds, &r->data);
	return 0;
}

/* Everything that decides what this rank will do, as text. */
static char *contract(const struct tr_rank *r)
{
	char hex[33], *yaml = tr_config_emit(&r->cfg), *text = NULL;

	io_hash_hex(r->data.manifest_hash, hex);
	if (yaml && asprintf(&text, "%sdataset.json hash: %s\ntrainer version: %s\n", yaml, hex, SU_VERSION) < 0)
		text = NULL;
	free(yaml);
	return text;
}

static int same_contract(const char *theirs, const char *mine, struct tr_error *err)
{
	while (*theirs || *mine) {
		int n = (int)strcspn(theirs, "\n"), m = (int)strcspn(mine, "\n");
		if (n != m || strncmp(theirs, mine, (size_t)n))
			return tr_errorf(err, TR_EXIT_LAUNCH, "the ranks were not given the same run: `%.*s` here, `%.*s` on the "
					 "first rank; they must see the same files and options", m > 160 ? 160 : m, mine,
					 n > 160 ? 160 : n, theirs);
		theirs += n + (theirs[n] == '\n');
		mine += m + (mine[m] == '\n');
	}
	return 0;
}

static int compare_contracts(struct tr_rank *r, struct tr_error *err)
{
	struct sp_error se = {0};
	char *mine = contract(r), *theirs = NULL;
	int64_t len = mine ? (int64_t)strlen(mine) + 1 : 0;
	int rc = -1;

	if (sp_comm_host_max(r->world, &len, 1, &se)) {
		tr_error_sp(err, &se);
		goto out;
	}
	theirs = calloc(1, (size_t)len + 1);
	if (tr_vote(r, mine && theirs ? 0 : tr_errorf(err, TR_EXIT_FAIL, "out of memory"), err))
		goto out;
	if (r->lead)
		strcpy(theirs, mine);
	if (sp_comm_host_bcast(r->world, theirs, (size_t)len, 0, &se)) {
		tr_error_sp(err, &se);
		goto out;
	}
	rc = tr_vote(r, same_contract(theirs, mine, err), err);
out:
	free(mine);
	free(theirs);
	return rc;
}

static int claim_output(struct tr_rank *r, struct tr_error *err)
{
	struct io_error ioe = {0};
	char note[512];

	if (io_mkdirs(r->cfg.output_dir, &ioe))
		return tr_error_io(err, TR_EXIT_CHECKPOINT, &ioe);
	/* 5 s: the processes of a run that was just killed may take a moment to be gone */
	r->lock_fd = tr_runlock_take(r->cfg.output_dir, 5000, note, sizeof note, err);
	if (r->lock_fd < 0)
		return -1;
	if (*note)
		tr_say(r, "note: %s", note);
	return 0;
}

static int build(struct tr_rank *r, struct tr_error *err)
{
	const struct tr_config *c = &r->cfg;
	struct tr_model_opts mo = {.config = c->model,
				   .ops = r->ops,
				   .ctx = r->ctx,
				   .sp = sp_mesh_comm(r->mesh, SP_GROUP_SP),
				   .loss_tile_tokens = c->loss_tile_tokens};
	struct tr_optim_opts oo = {.beta1 = c->beta1,
				   .beta2 = c->beta2,
				   .eps = c->eps,
				   .weight_decay = c->weight_decay,
				   .max_grad_norm = c->max_grad_norm};

	if (tr_model_create(&mo, &r->model, err))
		return -1;
	return tr_optim_create(r->model, r->mesh, r->ops, r->ctx, &oo, &r->optim, err);
}

/* What a start that was killed while writing config.resolved.yaml left; the run lock is held. */
static void sweep_output(const struct tr_rank *r)
{
	static const char name[] = "config.resolved.yaml.tmp-";
	DIR *d = opendir(r->cfg.output_dir);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (!strncmp(e->d_name, name, sizeof name - 1))
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

static int open_outputs(struct tr_rank *r, struct tr_error *err)
{
	char path[PATH_MAX + 32], *yaml = tr_config_emit(&r->cfg);
	struct io_error ioe = {0};
	double first, last;
	int64_t have;
	int rc;

	if (!yaml)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory");
	sweep_output(r);
	snprintf(path, sizeof path, "%s/config.resolved.yaml", r->cfg.output_dir);
	rc = io_write_file(path, yaml, strlen(yaml), &ioe);
	free(yaml);
	if (rc)
		return tr_error_io(err, TR_EXIT_CHECKPOINT, &ioe);
	snprintf(path, sizeof path, "%s/metrics.jsonl", r->cfg.output_dir);
	if (tr_metrics_open(path, r->step, &r->metrics, err))
		return -1;
	tr_metrics_summary(r->metrics, &first, &last, &have);
	if (have + r->cfg.logging_steps <= r->step)
		tr_say(r, "note: metrics.jsonl ends at step %" PRId64 ", the checkpoint is of step %" PRId64
		       ": the lines between are lost", have, r->step);
	return 0;
}

/* ---- reports ---------------------------------------------------------------------------------------------- */
static void report_start(struct tr_rank *r)
{
	const struct tr_config *c = &r->cfg;
	const struct sp_sizes *z = &r->info.sizes;
	char a[TR_TEXT], b[TR_TEXT], d[TR_TEXT], e[TR_TEXT];
	int64_t w, g, act, begin, end;
	float *m, *v;

	tr_say(r, "trainer %s: %d rank%s on %d node%s (%s), sp %d x dp_shard %d x dp_replicate %d, %s, %d thread%s a rank",
	       SU_VERSION, r->info.world, r->info.world > 1 ? "s" : "", r->info.nnodes, r->info.nnodes > 1 ? "s" : "",
	       r->info.launcher, z->sp, z->dp_shard, z->dp_replicate, r->ops->name, r->threads, r->threads > 1 ? "s" : "");
	tr_model_memory(r->model, &w, &g, &act);
	tr_optim_state(r->optim, &begin, &end, &m, &v);
	tr_say(r, "model %s: %s parameters; memory a rank: weights %s, gradients %s, optimizer %s, activations grow with the "
	       "sequence", c->model.model_type, tr_text_count((double)tr_model_total(r->model), a), tr_text_bytes(w, b),
	       tr_text_bytes(g, d), tr_text_bytes((end - begin) * 8, e));
	tr_say(r, "data %s: %" PRId64 " samples of up to %" PRId64 " tokens, %s tokens; %" PRId64 " steps of %" PRId64
	       " samples (%.2f epochs)", c->dataset, r->data.samples, r->data.seq_length,
	       tr_text_count((double)r->data.tokens, a), c->total_steps, c->global_batch,
	       (double)c->total_steps * (double)c->global_batch / (double)r->data.samples);
}

static void report_end(struct tr_rank *r, double begin, int64_t first_step, int64_t first_tokens)
{
	double first = NAN, last = NAN, seconds = tr_clock() - begin;
	struct rusage ru;
	char a[TR_TEXT], b[TR_TEXT], c[TR_TEXT];
	int64_t step;

	if (!r->lead)
		return;
	tr_metrics_summary(r->metrics, &first, &last, &step);
	getrusage(RUSAGE_SELF, &ru);
	tr_say(r, "done: step %" PRId64 "/%" PRId64 ", loss %.4f -> %.4f, %" PRId64 " steps in %s (%s tok/s), peak memory %s; "
	       "model in %s/model", r->step, r->cfg.total_steps, first, last, r->step - first_step,
	       tr_text_duration(seconds, a),
	       tr_text_count(seconds > 0 ? (double)(r->tokens_seen - first_tokens) / seconds : 0, b),
	       tr_text_bytes((int64_t)ru.ru_maxrss * 1024, c), r->cfg.output_dir);
}

/* ---- the order of things ------------------------------------------------------------------------------------ */
static int prepare(struct tr_rank *r, struct tr_error *err)
{
	if (open_device(r, err))
		return -1;
	if (tr_vote(r, open_dataset(r, err), err) ||
	    tr_vote(r, tr_config_resolve(&r->cfg, &r->data, &r->info.sizes, err), err) || compare_contracts(r, err) ||
	    tr_vote(r, r->lead ? claim_output(r, err) : 0, err) || tr_vote(r, build(r, err), err) || tr_resume(r, err))
		return -1;
	if (r->step == 0 && tr_vote(r, tr_model_init(r->model, (uint64_t)r->cfg.seed, err), err))
		return -1;
	return tr_vote(r, r->lead ? open_outputs(r, err) : 0, err);
}

static int live(struct tr_rank *r, struct tr_error *err)
{
	int64_t first_step, first_tokens;
	double begin;

	if (prepare(r, err))
		return -1;
	report_start(r);
	if (r->step >= r->cfg.total_steps) {
		if (tr_export(r, 1, err))
			return -1;
		tr_say(r, "this run is complete: step %" PRId64 " of %" PRId64 "; model in %s/model. Raise max_steps to train "
		       "further", r->step, r->cfg.total_steps, r->cfg.output_dir);
		return 0;
	}
	first_step = r->step;
	first_tokens = r->tokens_seen;
	begin = tr_clock();
	if (tr_loop(r, err))
		return -1;
	sp_mesh_set_step(r->mesh, r->step);
	if (tr_export(r, 0, err))
		return -1;
	report_end(r, begin, first_step, first_tokens);
	return 0;
}

static void leave(struct tr_rank *r, const struct tr_error *err, int failed)
{
	char line[1200];

	if (!failed)
		return;
	if (r->agreed) {
		if (r->lead)
			tr_console_error(r->console, err->exit_code, err->text);
		return;
	}
	/* Several ranks may have the same trouble at once, and the first to speak ends the others: by turns, one line is heard. */
	if (r->ranks_here == 1)
		nanosleep(&(struct timespec){.tv_nsec = 20000000L * (r->slot < 40 ? r->slot : 40)}, NULL);
	if (r->info.world > 1)
		snprintf(line, sizeof line, "rank %d (%s): %s", r->info.rank, r->info.hostname, err->text);
	else
		snprintf(line, sizeof line, "%s", err->text);
	tr_console_error(r->console, err->exit_code, line);
	sp_mesh_abort(r->mesh, err->exit_code, err->text);
}

int tr_run(const struct tr_config *cfg, struct sp_mesh *mesh, int ranks_here, struct tr_console *console)
{
	struct tr_rank *r = calloc(1, sizeof *r);
	struct tr_error err = {0};
	int failed;

	if (!r) {
		tr_console_error(console, TR_EXIT_FAIL, "out of memory");
		sp_mesh_abort(mesh, TR_EXIT_FAIL, "out of memory");
		sp_mesh_close(mesh);
		return TR_EXIT_FAIL;
	}
	r->cfg = *cfg;
	r->console = console;
	r->mesh = mesh;
	r->ranks_here = ranks_here;
	r->lock_fd = -1;
	r->saved_step = -1;
	sp_mesh_info(mesh, &r->info);
	r->slot = r->info.coord.slot;
	snprintf(r->ckpt_root, sizeof r->ckpt_root, "%s/checkpoints", cfg->output_dir);

	failed = live(r, &err) != 0;
	leave(r, &err, failed);
	tr_metrics_close(r->metrics);
	tr_optim_destroy(r->optim);
	tr_model_destroy(r->model);
	tr_runlock_release(r->lock_fd);
	sp_mesh_close(mesh);
	if (r->ops)
		r->ops->close(r->ctx);
	io_dataset_close(r->ds);
	free(r);
	return failed ? err.exit_code : TR_EXIT_OK;
}
