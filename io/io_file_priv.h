/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_FILE_PRIV_H
#define IO_IO_FILE_PRIV_H
/* Shared by the stores of this folder only. */
#include "io/io_file.h"

/* Opens a regular file for reading (never blocks on a FIFO; retries ESTALE, which NFS gives for a file renamed
 * over). *size gets its length. Returns the descriptor or -1. */
int io__open_regular(const char *path, int64_t *size, struct io_error *err);
/* Creates path, which must not exist. Returns the descriptor or -1. */
int io__create(const char *path, struct io_error *err);
/* fsync and close with both results checked; the descriptor is closed in any case. */
int io__sync_close(int fd, const char *path, struct io_error *err);
/* Fills out with n characters of [0-9a-z] that another process will not choose, and a NUL. */
void io__random_name(char *out, size_t n);
/* malloc'ed printf; NULL with *err set when memory is short. */
char *io__strf(struct io_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The folder that holds path ("." when it has no slash); malloc'ed. */
char *io__dirname(const char *path, struct io_error *err);
/* Renames and makes it durable: rename + fsync of the folder of `to`. */
int io__rename_sync(const char *from, const char *to, struct io_error *err);

#endif
