/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_FILE_H
#define IO_IO_FILE_H
/*
 * Whole-file operations with the guarantees the stores are built on: checked short reads and writes,
 * write-beside + fsync + rename + fsync of the directory, XXH3-128 of ranges, bounded reads of small files.
 */
#include <stddef.h>
#include <stdint.h>
#include "io/io_err.h"

struct io_hash128 {
	uint64_t hi, lo;
};
/* 32 lower-case hex digits and a NUL (the canonical XXH128 form) */
void io_hash_hex(struct io_hash128 h, char out[33]);
int io_hash_parse(const char *hex, struct io_hash128 *out); /* 0 or -1 */
struct io_hash128 io_hash_mem(const void *p, size_t n);
/* Hash of bytes [off, off+len) of the open file; -1 when the file is shorter or cannot be read. `path` is for the text. */
int io_hash_range(int fd, const char *path, int64_t off, int64_t len, struct io_hash128 *out, struct io_error *err);

/* Reads or writes exactly n bytes at off, retrying EINTR and short transfers. */
int io_pread_full(int fd, const char *path, void *buf, size_t n, int64_t off, struct io_error *err);
int io_pwrite_full(int fd, const char *path, const void *buf, size_t n, int64_t off, struct io_error *err);

/* Reads a regular file of at most max bytes into a malloc'ed, NUL-terminated buffer (caller frees). */
int io_read_file(const char *path, size_t max, char **data, size_t *len, struct io_error *err);
/* Publishes data under path: path.tmp-<random>, write, fsync, rename, fsync of the directory. */
int io_write_file(const char *path, const void *data, size_t len, struct io_error *err);

int io_fsync_dir(const char *dir, struct io_error *err);
int io_mkdirs(const char *dir, struct io_error *err); /* like mkdir -p, mode 0777 & ~umask */
int io_remove_tree(const char *dir, struct io_error *err); /* does not follow links */
/* Bytes free to this user on dir's file system, or -1. */
int64_t io_free_bytes(const char *dir);

#endif
