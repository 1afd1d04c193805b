/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P virtual ranks as threads of one process. Every ordered pair of ranks has a queue of posted blocks; at any time it holds
 * sends or receives, never both: whoever posts the second half of a pair copies at once, from the sender's memory to the
 * receiver's. So exchanges progress without their owners waiting, as they do with a network, and nothing is buffered.
 * One lock for all queues; copies run outside of it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "libsp/sp_mesh_impl.h"

struct item {
	struct loop_req *req;
	struct item *next;
	void *ptr;
	size_t bytes;
	int is_send, done;
	int peer;
};

struct loop_req {
	int owner; /* global rank */
	struct item *items;
	int n, cap;
	int open;    /* items not done */
	int copying; /* items another thread is working on */
	int bad;     /* a peer's half did not fit */
};

struct queue {
	struct item *head, *tail;
};

struct loop_group {
	struct loop_group *next;
	struct sp_loop *loop;
	enum sp_group kind;
	int colour, size;
	struct queue *q; /* [size from][size to] */
};

struct sp_loop {
	pthread_mutex_t lock;
	pthread_cond_t *wake; /* [world]: its exchange is done, or the loop was aborted */
	int world, shares, aborted;
	char text[300];
	struct loop_group *groups; /* live as long as the loop */
};

struct sp_loop *sp_loop_create(int world, struct sp_error *err)
{
	struct sp_loop *l = calloc(1, sizeof(*l));
	pthread_condattr_t attr;

	if (l)
		l->wake = calloc((size_t)world, sizeof(*l->wake));
	if (!l || !l->wake) {
		free(l);
		sp_errorf(err, SP_ENOMEM, "no memory for %d virtual ranks", world);
		return NULL;
	}
	l->world = l->shares = world;
	pthread_mutex_init(&l->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	for (int i = 0; i < world; i++)
		pthread_cond_init(&l->wake[i], &attr);
	pthread_condattr_destroy(&attr);
	return l;
}

void sp_loop_release(struct sp_loop *l)
{
	struct loop_group *g;
	int left;

	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	left = --l->shares;
	pthread_mutex_unlock(&l->lock);
	if (left)
		return;
	while ((g = l->groups)) {
		l->groups = g->next;
		free(g->q);
		free(g);
	}
	for (int i = 0; i < l->world; i++)
		pthread_cond_destroy(&l->wake[i]);
	pthread_mutex_destroy(&l->lock);
	free(l->wake);
	free(l);
}

void sp_loop_abort(struct sp_loop *l, int rank, const char *text)
{
	pthread_mutex_lock(&l->lock);
	if (!l->aborted) {
		l->aborted = 1;
		snprintf(l->text, sizeof(l->text), "rank %d aborted the job: %s", rank, text ? text : "no reason given");
	}
	for (int i = 0; i < l->world; i++)
		pthread_cond_signal(&l->wake[i]);
	pthread_mutex_unlock(&l->lock);
}

static struct queue *queue_of(struct sp_comm *c, const struct item *it)
{
	struct loop_group *g = c->impl;
	int from = it->is_send ? c->rank : it->peer, to = it->is_send ? it->peer : c->rank;

	return &g->q[(size_t)from * (size_t)g->size + (size_t)to];
}

static void push(struct queue *q, struct item *it)
{
	it->next = NULL;
	if (q->head)
		q->tail->next = it;
	else
		q->head = it;
	q->tail = it;
}

static void unlink_item(struct queue *q, struct item *it)
{
	struct item *prev = NULL;

	for (struct item *i = q->head; i; prev = i, i = i->next) {
		if (i != it)
			continue;
		if (prev)
			prev->next = it->next;
		else
			q->head = it->next;
		if (q->tail == it)
			q->tail = prev;
		return;
	}
}

static void finish(struct sp_loop *l, struct item *it, int ok)
{
	struct loop_req *req = it->req;

	it->done = 1;
	req->open--;
	req->bad |= !ok;
	if (!req->open || req->bad)
		pthread_cond_signal(&l->wake[req->owner]);
}

/* Both halves are here: copies with the lock released. Returns 0 when the halves fit and the copy worked. */
static int meet(struct sp_comm *c, struct sp_loop *l, enum sp_mem mem, struct item *mine, struct item *other)
{
	struct item *from = mine->is_send ? mine : other, *to = mine->is_send ? other : mine;
	int ok = from->bytes == to->bytes;

	if (ok) {
		other->req->copying++;
		pthread_mutex_unlock(&l->lock);
		if (mem == SP_MEM_HOST)
			memcpy(to->ptr, from->ptr, from->bytes);
		else
			ok = !c->ops->copy(c->ctx, to->ptr, from->ptr, from->bytes, KN_D2D) && !c->ops->sync(c->ctx);
		pthread_mutex_lock(&l->lock);
		if (!--other->req->copying) /* its owner may have given up meanwhile and wait for this */
			pthread_cond_signal(&l->wake[other->req->owner]);
	}
	finish(l, other, ok);
	finish(l, mine, ok);
	return ok ? 0 : -1;
}

/* Takes what is still posted out of the queues and waits for copies under way, so that no one touches the owner's memory
 * afterwards. Lock held. */
static void cancel(struct sp_comm *c, struct sp_loop *l, struct loop_req *req)
{
	for (int i = 0; i < req->n; i++)
		if (!req->items[i].done)
			unlink_item(queue_of(c, &req->items[i]), &req->items[i]);
	while (req->copying)
		pthread_cond_wait(&l->wake[req->owner], &l->lock);
}

static struct loop_req *prepare(struct sp_request *r, int n, struct sp_error *err)
{
	struct loop_req *req = r->impl;

