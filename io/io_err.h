/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_ERR_H
#define IO_IO_ERR_H
/*
 * Error text of the io folder. Functions return 0 (or a count), or -1 with one line in *err; err may be NULL.
 * `code` keeps the errno where there was one (ENOSPC, EIO, ...), EBADMSG for contents that are wrong
 * (truncated, hostile, hash mismatch), EINVAL for a caller's or user's mistake.
 */
struct io_error {
	int code;
	char text[508];
};

/* Formats into *err (if not NULL), sets code, returns -1. */
int io_errorf(struct io_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
