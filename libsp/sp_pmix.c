/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The PMIx client. Two traps decide its shape. Under Slurm a fence that collects no data is no barrier between nodes, and
 * time-outs given to PMIx itself are kept by the local server alone, until all local ranks have come, so that Slurm's own (with
 * its dumps) would strike first. Hence: data is always collected, calls are the non-blocking ones, deadlines are ours. Their
 * callbacks may come after we gave up, so what they touch is counted and freed by the last user.
 */
#include <pmix.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "libsp/sp_pmix.h"

#define ASK_SECONDS 3 /* how long a rank may take to say that it is there, once the deadline has passed */

struct sp_pmix {
	pmix_proc_t me;
	int size, local_size;
};

/* ---- waiting for callbacks ---------------------------------------------------------------------------------- */

struct latch {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	int refs, left; /* callbacks still to come */
	pmix_status_t status;
	pmix_info_t *info;
	/* of a gather */
	size_t bytes;
	unsigned char *data, *got; /* [size][bytes], [size]: 0 nothing, 1 there, 2 another size */
	struct ask {
		struct latch *l;
		int rank;
	} *asks;
};

static void latch_free(struct latch *l)
{
	if (!l)
		return;
	pthread_cond_destroy(&l->cond);
	pthread_mutex_destroy(&l->lock);
	if (l->info)
		PMIX_INFO_FREE(l->info, 1);
	free(l->data);
	free(l->got);
	free(l->asks);
	free(l);
}

static struct latch *latch_new(int callbacks, int size, size_t bytes)
{
	struct latch *l = calloc(1, sizeof(*l));
	pthread_condattr_t attr;

	if (!l)
		return NULL;
	l->refs = callbacks + 1;
	l->left = callbacks;
	l->bytes = bytes;
	pthread_mutex_init(&l->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&l->cond, &attr);
	pthread_condattr_destroy(&attr);
	if (!size)
		return l;
	l->data = calloc((size_t)size, bytes ? bytes : 1);
	l->got = calloc((size_t)size, 1);
	l->asks = calloc((size_t)size, sizeof(*l->asks));
	if (l->data && l->got && l->asks)
		return l;
	latch_free(l);
	return NULL;
}

/* A callback came, or will never come. */
static void latch_count(struct latch *l)
{
	int refs;

	pthread_mutex_lock(&l->lock);
	if (!--l->left)
		pthread_cond_signal(&l->cond);
	refs = --l->refs;
	pthread_mutex_unlock(&l->lock);
	if (!refs)
		latch_free(l);
}

/* Returns with the lock held; 0 when all callbacks came in time. */
static int latch_wait(struct latch *l, int seconds)
{
	struct timespec deadline;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &deadline);
	deadline.tv_sec += seconds;
	pthread_mutex_lock(&l->lock);
	while (l->left && !rc)
		rc = pthread_cond_timedwait(&l->cond, &l->lock, &deadline);
	return l->left ? -1 : 0;
}

static void latch_leave(struct latch *l)
{
	int refs = --l->refs;

	pthread_mutex_unlock(&l->lock);
	if (!refs)
		latch_free(l);
}

/* ---- what the launcher knows ----------------------------------------------------------------------------------- */

static int get_int(const struct sp_pmix *p, int wildcard, const char *key, int *out)
{
	pmix_value_t *v = NULL;
	pmix_proc_t proc = p->me;
	int rc = 0;

	if (wildcard)
		proc.rank = PMIX_RANK_WILDCARD;
	if (PMIx_Get(&proc, key, NULL, 0, &v) != PMIX_SUCCESS || !v)
		return -1;
	switch (v->type) { /* servers differ in the type they give */
	case PMIX_INT:
		*out = v->data.integer;
		break;
	case PMIX_UINT16:
		*out = v->data.uint16;
		break;
	case PMIX_UINT32:
		*out = (int)v->data.uint32;
		break;
	case PMIX_PROC_RANK:
		*out = (int)v->data.rank;
		break;
	default:
		rc = -1;
	}
	PMIX_VALUE_RELEASE(v);
	return rc;
}

static int is_slurm(const struct sp_pmix *p)
{
	return !strncmp(p->me.nspace, "slurm.pmix.", 11);
}

