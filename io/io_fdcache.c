/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "io/io_fdcache.h"
#include "io/io_file_priv.h"

struct slot {
	int id, fd, users; /* fd -1: free */
	uint64_t used;     /* clock of the last get */
};

struct io_fdcache {
	pthread_mutex_t lock;
	uint64_t clock;
	struct slot slots[IO_FDCACHE_SLOTS];
};

struct io_fdcache *io__fdcache_create(void)
{
	struct io_fdcache *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	for (int i = 0; i < IO_FDCACHE_SLOTS; i++)
		c->slots[i].fd = -1;
	pthread_mutex_init(&c->lock, NULL);
	return c;
}

void io__fdcache_destroy(struct io_fdcache *c)
{
	if (!c)
		return;
	for (int i = 0; i < IO_FDCACHE_SLOTS; i++)
		if (c->slots[i].fd >= 0)
			close(c->slots[i].fd);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static int open_checked(const char *path, int64_t bytes, struct io_error *err)
{
	int64_t size = 0;
	int fd = io__open_regular(path, &size, err);

	if (fd >= 0 && size != bytes) {
		io_errorf(err, EBADMSG,
			  "%s: is %" PRId64 " bytes, was %" PRId64
			  " when the dataset was opened: it changed while in use",
			  path, size, bytes);
		close(fd);
		return -1;
	}
	return fd;
}

/* The slot of this file, else a free or the longest unused idle one, else NULL when all are in use. */
static struct slot *choose(struct io_fdcache *c, int id)
{
	struct slot *best = NULL;

	for (int i = 0; i < IO_FDCACHE_SLOTS; i++) {
		struct slot *s = &c->slots[i];

		if (s->fd >= 0 && s->id == id)
			return s;
		if (s->users == 0 &&
		    (!best || (best->fd >= 0 && (s->fd < 0 || s->used < best->used))))
			best = s;
	}
	return best;
}

int io__fdcache_get(struct io_fdcache *c, int id, const char *path, int64_t bytes, struct io_error *err)
{
	struct slot *s;
	int fd = -1;

	pthread_mutex_lock(&c->lock);
	s = choose(c, id);
	if (s && s->fd >= 0 && s->id != id) {
		close(s->fd);
		s->fd = -1;
	}
	/* With all slots in use the descriptor is the caller's alone; put closes it. */
	fd = s && s->fd >= 0 ? s->fd : open_checked(path, bytes, err);
	if (s && fd >= 0) {
		s->fd = fd;
		s->id = id;
		s->users++;
		s->used = ++c->clock;
	}
	pthread_mutex_unlock(&c->lock);
	return fd;
}

void io__fdcache_put(struct io_fdcache *c, int id, int fd)
{
	int found = 0;

	pthread_mutex_lock(&c->lock);
	for (int i = 0; i < IO_FDCACHE_SLOTS && !found; i++)
		if (c->slots[i].fd == fd && c->slots[i].id == id) {
			c->slots[i].users--;
			found = 1;
		}
	pthread_mutex_unlock(&c->lock);
	if (!found)
		close(fd);
}

int io__fdcache_open_count(struct io_fdcache *c)
{
	int n = 0;

	pthread_mutex_lock(&c->lock);
	for (int i = 0; i < IO_FDCACHE_SLOTS; i++)
		n += c->slots[i].fd >= 0;
	pthread_mutex_unlock(&c->lock);
	return n;
}
