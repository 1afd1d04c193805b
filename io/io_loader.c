/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "io/io_loader_priv.h"

/*
 * A ring of prefetch + 1 slots. `made` and `taken` count micro-batches since the start; the slot of number k is k mod
 * nslots. The thread fills number `made` while made - taken < prefetch; the slot handed out last, number taken - 1, is the
 * one it never touches.
 */
struct io_loader {
	struct io_dataset *ds;
	struct io_loader_opts o;
	int64_t micros; /* micro-batches of a rank a step */
	int nslots;
	struct io_slot *slots;
	pthread_t thread;
	int started;
	pid_t owner;
	pthread_mutex_t lock;
	pthread_cond_t filled, freed;
	/* guarded by lock */
	int64_t made, taken;
	int stop, failed;
	struct io_error error; /* of the thread, once failed */
};

static void *produce(void *arg)
{
	struct io_loader *l = arg;
	struct io_step_totals totals = {.step = -1};
	struct io_error e = {.code = 0};

	for (int64_t k = 0;; k++) {
		int rc;

		pthread_mutex_lock(&l->lock);
		while (!l->stop && k - l->taken >= l->o.prefetch)
			pthread_cond_wait(&l->freed, &l->lock);
		rc = l->stop;
		pthread_mutex_unlock(&l->lock);
		if (rc)
			return NULL;
		rc = io__slot_fill(l->ds, &l->o, l->o.first_step + k / l->micros, k % l->micros, &totals,
				   &l->slots[k % l->nslots], &e);
		pthread_mutex_lock(&l->lock);
		if (rc < 0) {
			l->failed = 1;
			l->error = e;
		} else {
			l->made = k + 1;
		}
		pthread_cond_signal(&l->filled);
		pthread_mutex_unlock(&l->lock);
		if (rc < 0)
			return NULL;
	}
}

static int check_opts(const struct io_dataset *ds, const struct io_loader_opts *o, struct io_error *err)
{
	if (o->micro_batch < 1 || o->dp_size < 1 || o->dp_rank < 0 || o->dp_rank >= o->dp_size)
		return io_errorf(err, EINVAL, "micro-batch of %" PRId64 " samples, data-parallel rank %d of %d: the first "
				 "must be at least 1, the rank below the size", o->micro_batch, o->dp_rank, o->dp_size);
	/* 2^40 samples a step keep every position of 2^22 steps and more below 2^63. */
	if (o->micro_batch > INT64_C(1) << 40 || o->global_batch < 1 || o->global_batch > INT64_C(1) << 40 ||
	    o->global_batch % (o->micro_batch * o->dp_size))
		return io_errorf(err, EINVAL,
				 "global batch of %" PRId64 " samples is no multiple of micro-batch x data-parallel size = "
				 "%" PRId64 " x %d",
				 o->global_batch, o->micro_batch, o->dp_size);
	if (o->first_step < 0 || o->first_step > INT64_MAX / 2 / o->global_batch)
		return io_errorf(err, EINVAL, "first step %" PRId64 " is out of range", o->first_step);
	if (o->prefetch < 1 || o->prefetch > 1024)
		return io_errorf(err, EINVAL, "prefetch of %d micro-batches; 1 to 1024 is allowed", o->prefetch);
	/* Labels are 32-bit with a negative mark. */
	if (ds->m.vocab_size > INT32_MAX)
		return io_errorf(err, EINVAL, "vocabulary of %" PRId64 " ids; at most 2147483647 can be trained",
				 ds->m.vocab_size);
	return 0;
}

