/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/spank_cmdline.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void keep(char out[PLUG_VALUE_LEN], const char *value)
{
	size_t n = strlen(value);

	if (n < PLUG_VALUE_LEN)
		memcpy(out, value, n + 1);
	else
		strcpy(out, "?"); /* never valid, whatever it was */
}

static void note(struct plug_scan *scan, const struct plug_option *opt, const char *value)
{
	if (opt->role == PLUG_ROLE_OTHER)
		return;
	if (scan->maybe) /* this may be an argument of the user's program */
		scan->unsure = 1;
	switch (opt->role) {
	case PLUG_ROLE_TASKS:
		scan->tasks = 1;
		break;
	case PLUG_ROLE_PER_TASK:
		scan->per_task = 1;
		break;
	case PLUG_ROLE_GPUS:
		scan->gpus = 1;
		break;
	case PLUG_ROLE_NODES:
		keep(scan->nodes, value);
		break;
	case PLUG_ROLE_SHAPE:
		scan->shape = 1;
		break;
	case PLUG_ROLE_DIST: /* an arbitrary layout comes with a list of hosts, one a task */
		if (strncasecmp(value, "arb", 3) == 0)
			scan->tasks = 1;
		break;
	case PLUG_ROLE_OVERCOMMIT:
		scan->overcommit = 1;
		break;
	case PLUG_ROLE_INTERACTIVE:
		scan->interactive = 1;
		break;
	case PLUG_ROLE_HET:
		scan->het = 1;
		break;
	case PLUG_ROLE_WRAP:
		scan->wrap = 1;
		break;
	case PLUG_ROLE_JOBID:
		scan->jobid = 1;
		break;
	default:
		keep(scan->value[opt->role - PLUG_ROLE_DIM], value);
	}
}

/*
 * getopt_long's rule: an exact name, else a prefix that all candidates agree on. Which options exist depends on
 * Slurm's release, so candidates that do the same thing here count as one.
 */
static const struct plug_option *find_long(enum plug_command cmd, const char *name, size_t len)
{
	const struct plug_option *found = NULL;

	for (int i = 0; i < plug_slurm_noptions; i++) {
		const struct plug_option *o = &plug_slurm_options[i];

		if (!(o->cmds & cmd) || strncmp(o->name, name, len) != 0)
			continue;
		if (o->name[len] == '\0')
			return o;
		if (found != NULL &&
		    (found->role != o->role || (found->arg == PLUG_ARG_REQUIRED) != (o->arg == PLUG_ARG_REQUIRED)))
			return NULL;
		found = o;
	}
	return found;
}

static const struct plug_option *find_letter(enum plug_command cmd, char letter)
{
	for (int i = 0; i < plug_slurm_noptions; i++)
		if ((plug_slurm_options[i].cmds & cmd) && plug_slurm_options[i].letter == letter)
			return &plug_slurm_options[i];
	return NULL;
}

/* One "--name[=value]" at argv[i]; returns how many words it took. */
static int scan_long(enum plug_command cmd, int argc, char *const *argv, int i, struct plug_scan *scan)
{
	const char *name = argv[i] + 2, *eq = strchr(name, '=');
	const struct plug_option *o = find_long(cmd, name, eq != NULL ? (size_t)(eq - name) : strlen(name));

	if (o == NULL) {
		/* Another plugin's option: without '=' the next word may be its value, or the program. */
		if (eq != NULL || i + 1 >= argc || argv[i + 1][0] == '-')
			return 1;
		scan->maybe = 1;
		return 2;
	}
	if (eq != NULL || o->arg != PLUG_ARG_REQUIRED) {
		note(scan, o, eq != NULL ? eq + 1 : "");
		return 1;
	}
	note(scan, o, i + 1 < argc ? argv[i + 1] : "");
	return 2;
}

