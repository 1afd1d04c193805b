/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_FDCACHE_H
#define IO_IO_FDCACHE_H
/*
 * Private: a bounded set of open descriptors for many files, shared by threads. A file whose size is no longer what it
 * was when the dataset was opened is refused.
 */
#include <stdint.h>
#include "io/io_err.h"

#define IO_FDCACHE_SLOTS 32

struct io_fdcache;
struct io_fdcache *io__fdcache_create(void); /* NULL: out of memory */
void io__fdcache_destroy(struct io_fdcache *c);
/* An open descriptor of file number `id` (path, bytes), to be given back with put; -1 on failure. */
int io__fdcache_get(struct io_fdcache *c, int id, const char *path, int64_t bytes, struct io_error *err);
void io__fdcache_put(struct io_fdcache *c, int id, int fd);
int io__fdcache_open_count(struct io_fdcache *c);

#endif
