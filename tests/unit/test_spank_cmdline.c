/* SPDX-License-Identifier: Apache-2.0 */
/* Reading srun's and sbatch's words before Slurm does: by example, and against getopt_long itself. */
#include <getopt.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "spank/spank_cmdline.h"

#define MAX_WORDS 64

/* Cuts at blanks; "''" stands for an empty word. */
static int split(char *line, char **argv)
{
	int argc = 0;

	for (char *w = strtok(line, " "); w != NULL; w = strtok(NULL, " "))
		argv[argc++] = strcmp(w, "''") == 0 ? w + 2 : w;
	argv[argc] = NULL;
	return argc;
}

static struct plug_scan scan_line(enum plug_command cmd, const char *text)
{
	struct plug_scan s = {0};
	char line[512], *argv[MAX_WORDS];

	snprintf(line, sizeof(line), "%s", text);
	plug_scan_argv(cmd, split(line, argv), argv, &s);
	return s;
}

static void test_values(void **state)
{
	static const struct {
		const char *line, *sp, *cp, *shard, *rep;
	} t[] = {
		{"srun --sp-size=4 -N2 trainer", "4", "", "", ""},
		{"srun --sp-size 4 -N2 trainer", "4", "", "", ""},
		{"srun -N 2 --sp-size=4 trainer --sp-size=8", "4", "", "", ""},
		{"srun --sp-size=4 --sp-size=2 trainer", "2", "", "", ""},
		{"srun --sp-size=4 --sp-size=none trainer", "none", "", "", ""},
		{"srun --dp-shard=2 --dp-replicate 3 --cp-size=1 --sp-size=4 x", "4", "1", "2", "3"},
		{"srun --dp-r=3 --sp-s 4 --dp-s=5 --cp-=7 x", "4", "7", "5", "3"},
		{"srun trainer --sp-size=4", "", "", "", ""},
		{"srun -- trainer --sp-size=4", "", "", "", ""},
		{"srun --sp-size=4 -- trainer --sp-size=8", "4", "", "", ""},
		{"srun -J --sp-size=4 x", "", "", "", ""},	   /* a job's name */
		{"srun -lJ --sp-size=4 x", "", "", "", ""},	   /* the same behind a flag */
		{"srun -lJname --sp-size=4 x", "4", "", "", ""},   /* value attached */
		{"srun --job-name --sp-size=4 x", "", "", "", ""}, /* long form */
		{"srun -K --sp-size=4 x", "4", "", "", ""},	   /* optional values never take the next word */
		{"srun -K0 --sp-size=4 x", "4", "", "", ""},
		{"srun --exclusive --sp-size=4 x", "4", "", "", ""},
		{"srun --pty --sp-size=4 x", "4", "", "", ""},
		{"srun --sp-size= x", "", "", "", ""},
		{"srun --sp-size=123456789012345678 x", "?", "", "", ""},
		{"srun - --sp-size=4", "", "", "", ""}, /* "-" is a program */
		{"srun --sp-size", "", "", "", ""},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct plug_scan s = scan_line(PLUG_SRUN, t[i].line);

		if (strcmp(s.value[PLUG_SP], t[i].sp) != 0 || strcmp(s.value[PLUG_CP], t[i].cp) != 0 ||
		    strcmp(s.value[PLUG_SHARD], t[i].shard) != 0 ||
		    strcmp(s.value[PLUG_REPLICATE], t[i].rep) != 0 || s.unsure)
			fail_msg("%s: sp '%s' cp '%s' shard '%s' rep '%s' unsure %d", t[i].line, s.value[PLUG_SP],
				 s.value[PLUG_CP], s.value[PLUG_SHARD], s.value[PLUG_REPLICATE], s.unsure);
	}
}