/* One "-abc" at argv[i]; returns how many words it took, 0 when a letter is unknown. */
static int scan_letters(enum plug_command cmd, int argc, char *const *argv, int i, struct plug_scan *scan)
{
	for (const char *p = argv[i] + 1; *p != '\0'; p++) {
		const struct plug_option *o = find_letter(cmd, *p);

		if (o == NULL)
			return 0;
		if (o->arg == PLUG_ARG_NONE) {
			note(scan, o, "");
			continue;
		}
		if (p[1] != '\0' || o->arg == PLUG_ARG_ATTACHED) {
			note(scan, o, p + 1);
			return 1;
		}
		note(scan, o, i + 1 < argc ? argv[i + 1] : "");
		return 2;
	}
	return 1;
}

void plug_scan_argv(enum plug_command cmd, int argc, char *const *argv, struct plug_scan *scan)
{
	int i = 1, words;

	scan->maybe = 0;
	while (i < argc && argv[i][0] == '-' && argv[i][1] != '\0') {
		if (strcmp(argv[i], "--") == 0) {
			i++;
			break;
		}
		words = argv[i][1] == '-' ? scan_long(cmd, argc, argv, i, scan)
					  : scan_letters(cmd, argc, argv, i, scan);
		if (words == 0) {
			scan->unsure = 1;
			break;
		}
		i += words;
	}
	scan->program = i < argc ? i : argc;
	/* sbatch must know its script; srun and salloc only need to be sure of the options. */
	if (scan->maybe && cmd == PLUG_SBATCH)
		scan->unsure = 1;
	for (; i < argc; i++)
		if (strcmp(argv[i], ":") == 0)
			scan->het = 1;
}

int plug_scan_has_tasks(const struct plug_scan *scan)
{
	return scan->tasks || (scan->per_task && scan->gpus);
}

static int is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

/*
 * Cuts one word off a directive line, as sbatch does: quotes group, a backslash takes the next character as it is,
 * '#' outside quotes begins a comment. Writes it to *out (advanced past the terminator). Returns 1, or 0 at the
 * end of the line.
 */
static int next_word(const char **line, const char *end, char **out)
{
	const char *p = *line;
	char quote = '\0', *o = *out;

	while (p < end && is_space(*p))
		p++;
	if (p == end || *p == '#')
		return 0;
	for (; p < end && (quote != '\0' || !is_space(*p)); p++) {
		if (*p == '\\') {
			if (++p == end)
				break;
		} else if (quote != '\0' && *p == quote) {
			quote = '\0';
			continue;
		} else if (quote == '\0' && (*p == '"' || *p == '\'')) {
			quote = *p;
			continue;
		} else if (quote == '\0' && *p == '#') {
			p = end;
			break;
		}
		*o++ = *p;
	}
	*o++ = '\0';
	*line = p;
	*out = o;
	return 1;
}

static int begins(const char *p, const char *end, const char *word)
{
	size_t n = strlen(word);

	return (size_t)(end - p) >= n && memcmp(p, word, n) == 0;
}

int plug_scan_script(const char *text, size_t len, struct plug_scan *scan)
{
	const char *p = text, *stop = text + len, *end;
	char *words = malloc(len + 2), *w = words, *word, **argv = malloc((len / 2 + 2) * sizeof(*argv));
	int argc = 0, rc = -1;

	if (words == NULL || argv == NULL)
		goto out;
	argv[argc++] = "sbatch";
	for (; p < stop; p = end + 1) {
		const char *q = p;

		end = memchr(p, '\n', (size_t)(stop - p));
		if (end == NULL)
			end = stop;
		if (!begins(p, end, "#SBATCH")) {
			/* Directives of other schedulers are translated by sbatch and may hold a task count. */
			if (begins(p, end, "#PBS") || begins(p, end, "#BSUB") || begins(p, end, "#SLURM"))
				scan->unsure = 1;
			while (q < end && is_space(*q))
				q++;
			if (q < end && *q != '#')
				break; /* the first command ends the directives */
			continue;
		}
		q += 7;
		for (;;) {
			word = w;
			if (!next_word(&q, end, &w))
				break;
			if (strcasecmp(word, "hetjob") == 0 || strcasecmp(word, "packjob") == 0)
				scan->het = 1;
			argv[argc++] = word;
		}
	}
	plug_scan_argv(PLUG_SBATCH, argc, argv, scan);
	rc = 0;
out:
	free(argv);
	free(words);
	return rc;
}
