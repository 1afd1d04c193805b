/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/spank_conf.h"

#include <stdio.h>
#include <string.h>

#include "libsp/sp_env.h"

static int parse_yes_no(const char *word, const char *value, int *out, char *err, size_t errlen)
{
	if (strcmp(value, "yes") == 0) {
		*out = 1;
	} else if (strcmp(value, "no") == 0) {
		*out = 0;
	} else {
		snprintf(err, errlen, "plugstack.conf: '%.60s' is not valid: give yes or no", word);
		return -1;
	}
	return 0;
}

static int parse_number(const char *name, const char *value, int max, int *out, char *err, size_t errlen)
{
	char what[64];

	snprintf(what, sizeof(what), "plugstack.conf: %s", name);
	return sp_env_parse_int(what, value, 1, max, out, err, errlen);
}

int plug_conf_parse(int ac, char *const *av, struct plug_conf *conf, char *err, size_t errlen)
{
	*conf = (struct plug_conf){
		.max_sp = SP_ENV_MAX_SIZE,
		.init_timeout = 120,
		.require_pmix = 1,
		.supply_tasks = 1,
	};
	for (int i = 0; i < ac; i++) {
		const char *eq = strchr(av[i], '=');
		size_t n = eq != NULL ? (size_t)(eq - av[i]) : 0;
		int rc;

		if (n == 6 && strncmp(av[i], "max_sp", n) == 0)
			rc = parse_number("max_sp", eq + 1, SP_ENV_MAX_SIZE, &conf->max_sp, err, errlen);
		else if (n == 12 && strncmp(av[i], "init_timeout", n) == 0)
			rc = parse_number("init_timeout", eq + 1, 86400, &conf->init_timeout, err, errlen);
		else if (n == 12 && strncmp(av[i], "require_pmix", n) == 0)
			rc = parse_yes_no(av[i], eq + 1, &conf->require_pmix, err, errlen);
		else if (n == 12 && strncmp(av[i], "supply_tasks", n) == 0)
			rc = parse_yes_no(av[i], eq + 1, &conf->supply_tasks, err, errlen);
		else {
			snprintf(err, errlen,
				 "plugstack.conf: unknown argument '%.60s': use max_sp=N, init_timeout=SECONDS, "
				 "require_pmix=yes|no, supply_tasks=yes|no",
				 av[i]);
			rc = -1;
		}
		if (rc < 0)
			return -1;
	}
	return 0;
}