/* A step started by srun --mpi=none inside another step inherits that one's PMIx. */
static int check_slurm(const struct sp_pmix *p, struct sp_error *err)
{
	const char *procid = getenv("SLURM_PROCID"), *tasks = getenv("SLURM_STEP_NUM_TASKS");

	if (!is_slurm(p) || !procid || !tasks || (atoi(procid) == (int)p->me.rank && atoi(tasks) == p->size))
		return 0;
	return sp_errorf(err, SP_ELAUNCH,
			 "PMIx says rank %d of %d, Slurm says task %s of %s: this step has no PMIx of its own; start it with srun "
			 "--mpi=pmix",
			 (int)p->me.rank, p->size, procid, tasks);
}

int sp_pmix_init(struct sp_pmix **out, struct sp_error *err)
{
	struct sp_pmix *p = calloc(1, sizeof(*p));
	pmix_status_t rc;

	*out = NULL;
	if (!p)
		return sp_errorf(err, SP_ENOMEM, "no memory for PMIx");
	rc = PMIx_Init(&p->me, NULL, 0);
	if (rc != PMIX_SUCCESS || !strncmp(p->me.nspace, "singleton", 9)) {
		sp_errorf(err, SP_ELAUNCH,
			  "no connection to the launcher's PMIx server (%s): start with srun --mpi=pmix, and have the same PMIx "
			  "library in the job as on the node (PMIX_MCA_psec=native helps in containers)",
			  PMIx_Error_string(rc));
		free(p);
		return -1;
	}
	if (get_int(p, 1, PMIX_JOB_SIZE, &p->size) || p->size < 1 || (int)p->me.rank >= p->size) {
		sp_errorf(err, SP_ELAUNCH, "the launcher's PMIx server does not tell the number of processes");
		goto fail;
	}
	if (get_int(p, 1, PMIX_LOCAL_SIZE, &p->local_size))
		p->local_size = 0;
	if (check_slurm(p, err))
		goto fail;
	*out = p;
	return 0;
fail:
	sp_pmix_finalize(p);
	return -1;
}

void sp_pmix_finalize(struct sp_pmix *p)
{
	if (!p)
		return;
	PMIx_Finalize(NULL, 0);
	free(p);
}

int sp_pmix_rank(const struct sp_pmix *p)
{
	return (int)p->me.rank;
}

int sp_pmix_size(const struct sp_pmix *p)
{
	return p->size;
}

int sp_pmix_local_size(const struct sp_pmix *p)
{
	return p->local_size;
}

int sp_pmix_node_of(const struct sp_pmix *p, int rank, char *name, size_t len)
{
	pmix_proc_t proc = p->me;
	pmix_value_t *v = NULL;
	int rc = -1;

	proc.rank = (pmix_rank_t)rank;
	if (PMIx_Get(&proc, PMIX_HOSTNAME, NULL, 0, &v) != PMIX_SUCCESS || !v)
		return -1;
	if (v->type == PMIX_STRING && v->data.string && *v->data.string) {
		snprintf(name, len, "%s", v->data.string);
		rc = 0;
	}
	PMIX_VALUE_RELEASE(v);
	return rc;
}

