/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/metrics.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "trainer/text.h"

struct tr_metrics {
	int fd;
	char path[PATH_MAX];
	double first, last;
	int64_t last_step;
};

static int failed(const struct tr_metrics *m, const char *what, struct tr_error *err)
{
	return tr_errorf(err, TR_EXIT_CHECKPOINT, "cannot %s %.700s: %s", what, m->path, strerror(errno));
}

/* Takes over one complete line when it belongs to the part that stays. */
static int keep_line(struct tr_metrics *m, const char *line, int64_t keep_step)
{
	int64_t step;
	double loss;

	if (sscanf(line, "{\"step\":%" SCNd64 ",\"loss\":%lf,", &step, &loss) != 2 || step <= m->last_step || step > keep_step)
		return 0;
	if (!m->last_step)
		m->first = loss;
	m->last = loss;
	m->last_step = step;
	return 1;
}

/* Length of the part of the file that stays: complete lines with rising steps up to keep_step. */
static int scan(struct tr_metrics *m, int64_t keep_step, off_t *keep, struct tr_error *err)
{
	FILE *f = fopen(m->path, "re");
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;

	*keep = 0;
	if (!f)
		return failed(m, "read", err);
	while ((n = getline(&line, &cap, f)) > 0 && line[n - 1] == '\n' && keep_line(m, line, keep_step))
		*keep += n;
	n = ferror(f);
	free(line);
	fclose(f);
	return n ? failed(m, "read", err) : 0;
}

int tr_metrics_open(const char *path, int64_t keep_step, struct tr_metrics **out, struct tr_error *err)
{
	struct tr_metrics *m = calloc(1, sizeof *m);
	off_t keep;

	*out = NULL;
	if (!m)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory");
	*m = (struct tr_metrics){.fd = -1, .first = NAN, .last = NAN};
	snprintf(m->path, sizeof m->path, "%s", path);
	m->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (m->fd < 0) {
		failed(m, "open", err);
		goto fail;
	}
	if (scan(m, keep_step, &keep, err))
		goto fail;
	if (ftruncate(m->fd, keep)) {
		failed(m, "cut", err);
		goto fail;
	}
	*out = m;
	return 0;
fail:
	tr_metrics_close(m);
	return -1;
}

void tr_metrics_close(struct tr_metrics *m)
{
	if (!m)
		return;
	if (m->fd >= 0)
		close(m->fd);
	free(m);
}

static double unix_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int tr_metrics_write(struct tr_metrics *m, const struct tr_metrics_line *l, struct tr_error *err)
{
	char line[1024], a[TR_TEXT], b[TR_TEXT], c[TR_TEXT], d[TR_TEXT];
	const struct tr_model_times *t = &l->times;
	int n = snprintf(line, sizeof line,
			 "{\"step\":%" PRId64 ",\"loss\":%s,\"grad_norm\":%s,\"learning_rate\":%s,\"epoch\":%s,"
			 "\"tokens\":%" PRId64 ",\"targets\":%" PRId64 ",\"tokens_seen\":%" PRId64
			 ",\"time\":{\"unix\":%.3f,\"step_seconds\":%.6f,\"tokens_per_second\":%.1f,\"gemm\":%.6f,\"attn\":%.6f,"
			 "\"exchange\":%.6f,\"loss\":%.6f,\"other\":%.6f}}\n",
			 l->step, tr_text_real(l->loss, a), tr_text_real(l->grad_norm, b), tr_text_real(l->learning_rate, c),
			 tr_text_real(l->epoch, d), l->tokens, l->targets, l->tokens_seen, unix_now(), l->step_seconds,
			 l->tokens_per_second, t->gemm, t->attn, t->exchange, t->loss, t->other);
	ssize_t w = write(m->fd, line, (size_t)n);

	if (w != n) { /* a short write is a full disk; the half line is cut at the next start */
		if (w >= 0)
			errno = ENOSPC;
		return failed(m, "write", err);
	}
	if (!m->last_step)
		m->first = l->loss;
	m->last = l->loss;
	m->last_step = l->step;
	return 0;
}

int tr_metrics_sync(struct tr_metrics *m, struct tr_error *err)
{
	return fsync(m->fd) ? failed(m, "sync", err) : 0;
}

void tr_metrics_summary(const struct tr_metrics *m, double *first, double *last, int64_t *last_step)
{
	*first = m->first;
	*last = m->last;
	*last_step = m->last_step;
}

double tr_clock(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void tr_progress_begin(struct tr_progress *p, int64_t first_step, int64_t total)
{
	*p = (struct tr_progress){.first_step = first_step, .total = total, .begin = tr_clock(), .shown = tr_clock()};
}

int tr_progress_step(struct tr_progress *p, const struct tr_metrics_line *l, char *buf, size_t len)
{
	double now = tr_clock(), since = now - p->shown, rate;
	char tps[TR_TEXT], eta[TR_TEXT];

	p->tokens += l->tokens;
	if (since < 0.95 && l->step != p->first_step + 1 && l->step != p->total)
		return 0;
	rate = (now - p->begin) / (double)(l->step - p->first_step);
	snprintf(buf, len, "step %" PRId64 "/%" PRId64 "  loss %.4f  grad %.3f  lr %.3g  %s tok/s  ETA %s", l->step, p->total,
		 l->loss, l->grad_norm, l->learning_rate,
		 tr_text_count(since > 0 ? (double)p->tokens / since : 0, tps),
		 tr_text_duration(rate * (double)(p->total - l->step), eta));
	p->shown = now;
	p->tokens = 0;
	return 1;
}
