/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open MPI for host memory. An exchange is one Irecv and one Isend a block; waiting is polling with growing pauses, because
 * ranks may outnumber cores and because only a poll can keep a deadline. MPI_Init, MPI_Comm_split and MPI_Finalize block
 * without one, so a watchdog thread stands beside them.
 */
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "libsp/sp_comm_mpi.h"
#include "libsp/sp_pmix.h"

#define MAX_PIECE ((size_t)1 << 30) /* MPI counts are ints */
#define TAGS 16384                  /* MPI promises 32767 at least */
#define SPINS 64                    /* polls before pauses grow */
#define MAX_PAUSE_NS 100000

struct sp_mpi {
	int owns; /* initialised here, so finalised here */
};

struct mpi_comm {
	MPI_Comm comm;
	unsigned seq;
	int broken; /* an exchange was given up: nothing collective is safe any more */
};

struct mpi_req {
	MPI_Request *reqs;
	MPI_Status *status;
	struct piece {
		int peer, is_recv, bytes;
	} *pieces;
	int *index;
	int n, cap, left;
};

/* ---- watchdog --------------------------------------------------------------------------------------------------- */

struct watchdog {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct timespec deadline;
	struct sp_mesh *mesh;
	const char *what;
	int done, runs;
};

static void *watch(void *arg)
{
	struct watchdog *w = arg;
	char text[200];
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	while (!w->done && !rc)
		rc = pthread_cond_timedwait(&w->cond, &w->lock, &w->deadline);
	if (!w->done) {
		snprintf(text, sizeof(text), "rank %d (node %s) waited %d s in %s", w->mesh->info.rank,
			 w->mesh->info.hostname, w->mesh->timeout_s, w->what);
		sp_pmix_abort(w->mesh->pmix, 1, text);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static void watchdog_start(struct watchdog *w, struct sp_mesh *m, const char *what)
{
	pthread_condattr_t attr;

	*w = (struct watchdog){.mesh = m, .what = what};
	clock_gettime(CLOCK_MONOTONIC, &w->deadline);
	w->deadline.tv_sec += m->timeout_s;
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->cond, &attr);
	pthread_condattr_destroy(&attr);
	w->runs = !pthread_create(&w->thread, NULL, watch, w);
}

static void watchdog_stop(struct watchdog *w)
{
	pthread_mutex_lock(&w->lock);
	w->done = 1;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
	if (w->runs)
		pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->cond);
	pthread_mutex_destroy(&w->lock);
}

/* ---- start and stop ------------------------------------------------------------------------------------------ */

static int mpi_error(struct sp_error *err, enum sp_code code, const char *what, const char *name, int rc)
{
	char text[MPI_MAX_ERROR_STRING];
	int len;

	if (MPI_Error_string(rc, text, &len))
		snprintf(text, sizeof(text), "error %d", rc);
	return sp_errorf(err, code, "%s on %s: MPI says %s", what, name, text);
}

/* More ranks than cores here: without yielding each would spin through its time slice while the one it waits for is out. */
static void yield_when_crowded(const struct sp_mesh *m)
{
	cpu_set_t set;

	if (!sched_getaffinity(0, sizeof(set), &set) && m->info.local_size > CPU_COUNT(&set))
		setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

static int init_mpi(struct sp_mesh *m, struct sp_mpi *mpi, struct sp_error *err)
{
	struct watchdog w;
	int is_on, was_on, got, rc;

	MPI_Initialized(&is_on);
	MPI_Finalized(&was_on);
	if (was_on)
		return sp_errorf(err, SP_ELAUNCH,
				 "MPI cannot be started again in one process: make one mesh a process under a launcher");
	if (is_on)
		return 0;
	yield_when_crowded(m);
	watchdog_start(&w, m, "MPI_Init");
	rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &got);
	watchdog_stop(&w);
	if (rc)
		return mpi_error(err, SP_ELAUNCH, "start", "world", rc);
	mpi->owns = 1;
	return 0;
}

/* A barrier with a deadline and names: from here on every rank is inside MPI within moments. */
static int meet(struct sp_mesh *m, struct sp_error *err)
{
	size_t n = (size_t)m->info.world;
	unsigned char *missing = calloc(2, n), *all = missing + n, one = 1;
	struct sp_error why;
	int rc;

	if (!missing)
		return sp_errorf(err, SP_ENOMEM, "no memory for %d ranks", m->info.world);
	rc = sp_pmix_exchange(m->pmix, "sp.attach", &one, 1, all, m->timeout_s, missing, &why);
	if (rc && why.code == SP_ETIMEOUT) {
		m->failed = 1;
		sp_boot_missing(m, missing, "attach of the mesh", m->timeout_s, err);
	} else if (rc) {
		sp_errorf(err, why.code, "%s", why.text);
	}
	free(missing);
	return rc;
}