char *sp_pmix_nodes(const struct sp_pmix *p)
{
	char *list = NULL;

	if (PMIx_Resolve_nodes(p->me.nspace, &list) != PMIX_SUCCESS)
		return NULL;
	return list;
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

static void on_fence(pmix_status_t status, void *arg)
{
	struct latch *l = arg;

	pthread_mutex_lock(&l->lock);
	l->status = status;
	pthread_mutex_unlock(&l->lock);
	latch_count(l);
}

static int fence(int seconds, pmix_status_t *status)
{
	struct latch *l = latch_new(1, 0, 0);
	bool yes = true;
	pmix_status_t rc;
	int late;

	*status = PMIX_ERR_NOMEM;
	if (!l)
		return -1;
	PMIX_INFO_CREATE(l->info, 1);
	PMIX_INFO_LOAD(&l->info[0], PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	rc = PMIx_Fence_nb(NULL, 0, l->info, 1, on_fence, l);
	if (rc != PMIX_SUCCESS) { /* done already, or no callback will come */
		l->status = rc == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : rc;
		latch_count(l);
	}
	late = latch_wait(l, seconds);
	*status = late ? PMIX_ERR_TIMEOUT : l->status;
	latch_leave(l);
	return *status == PMIX_SUCCESS ? 0 : -1;
}

static void on_value(pmix_status_t status, pmix_value_t *v, void *arg)
{
	struct ask *a = arg;
	struct latch *l = a->l;

	pthread_mutex_lock(&l->lock);
	if (status == PMIX_SUCCESS && v && v->type == PMIX_BYTE_OBJECT) {
		l->got[a->rank] = v->data.bo.size == l->bytes ? 1 : 2;
		if (l->got[a->rank] == 1)
			memcpy(l->data + (size_t)a->rank * l->bytes, v->data.bo.bytes, l->bytes);
	}
	pthread_mutex_unlock(&l->lock);
	latch_count(l);
}

/* Everyone's value of key; got[rank] tells what came within `seconds`. After a fence all of it is here already. */
static int collect(const struct sp_pmix *p, const char *key, size_t bytes, void *all, unsigned char *got, int seconds)
{
	struct latch *l = latch_new(p->size, p->size, bytes);

	if (!l)
		return -1;
	for (int r = 0; r < p->size; r++) {
		pmix_proc_t proc = p->me;

		proc.rank = (pmix_rank_t)r;
		l->asks[r] = (struct ask){l, r};
		if (PMIx_Get_nb(&proc, key, NULL, 0, on_value, &l->asks[r]) != PMIX_SUCCESS)
			latch_count(l);
	}
	latch_wait(l, seconds);
	memcpy(all, l->data, (size_t)p->size * bytes);
	memcpy(got, l->got, (size_t)p->size);
	latch_leave(l);
	return 0;
}

static int put(const char *key, const void *mine, size_t bytes, struct sp_error *err)
{
	pmix_value_t v;
	pmix_status_t rc;

	PMIX_VALUE_CONSTRUCT(&v);
	v.type = PMIX_BYTE_OBJECT;
	v.data.bo.bytes = (char *)(uintptr_t)mine; /* Put copies it */
	v.data.bo.size = bytes;
	rc = PMIx_Put(PMIX_GLOBAL, key, &v);
	if (rc == PMIX_SUCCESS)
		rc = PMIx_Commit();
	if (rc != PMIX_SUCCESS)
		return sp_errorf(err, SP_ELAUNCH, "PMIx took no data of this rank: %s", PMIx_Error_string(rc));
	return 0;
}

int sp_pmix_exchange(struct sp_pmix *p, const char *key, const void *mine, size_t bytes, void *all, int timeout_s,
		     unsigned char *missing, struct sp_error *err)
{
	pmix_status_t status;
	char node[64] = "?";
	int late;

	memset(missing, 0, (size_t)p->size);
	if (put(key, mine, bytes, err))
		return -1;
	late = fence(timeout_s, &status);
	if (collect(p, key, bytes, all, missing, late ? ASK_SECONDS : timeout_s))
		return sp_errorf(err, SP_ENOMEM, "no memory for the data of %d ranks", p->size);
	for (int r = 0; r < p->size; r++) {
		if (missing[r] == 2) {
			sp_pmix_node_of(p, r, node, sizeof(node));
			return sp_errorf(err, SP_ELAUNCH,
					 "rank %d (node %s) speaks another version of the start-up protocol: install one version "
					 "of libsp on all nodes",
					 r, node);
		}
		late |= !missing[r];
		missing[r] = !missing[r];
	}
	if (!late)
		return 0;
	return sp_errorf(err, SP_ETIMEOUT, "the ranks did not meet within %d s: PMIx says %s", timeout_s,
			 PMIx_Error_string(status));
}

void sp_pmix_abort(struct sp_pmix *p, int exit_code, const char *text)
{
	struct timespec ts = {.tv_sec = 10};

	(void)p;
	if (!exit_code)
		exit_code = 1; /* an abort is never a success */
	PMIx_Abort(exit_code, text ? text : "", NULL, 0);
	nanosleep(&ts, NULL); /* the launcher's signal comes first; leaving early could hide its exit code */
	_exit(exit_code);
}