	if (!req)
		req = r->impl = calloc(1, sizeof(*req));
	if (req && n > req->cap) {
		free(req->items);
		req->items = calloc((size_t)n, sizeof(*req->items));
		req->cap = req->items ? n : 0;
	}
	if (!req || req->cap < n) {
		sp_errorf(err, SP_ENOMEM, "no memory for %d blocks", n);
		return NULL;
	}
	req->owner = r->c->mesh->info.rank;
	req->n = req->open = n;
	req->bad = 0;
	return req;
}

static int fail_text(struct sp_request *r, struct sp_loop *l, struct sp_error *err)
{
	if (l->aborted)
		return sp_errorf(err, SP_EPEER, "%s on %s: %s", r->what, r->c->name, l->text);
	return sp_errorf(err, SP_EINTERNAL, "%s on %s: blocks of two ranks do not match, or a copy failed", r->what,
			 r->c->name);
}

static int loop_start(struct sp_request *r, const struct sp_block *send, int nsend, const struct sp_block *recv,
		      int nrecv, struct sp_error *err)
{
	struct sp_comm *c = r->c;
	struct sp_loop *l = ((struct loop_group *)c->impl)->loop;
	struct loop_req *req = prepare(r, nsend + nrecv, err);
	int rc = 0;

	if (!req)
		return -1;
	for (int i = 0; i < req->n; i++) {
		const struct sp_block *b = i < nsend ? &send[i] : &recv[i - nsend];

		req->items[i] = (struct item){.req = req, .ptr = b->ptr, .bytes = b->bytes, .peer = b->peer,
					      .is_send = i < nsend};
	}
	pthread_mutex_lock(&l->lock);
	for (int i = 0; i < req->n && !rc && !l->aborted; i++) {
		struct item *it = &req->items[i];
		struct queue *q = queue_of(c, it);

		if (q->head && q->head->is_send != it->is_send) {
			struct item *other = q->head;

			unlink_item(q, other);
			rc = meet(c, l, r->mem, it, other);
		} else {
			push(q, it);
		}
	}
	if (rc || l->aborted) {
		cancel(c, l, req);
		rc = fail_text(r, l, err);
	}
	pthread_mutex_unlock(&l->lock);
	return rc;
}

static void loop_poll(struct sp_request *r)
{
	(void)r; /* whoever posts the second half moves the data */
}

static int give_up(struct sp_request *r, struct loop_req *req, struct sp_error *err)
{
	unsigned char *late = calloc((size_t)r->c->size, 1);
	int rc;

	if (!late)
		return sp_errorf(err, SP_ETIMEOUT, "%s on %s: the deadline passed", r->what, r->c->name);
	for (int i = 0; i < req->n; i++)
		if (!req->items[i].done)
			late[req->items[i].peer] = 1;
	rc = sp_comm_late(r->c, r->what, late, err);
	free(late);
	return rc;
}

static int loop_wait(struct sp_request *r, struct sp_error *err)
{
	struct sp_loop *l = ((struct loop_group *)r->c->impl)->loop;
	struct loop_req *req = r->impl;
	struct timespec deadline;
	int rc = 0, timed_out = 0;

	clock_gettime(CLOCK_MONOTONIC, &deadline);
	deadline.tv_sec += r->c->mesh->timeout_s;
	pthread_mutex_lock(&l->lock);
	while (req->open && !req->bad && !l->aborted && !timed_out)
		timed_out = pthread_cond_timedwait(&l->wake[req->owner], &l->lock, &deadline) == ETIMEDOUT;
	if (req->open || req->bad) {
		cancel(r->c, l, req);
		if (req->open && !req->bad && !l->aborted)
			rc = give_up(r, req, err);
		else if (req->open || req->bad)
			rc = fail_text(r, l, err);
	}
	pthread_mutex_unlock(&l->lock);
	return rc;
}

static void loop_free_request(struct sp_request *r)
{
	struct loop_req *req = r->impl;

	if (req)
		free(req->items);
	free(req);
	r->impl = NULL;
}

static void loop_destroy(struct sp_comm *c)
{
	(void)c; /* the group belongs to the loop */
}

static const struct sp_comm_vt loop_vt = {loop_start, loop_poll, loop_wait, loop_free_request, loop_destroy};

/* The group's queues, made by its first member. */
static struct loop_group *find_group(struct sp_loop *l, enum sp_group kind, int colour, int size)
{
	struct loop_group *g;

	pthread_mutex_lock(&l->lock);
	for (g = l->groups; g && (g->kind != kind || g->colour != colour); g = g->next)
		;
	if (!g && (g = calloc(1, sizeof(*g)))) {
		*g = (struct loop_group){.loop = l, .kind = kind, .colour = colour, .size = size};
		g->q = calloc((size_t)size * (size_t)size, sizeof(*g->q));
		if (g->q) {
			g->next = l->groups;
			l->groups = g;
		} else {
			free(g);
			g = NULL;
		}
	}
	pthread_mutex_unlock(&l->lock);
	return g;
}

int sp_loop_comm(struct sp_mesh *m, enum sp_group g, int colour, int rank, int size, int *world_rank,
		 const struct kn_ops *ops, struct kn_ctx *ctx, struct sp_error *err)
{
	static const char *const names[] = {"sp", "shard", "replicate", "world"};
	struct loop_group *group = find_group(m->loop, g, colour, size);

	if (!group) {
		free(world_rank);
		return sp_errorf(err, SP_ENOMEM, "no memory for a communicator of %d ranks", size);
	}
	return sp_comm_create(m, names[g], &loop_vt, group, rank, size, world_rank, ops, ctx, &m->comm[g], err);
}
