/* SPDX-License-Identifier: Apache-2.0 */
/* spctl: everything around the training job. This file only finds the command. */
#include <stdio.h>
#include <string.h>
#include "trainer/spctl.h"

static const struct spctl_command commands[] = {
	{"pack", "turn text, JSONL or raw ids into a dataset folder", spctl_pack},
	{"inspect", "show what a dataset holds", spctl_inspect},
	{"verify", "check every hash of a dataset", spctl_verify},
	{NULL, NULL, NULL},
};

static const char *command_name(const void *arg, int i)
{
	(void)arg;
	return commands[i].name;
}

static int help(FILE *to, int code)
{
	fprintf(to, "usage: spctl COMMAND [option ...]\n\ncommands:\n");
	for (const struct spctl_command *c = commands; c->name; c++)
		fprintf(to, "  %-10s %s\n", c->name, c->summary);
	fprintf(to, "\nspctl COMMAND --help tells more; spctl --version prints the version.\n");
	return code;
}

int main(int argc, char **argv)
{
	const char *near;

	if (argc < 2)
		return help(stderr, SPCTL_USAGE);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
		return help(stdout, 0);
	if (!strcmp(argv[1], "--version")) {
		printf("spctl %s\n", SU_VERSION);
		return 0;
	}
	for (const struct spctl_command *c = commands; c->name; c++)
		if (!strcmp(argv[1], c->name)) {
			int rc = c->run(argc - 1, argv + 1);

			/* A report that could not be written (closed pipe, full disk) is a failure too. */
			return fflush(stdout) || ferror(stdout) ? (rc ? rc : 1) : rc;
		}
	near = spctl_nearest(argv[1], command_name, NULL);
	return spctl_fail(SPCTL_USAGE, "", "unknown command %s%s%s%s; see spctl --help", argv[1],
			  near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}