static void test_what_decides_the_task_count(void **state)
{
	static const struct {
		const char *line;
		int tasks;
	} t[] = {
		{"srun -n4 x", 1},
		{"srun -n 4 x", 1},
		{"srun -ln4 x", 1},
		{"srun --ntasks=4 x", 1},
		{"srun --ntasks 4 x", 1},
		{"srun --ntasks-per-node=2 x", 1},
		{"srun --tasks-per-node=2 x", 1},
		{"srun --ntasks-per-n 2 x", 1},
		{"srun --ntasks-per-gpu=1 x", 1},
		{"srun --ntasks-per-core=1 x", 1},
		{"srun --ntasks-per-socket=1 x", 1},
		{"srun --ntasks-per-tres=1 x", 1},
		{"srun --ntas=3 x", 1},
		{"srun -m arbitrary -w n1,n1 x", 1},
		{"srun --distribution=arb x", 1},
		{"srun -m cyclic x", 0},
		{"srun --gpus=4 --gpus-per-task=1 x", 1},
		{"srun -G4 --gpus-per-task=1 x", 1},
		{"srun --gpus-per-task=1 x", 0},
		{"srun --gpus=4 x", 0},
		{"srun -N2 x", 0},
		{"srun -N2 x -n4", 0},
		{"srun -J -n4 x", 0},
		{"srun -c2 -l x", 0},
		{"srun -o n4 x", 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct plug_scan s = scan_line(PLUG_SRUN, t[i].line);

		if (plug_scan_has_tasks(&s) != t[i].tasks || s.unsure)
			fail_msg("%s: tasks %d unsure %d", t[i].line, plug_scan_has_tasks(&s), s.unsure);
	}
}

static void test_foreign_options(void **state)
{
	struct plug_scan s;

	(void)state;
	/* With '=' or before another option nothing is lost. */
	s = scan_line(PLUG_SRUN, "srun --container-image=img --sp-size=4 -N2 x");
	assert_int_equal(s.unsure, 0);
	assert_string_equal(s.value[PLUG_SP], "4");
	s = scan_line(PLUG_SRUN, "srun --container-remap-root --sp-size=4 x");
	assert_int_equal(s.unsure, 0);
	/* "--new opt" may be an option with a value, or a flag and the program. As long as nothing of ours follows
	 * it is all one. */
	s = scan_line(PLUG_SRUN, "srun --sp-size=4 --container-imag img x --verbose");
	assert_int_equal(s.unsure, 0);
	s = scan_line(PLUG_SRUN, "srun --container-name img --sp-size=4 x");
	assert_int_equal(s.unsure, 1);
	s = scan_line(PLUG_SRUN, "srun --sp-size=4 --container-name img -n 8 x");
	assert_int_equal(s.unsure, 1);
	/* A letter no release knows. */
	s = scan_line(PLUG_SRUN, "srun --sp-size=4 -y x");
	assert_int_equal(s.unsure, 1);
	/* sbatch has to find its script behind it. */
	s = scan_line(PLUG_SBATCH, "sbatch --sp-size=4 --container-name img job.sh");
	assert_int_equal(s.unsure, 1);
	/* Ambiguous abbreviations are Slurm's to refuse. */
	s = scan_line(PLUG_SRUN, "srun --sp=4 x");
	assert_string_equal(s.value[PLUG_SP], "");
}

static void test_other_findings(void **state)
{
	struct plug_scan s;

	(void)state;
	s = scan_line(PLUG_SRUN, "srun -N 2 -O -w n1 x : -N1 y");
	assert_string_equal(s.nodes, "2");
	assert_true(s.overcommit && s.shape && s.het);
	assert_int_equal(s.program, 6);
	s = scan_line(PLUG_SRUN, "srun --interactive --preserve-env --pty bash");
	assert_true(s.interactive);
	s = scan_line(PLUG_SRUN, "srun --jobid=3 x");
	assert_true(s.jobid);
	s = scan_line(PLUG_SRUN, "srun --het-group=1 x");
	assert_true(s.het);
	/* The same letter means other things elsewhere: -W takes a value in srun, none in sbatch. */
	s = scan_line(PLUG_SRUN, "srun -W -n4 x");
	assert_int_equal(s.tasks, 0);
	s = scan_line(PLUG_SBATCH, "sbatch -W -n4 x");
	assert_int_equal(s.tasks, 1);
	s = scan_line(PLUG_SBATCH, "sbatch --wrap hostname");
	assert_true(s.wrap);
	assert_int_equal(s.program, 3);
	s = scan_line(PLUG_SALLOC, "salloc -K --sp-size 4");
	assert_string_equal(s.value[PLUG_SP], "4");
	assert_int_equal(s.program, 4);
}

static struct plug_scan scan_text(const char *text)
{
	struct plug_scan s = {0};
	char *exact = malloc(strlen(text) + 1); /* so that a sanitizer sees a read too far */

	memcpy(exact, text, strlen(text));
	assert_int_equal(plug_scan_script(exact, strlen(text), &s), 0);
	free(exact);
	return s;
}

static void test_script_lines(void **state)
{
	static const struct {
		const char *text, *sp;
		int tasks, het, unsure;
	} t[] = {
		{"#!/bin/sh\n#SBATCH --sp-size=4\nsrun x\n", "4", 0, 0, 0},
		{"#!/bin/sh\n#SBATCH --sp-size 4 -n8\n", "4", 1, 0, 0},
		{"#!/bin/sh\n#SBATCH --sp-size=4 # -n8\n", "4", 0, 0, 0},
		{"#!/bin/sh\n#SBATCH --sp-size=4#-n8\n", "4", 0, 0, 0},
		{"#!/bin/sh\n\n  # note\n#SBATCH --sp-size=4", "4", 0, 0, 0},
		{"#!/bin/sh\n #SBATCH --sp-size=4\n", "", 0, 0, 0},
		{"#!/bin/sh\necho\n#SBATCH --sp-size=4\n", "", 0, 0, 0},
		{"#!/bin/sh\n##SBATCH --sp-size=4\n", "", 0, 0, 0},
		{"#!/bin/sh\n#SBATCH --sp-size=4\n#SBATCH --sp-size=2\n", "2", 0, 0, 0},
		{"#!/bin/sh\n#SBATCH -J \"a -n4\" --sp-size=4\n", "4", 0, 0, 0},
		{"#!/bin/sh\n#SBATCH -J 'a\" -n4' --sp-size=4\n", "4", 0, 0, 0},
		{"#!/bin/sh\n#SBATCH -J a\\ -n4 --sp-size=4\n", "4", 0, 0, 0},
		{"#!/bin/sh\n#SBATCH --sp-size=\"4\"\n", "4", 0, 0, 0},
		{"#!/bin/sh\r\n#SBATCH --sp-size=4\r\n", "4", 0, 0, 0},
		{"#!/bin/sh\n#SBATCH\t--sp-size=4\n#SBATCH\n", "4", 0, 0, 0},
		{"#!/bin/sh\n#SBATCH --sp-size=4\n#SBATCH hetjob\n#SBATCH -N1\n", "4", 0, 1, 0},
		{"#!/bin/sh\n#SBATCH --sp-size=4\n#PBS -l nodes=2:ppn=4\n", "4", 0, 0, 1},
		{"#!/bin/sh\n#SBATCH --sp-size=4\n#BSUB -n 8\n", "4", 0, 0, 1},
		{"#SBATCH", "", 0, 0, 0},
		{"#SBATC", "", 0, 0, 0},
		{"", "", 0, 0, 0},
		{"\n\n\n", "", 0, 0, 0},
		{"#SBATCH \\", "", 0, 0, 0},
		{"#SBATCH \"", "", 0, 0, 0},
		{"#SBATCH '' '' '' ''", "", 0, 0, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct plug_scan s = scan_text(t[i].text);

		if (strcmp(s.value[PLUG_SP], t[i].sp) != 0 || plug_scan_has_tasks(&s) != t[i].tasks ||
		    s.het != t[i].het || s.unsure != t[i].unsure)
			fail_msg("case %zu: sp '%s' tasks %d het %d unsure %d", i, s.value[PLUG_SP],
				 plug_scan_has_tasks(&s), s.het, s.unsure);
	}
}

/* Any bytes at all: no crash, no read or write outside (meant for the sanitizers). */
static void test_script_noise(void **state)
{
	static const char alphabet[] = "#SBATCH\n\n #SBATCH --sp-size=4 -n\"'\\\r\t:";
	unsigned seed = 7;

	(void)state;
	for (int round = 0; round < 20000; round++) {
		size_t n = (size_t)(rand_r(&seed) % 60);
		char *text = malloc(n + 1);
		struct plug_scan s = {0};

		for (size_t i = 0; i < n; i++)
			text[i] = rand_r(&seed) % 8 ? alphabet[(size_t)rand_r(&seed) % (sizeof(alphabet) - 1)]
						    : (char)rand_r(&seed);
		for (size_t i = 0; n > 9 && i < n - 9; i++)
			if (rand_r(&seed) % 16 == 0)
				memcpy(text + i, "\n#SBATCH ", 9);
		assert_int_equal(plug_scan_script(text, n, &s), 0);
		free(text);
	}
}

/* ---- getopt_long as the model
 * ------------------------------------------------------------------------------------ */

static struct option long_options[256];
static char letters[512];

static void build_getopt(enum plug_command cmd)
{
	int n = 0;
	char *p = letters;

	*p++ = '+';
	for (int i = 0; i < plug_slurm_noptions; i++) {
		const struct plug_option *o = &plug_slurm_options[i];

		if (!(o->cmds & cmd))
			continue;
		long_options[n].name = o->name;
		long_options[n].has_arg = o->arg == PLUG_ARG_REQUIRED ? 1 : o->arg == PLUG_ARG_ATTACHED ? 2 : 0;
		long_options[n].flag = NULL;
		long_options[n++].val = 1000 + i;
		if (o->letter != 0) {
			*p++ = o->letter;
			for (int k = 0; k < long_options[n - 1].has_arg; k++)
				*p++ = ':';
		}
	}
	memset(&long_options[n], 0, sizeof(long_options[0]));
	*p = '\0';
}

/* What getopt_long makes of it; returns -1 when it refuses a word. */
static int model(enum plug_command cmd, int argc, char **argv, struct plug_scan *s)
{
	int c;

	optind = 0;
	opterr = 0;
	while ((c = getopt_long(argc, argv, letters, long_options, NULL)) != -1) {
		const struct plug_option *o = NULL;

		if (c == '?')
			return -1;
		if (c >= 1000)
			o = &plug_slurm_options[c - 1000];
		for (int i = 0; o == NULL && i < plug_slurm_noptions; i++)
			if ((plug_slurm_options[i].cmds & cmd) && plug_slurm_options[i].letter == c)
				o = &plug_slurm_options[i];
		if (o->role == PLUG_ROLE_TASKS)
			s->tasks = 1;
		if (o->role == PLUG_ROLE_NODES)
			snprintf(s->nodes, sizeof(s->nodes), "%s", strlen(optarg) < PLUG_VALUE_LEN ? optarg : "?");
		if (o->role >= PLUG_ROLE_DIM)
			snprintf(s->value[o->role - PLUG_ROLE_DIM], PLUG_VALUE_LEN, "%s",
				 strlen(optarg) < PLUG_VALUE_LEN ? optarg : "?");
	}
	s->program = optind;
	return 0;
}

static void random_word(unsigned *seed, enum plug_command cmd, char *out, size_t len)
{
	static const char *const plain[] = {"x",	   "4",	  "-n4", "--", "-",	   "n1",
					    "--sp-size=3", "-N2", "a=b", "-v", "--ntasks", "-l"};
	const struct plug_option *o;
	int cut;

	do
		o = &plug_slurm_options[rand_r(seed) % plug_slurm_noptions];
	while (!(o->cmds & cmd));
	switch (rand_r(seed) % 6) {
	case 0:
		snprintf(out, len, "%s", plain[(size_t)rand_r(seed) % (sizeof(plain) / sizeof(plain[0]))]);
		break;
	case 1:
		snprintf(out, len, "--%s", o->name);
		break;
	case 2:
		snprintf(out, len, "--%s%s", o->name, o->arg == PLUG_ARG_NONE ? "" : "=7");
		break;
	case 3: /* abbreviated */
		cut = 1 + rand_r(seed) % (int)strlen(o->name);
		snprintf(out, len, "--%.*s%s", cut, o->name, o->arg == PLUG_ARG_REQUIRED ? "=5" : "");
		break;
	case 4:
		snprintf(out, len, "-%c%s", o->letter ? o->letter : 'v', rand_r(seed) % 2 ? "" : "3");
		break;
	default:
		snprintf(out, len, "-vl%c", o->letter ? o->letter : 'Q');
	}
}

static void test_against_getopt_long(void **state)
{
	const enum plug_command cmds[] = {PLUG_SRUN, PLUG_SBATCH, PLUG_SALLOC};
	unsigned seed = 99;
	int understood = 0;

	(void)state;
	for (size_t c = 0; c < 3; c++) {
		build_getopt(cmds[c]);
		for (int round = 0; round < 60000; round++) {
			char words[8][40], *argv[10] = {"srun"};
			struct plug_scan got = {0}, want = {0};
			int argc = 1 + rand_r(&seed) % 8;

			for (int i = 1; i < argc; i++) {
				random_word(&seed, cmds[c], words[i - 1], sizeof(words[0]));
				argv[i] = words[i - 1];
			}
			if (model(cmds[c], argc, argv, &want) < 0)
				continue;
			plug_scan_argv(cmds[c], argc, argv, &got);
			understood++;
			if (got.program != want.program || got.tasks != want.tasks ||
			    strcmp(got.nodes, want.nodes) != 0 ||
			    strcmp(got.value[PLUG_SP], want.value[PLUG_SP]) != 0 ||
			    strcmp(got.value[PLUG_SHARD], want.value[PLUG_SHARD]) != 0 ||
			    strcmp(got.value[PLUG_REPLICATE], want.value[PLUG_REPLICATE]) != 0) {
				char line[400] = "";

				for (int i = 1; i < argc; i++) {
					strcat(line, " ");
					strcat(line, argv[i]);
				}
				fail_msg("command %zu:%s: program %d (getopt_long: %d) tasks %d (%d) sp '%s' "
					 "('%s')",
					 c, line, got.program, want.program, got.tasks, want.tasks,
					 got.value[PLUG_SP], want.value[PLUG_SP]);
			}
		}
	}
	assert_true(understood > 20000); /* the model accepted enough of the noise to mean something */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_what_decides_the_task_count),
		cmocka_unit_test(test_foreign_options),
		cmocka_unit_test(test_other_findings),
		cmocka_unit_test(test_script_lines),
		cmocka_unit_test(test_script_noise),
		cmocka_unit_test(test_against_getopt_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