int sp_mpi_start(struct sp_mesh *m, const struct kn_ops *ops, struct sp_error *err)
{
	struct sp_mpi *mpi;
	int rank, size;

	if (strcmp(ops->name, "cpu") && strcmp(ops->name, "ref"))
		return sp_errorf(err, SP_EUSAGE, "MPI moves host memory only, the %s backend's is not", ops->name);
	if (meet(m, err))
		return -1;
	mpi = calloc(1, sizeof(*mpi));
	if (!mpi)
		return sp_errorf(err, SP_ENOMEM, "no memory for MPI");
	m->mpi = mpi;
	if (init_mpi(m, mpi, err))
		return -1;
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (rank != m->info.rank || size != m->info.world)
		return sp_errorf(err, SP_ELAUNCH,
				 "MPI sees rank %d of %d, PMIx rank %d of %d: Open MPI must be one that speaks the launcher's PMIx",
				 rank, size, m->info.rank, m->info.world);
	return 0;
}

void sp_mpi_stop(struct sp_mesh *m)
{
	struct watchdog w;
	int was_on = 1;

	if (!m->mpi)
		return;
	MPI_Finalized(&was_on);
	if (m->mpi->owns && !was_on) {
		watchdog_start(&w, m, "MPI_Finalize");
		MPI_Finalize();
		watchdog_stop(&w);
	}
	free(m->mpi);
	m->mpi = NULL;
}

/* ---- exchange --------------------------------------------------------------------------------------------------- */

static int grow(struct mpi_req *q, int n, struct sp_error *err)
{
	if (n <= q->cap)
		return 0;
	free(q->reqs);
	free(q->status);
	free(q->pieces);
	free(q->index);
	q->reqs = calloc((size_t)n, sizeof(*q->reqs));
	q->status = calloc((size_t)n, sizeof(*q->status));
	q->pieces = calloc((size_t)n, sizeof(*q->pieces));
	q->index = calloc((size_t)n, sizeof(*q->index));
	q->cap = q->reqs && q->status && q->pieces && q->index ? n : 0;
	return q->cap ? 0 : sp_errorf(err, SP_ENOMEM, "no memory for %d messages", n);
}

/* Leaves nothing behind that is ours; a send or a matched receive cannot be taken back, so the communicator is done with. */
static void give_up(struct mpi_comm *mc, struct mpi_req *q)
{
	for (int i = 0; i < q->n; i++) {
		if (q->reqs[i] == MPI_REQUEST_NULL)
			continue;
		if (q->pieces[i].is_recv)
			MPI_Cancel(&q->reqs[i]);
		MPI_Request_free(&q->reqs[i]);
	}
	q->n = q->left = 0;
	mc->broken = 1;
}

static int post(struct mpi_comm *mc, struct mpi_req *q, const struct sp_block *b, int is_recv, int tag)
{
	for (size_t at = 0; at < b->bytes; at += MAX_PIECE) {
		int len = (int)(b->bytes - at < MAX_PIECE ? b->bytes - at : MAX_PIECE), rc;
		MPI_Request *r = &q->reqs[q->n];

		*r = MPI_REQUEST_NULL;
		q->pieces[q->n] = (struct piece){b->peer, is_recv, len};
		rc = is_recv ? MPI_Irecv((char *)b->ptr + at, len, MPI_BYTE, b->peer, tag, mc->comm, r)
			     : MPI_Isend((char *)b->ptr + at, len, MPI_BYTE, b->peer, tag, mc->comm, r);
		if (rc)
			return rc;
		q->n++;
		q->left++;
	}
	return 0;
}

static int mpi_start(struct sp_request *r, const struct sp_block *send, int nsend, const struct sp_block *recv,
		     int nrecv, struct sp_error *err)
{
	struct mpi_comm *mc = r->c->impl;
	struct mpi_req *q = r->impl;
	int tag = (int)(mc->seq++ % TAGS), rc = 0;
	size_t n = 0;

	if (mc->broken)
		return sp_errorf(err, SP_EPEER, "%s on %s: an earlier exchange was given up", r->what, r->c->name);
	if (!q)
		q = r->impl = calloc(1, sizeof(*q));
	for (int i = 0; i < nsend + nrecv; i++)
		n += (i < nsend ? send[i] : recv[i - nsend]).bytes / MAX_PIECE + 1;
	if (!q || n > INT32_MAX)
		return sp_errorf(err, SP_ENOMEM, "no memory for %zu messages", n);
	if (grow(q, (int)n, err))
		return -1;
	q->n = q->left = 0;
	for (int i = 0; i < nrecv && !rc; i++) /* receives first: what arrives finds its place */
		rc = post(mc, q, &recv[i], 1, tag);
	for (int i = 0; i < nsend && !rc; i++)
		rc = post(mc, q, &send[i], 0, tag);
	if (rc) {
		give_up(mc, q);
		return mpi_error(err, SP_EPEER, r->what, r->c->name, rc);
	}
	return 0;
}