static int alloc_slots(struct io_loader *l, struct io_error *err)
{
	int64_t tokens, segs;

	if (__builtin_mul_overflow(l->o.micro_batch, l->ds->m.seq_length, &tokens) || tokens > INT64_C(1) << 40 ||
	    __builtin_mul_overflow(l->o.micro_batch, l->ds->max_seg, &segs))
		return io_errorf(err, EINVAL, "a row of %" PRId64 " samples of %" PRId64 " tokens is too long",
				 l->o.micro_batch, l->ds->m.seq_length);
	l->slots = calloc((size_t)l->nslots, sizeof(*l->slots));
	for (int i = 0; l->slots && i < l->nslots; i++) {
		struct io_slot *s = &l->slots[i];

		/* Sized for a whole row; a rank that reads a slice touches only its part of the memory. */
		s->cu = malloc((size_t)(segs + 1) * sizeof(*s->cu));
		s->ids = malloc((size_t)(tokens + 1) * sizeof(*s->ids));
		s->labels = malloc((size_t)tokens * sizeof(*s->labels));
		s->positions = malloc((size_t)tokens * sizeof(*s->positions));
		if (!s->cu || !s->ids || !s->labels || !s->positions)
			return io_errorf(err, ENOMEM, "out of memory for %d rows of %" PRId64 " tokens", l->nslots,
					 tokens);
	}
	return l->slots ? 0 : io_errorf(err, ENOMEM, "out of memory");
}

static int start_thread(struct io_loader *l, struct io_error *err)
{
	sigset_t all, old;
	int rc;

	/* Signals are the program's; its handlers run on its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&l->thread, NULL, produce, l);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return io_errorf(err, rc, "the loader's thread cannot be started: %s", strerror(rc));
	l->started = 1;
	return 0;
}

int io_loader_create(struct io_dataset *ds, const struct io_loader_opts *o, struct io_loader **out, struct io_error *err)
{
	struct io_loader *l;

	*out = NULL;
	if (check_opts(ds, o, err) < 0)
		return -1;
	l = calloc(1, sizeof(*l));
	if (!l)
		return io_errorf(err, ENOMEM, "out of memory");
	l->ds = ds;
	l->o = *o;
	l->micros = o->global_batch / (o->micro_batch * o->dp_size);
	l->nslots = o->prefetch + 1;
	l->owner = getpid();
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->filled, NULL);
	pthread_cond_init(&l->freed, NULL);
	if (alloc_slots(l, err) < 0 || start_thread(l, err) < 0) {
		io_loader_destroy(l);
		return -1;
	}
	*out = l;
	return 0;
}

void io_loader_destroy(struct io_loader *l)
{
	int keep = errno;

	if (!l)
		return;
	/* In a forked child the thread does not exist and the lock may be held by nobody: leave everything as it is. */
	if (l->owner != getpid())
		return;
	if (l->started) {
		pthread_mutex_lock(&l->lock);
		l->stop = 1;
		pthread_cond_signal(&l->freed);
		pthread_mutex_unlock(&l->lock);
		pthread_join(l->thread, NULL);
	}
	for (int i = 0; l->slots && i < l->nslots; i++) {
		free(l->slots[i].cu);
		free(l->slots[i].ids);
		free(l->slots[i].labels);
		free(l->slots[i].positions);
	}
	free(l->slots);
	pthread_cond_destroy(&l->filled);
	pthread_cond_destroy(&l->freed);
	pthread_mutex_destroy(&l->lock);
	free(l);
	errno = keep;
}

int io_loader_next(struct io_loader *l, const struct io_batch **out, struct io_error *err)
{
	int ready;

	*out = NULL;
	if (l->owner != getpid())
		return io_errorf(err, EINVAL, "this loader was made before fork; make one in the child");
	pthread_mutex_lock(&l->lock);
	while (l->made == l->taken && !l->failed)
		pthread_cond_wait(&l->filled, &l->lock);
	ready = l->made > l->taken;
	if (ready) {
		*out = &l->slots[l->taken % l->nslots].b;
		l->taken++; /* frees the slot handed out before */
		pthread_cond_signal(&l->freed);
	} else if (err) {
		*err = l->error;
	}
	pthread_mutex_unlock(&l->lock);
	return ready ? 0 : -1;
}
