/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_SPCTL_H
#define TRAINER_SPCTL_H
/*
 * The spctl program: one table of commands (spctl.c), one file a command or family, one way to read options.
 * Commands return the exit code: 0, 1 when the work failed, 2 for a wrong command line. Errors are one line on stderr.
 */
#include <stdint.h>

#define SPCTL_USAGE 2

struct spctl_command {
	const char *name, *summary;
	int (*run)(int argc, char **argv); /* argv[0] is the command's name */
};

int spctl_pack(int argc, char **argv);
int spctl_inspect(int argc, char **argv);
int spctl_verify(int argc, char **argv);

struct spctl_opt {
	const char *name;  /* without the dashes */
	const char *arg;   /* what follows, for the help; NULL: a flag */
	const char *help;
	const char **value; /* where the text goes; "" for a flag; the last one wins */
};

/* Reads `--name value`, `--name=value` and `--` until argv ends; what is no option moves to argv[1..*npos]. Returns -1 to
 * go on, else the exit code to return at once (help was asked for and printed, or an error was printed). `synopsis` is
 * what follows "usage: spctl " and `about` a line or more of help. opts end with a NULL name. */
int spctl_options(const char *synopsis, const char *about, const struct spctl_opt *opts, int argc, char **argv,
		  int *npos);
/* Prints "spctl CMD: text" on stderr and returns `code`. */
int spctl_fail(int code, const char *cmd, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Reads a whole number min..max; with `sizes` a suffix K, M, G (powers of 1024) may follow. -1 to go on, else SPCTL_USAGE
 * with the error printed. */
int spctl_int(const char *cmd, const char *opt, const char *text, int64_t min, int64_t max, int sizes, int64_t *out);
/* The candidate nearest to a mistyped word, or NULL when none is near. next(arg, i) gives candidate i, NULL at the end. */
const char *spctl_nearest(const char *word, const char *(*next)(const void *arg, int i), const void *arg);

#endif