/* Returns the number of messages that completed, -1 on failure. */
static int progress(struct sp_request *r, struct sp_error *err)
{
	struct mpi_req *q = r->impl;
	int done = 0, rc, len;

	if (!q->left)
		return 0;
	rc = MPI_Testsome(q->n, q->reqs, &done, q->index, q->status);
	if (done == MPI_UNDEFINED)
		done = 0;
	for (int i = 0; i < done; i++) {
		const struct piece *p = &q->pieces[q->index[i]];

		if (rc == MPI_ERR_IN_STATUS && q->status[i].MPI_ERROR)
			return mpi_error(err, SP_EPEER, r->what, r->c->name, q->status[i].MPI_ERROR);
		if (p->is_recv && (MPI_Get_count(&q->status[i], MPI_BYTE, &len) || len != p->bytes))
			return sp_errorf(err, SP_EINTERNAL,
					 "%s on %s: blocks of two ranks do not match: rank %d sent %d bytes, %d were expected", r->what,
					 r->c->name, r->c->world_rank[p->peer], len, p->bytes);
	}
	if (rc && rc != MPI_ERR_IN_STATUS)
		return mpi_error(err, SP_EPEER, r->what, r->c->name, rc);
	q->left -= done;
	return done;
}

static void mpi_poll(struct sp_request *r)
{
	struct mpi_comm *mc = r->c->impl;
	struct mpi_req *q = r->impl;

	/* A failure here is one of the exchange: wait will say that it was given up. */
	if (!mc->broken && progress(r, NULL) < 0)
		give_up(mc, q);
}

static int name_late(struct sp_request *r, struct sp_error *err)
{
	struct mpi_req *q = r->impl;
	unsigned char *late = calloc((size_t)r->c->size, 1);
	int recvs = 0, rc;

	if (!late)
		return sp_errorf(err, SP_ETIMEOUT, "%s on %s: the deadline passed", r->what, r->c->name);
	for (int i = 0; i < q->n; i++)
		recvs += q->reqs[i] != MPI_REQUEST_NULL && q->pieces[i].is_recv;
	for (int i = 0; i < q->n; i++) /* who has not sent; when all have, who does not take */
		if (q->reqs[i] != MPI_REQUEST_NULL && (!recvs || q->pieces[i].is_recv))
			late[q->pieces[i].peer] = 1;
	rc = sp_comm_late(r->c, r->what, late, err);
	free(late);
	return rc;
}

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* The n-th poll in a row without news. */
static void pause_for(int n)
{
	struct timespec ts = {.tv_nsec = 1000l * (n - SPINS)};

	if (n < SPINS) {
		sched_yield();
		return;
	}
	if (ts.tv_nsec > MAX_PAUSE_NS)
		ts.tv_nsec = MAX_PAUSE_NS;
	nanosleep(&ts, NULL);
}

static int mpi_wait(struct sp_request *r, struct sp_error *err)
{
	struct mpi_comm *mc = r->c->impl;
	struct mpi_req *q = r->impl;
	int64_t deadline = now_ns() + (int64_t)r->c->mesh->timeout_s * 1000000000;

	for (int idle = 0; !mc->broken && q->left; idle++) {
		int done = progress(r, err);

		if (done < 0)
			goto fail;
		if (done) {
			idle = 0;
			continue;
		}
		if (now_ns() > deadline) {
			name_late(r, err);
			goto fail;
		}
		pause_for(idle);
	}
	if (!mc->broken)
		return 0;
	return sp_errorf(err, SP_EPEER, "%s on %s: the exchange failed and was given up", r->what, r->c->name);
fail:
	give_up(mc, q);
	return -1;
}

static void mpi_free_request(struct sp_request *r)
{
	struct mpi_req *q = r->impl;

	if (!q)
		return;
	free(q->reqs);
	free(q->status);
	free(q->pieces);
	free(q->index);
	free(q);
	r->impl = NULL;
}

static void mpi_destroy(struct sp_comm *c)
{
	struct mpi_comm *mc = c->impl;
	int was_on = 1;

	MPI_Finalized(&was_on);
	if (!mc->broken && !was_on)
		MPI_Comm_free(&mc->comm);
	free(mc);
}

static const struct sp_comm_vt mpi_vt = {mpi_start, mpi_poll, mpi_wait, mpi_free_request, mpi_destroy};

int sp_mpi_comm(struct sp_mesh *m, enum sp_group g, int colour, int rank, int size, int *world_rank,
		const struct kn_ops *ops, struct kn_ctx *ctx, struct sp_error *err)
{
	static const char *const names[] = {"sp", "shard", "replicate", "world"};
	struct mpi_comm *mc = calloc(1, sizeof(*mc));
	struct watchdog w;
	int rc;

	if (!mc) {
		free(world_rank);
		return sp_errorf(err, SP_ENOMEM, "no memory for communicator %s", names[g]);
	}
	watchdog_start(&w, m, "MPI_Comm_split");
	rc = MPI_Comm_split(MPI_COMM_WORLD, colour, rank, &mc->comm);
	watchdog_stop(&w);
	if (rc) {
		free(mc);
		free(world_rank);
		return mpi_error(err, SP_ELAUNCH, "making the communicator", names[g], rc);
	}
	return sp_comm_create(m, names[g], &mpi_vt, mc, rank, size, world_rank, ops, ctx, &m->comm[g], err);
}
