/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The command line. See README.md. */
#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"usage: ptoracle [options] STREAMS N         cpuN.pt, cpuN.map and code.dict of the folder STREAMS\n"
	"       ptoracle [options] --raw FILE.pt     with --pages or --code\n"
	"  --pages LIST          lines `tgid va_hex size file`, files beside LIST\n"
	"  --code FILE@VA_HEX    raw bytes at an address (repeatable)\n"
	"  --cpu FAMILY/MODEL/STEPPING   apply that processor's errata\n"
	"  --mtc-freq N          MTC period exponent (default 3)\n"
	"  --nom-freq N          max non-turbo ratio (default 10)\n"
	"  --art EAX/EBX         CPUID leaf 15H (default 1/40)\n"
	"  --quiet               only the total\n"
	"  --events              events beside the flow instead: PTWRITE, power, clock\n"
	"  --block-bench RUNS    time the block and packet decoders instead\n";

static void parse_cpu(struct pt_config *config, const char *text)
{
	unsigned family, model, stepping;

	if (sscanf(text, "%u/%u/%u", &family, &model, &stepping) != 3)
		die("--cpu %s: expected FAMILY/MODEL/STEPPING", text);
	config->cpu.vendor = pcv_intel;
	config->cpu.family = (uint16_t)family;
	config->cpu.model = (uint8_t)model;
	config->cpu.stepping = (uint8_t)stepping;
	if (pt_cpu_errata(&config->errata, &config->cpu) < 0)
		die("--cpu %s: libipt does not know it", text);
}

static void add_code(struct code *code, char *argument)
{
	char *at = strrchr(argument, '@');

	if (!at)
		die("--code %s: expected FILE@VA", argument);
	*at = 0;
	code_load_raw(code, argument, strtoull(at + 1, NULL, 16));
}

int main(int argc, char **argv)
{
	static struct code code;
	struct pt_config config;
	struct blob pt;
	const char *raw = NULL, *place[2] = { NULL, NULL };
	unsigned places = 0, bench = 0, eax = 1, ebx = 40;
	int quiet = 0, events = 0;
	char path[3][4096];

	pt_config_init(&config);
	config.mtc_freq = 3;
	config.nom_freq = 10;
	for (int i = 1; i < argc; i++) {
		char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;

		if (!strcmp(option, "--quiet")) {
			quiet = 1;
			continue;
		}
		if (!strcmp(option, "--events")) {
			events = 1;
			continue;
		}
		if (strncmp(option, "--", 2)) {
			if (places == 2)
				die("too many arguments\n%s", usage);
			place[places++] = option;
			continue;
		}
		if (!value)
			die("%s\n%s", option, usage);
		i++;
		if (!strcmp(option, "--raw"))
			raw = value;
		else if (!strcmp(option, "--pages"))
			code_load_pages(&code, value);
		else if (!strcmp(option, "--code"))
			add_code(&code, value);
		else if (!strcmp(option, "--cpu"))
			parse_cpu(&config, value);
		else if (!strcmp(option, "--mtc-freq"))
			config.mtc_freq = (uint8_t)atoi(value);
		else if (!strcmp(option, "--nom-freq"))
			config.nom_freq = (uint8_t)atoi(value);
		else if (!strcmp(option, "--art") && sscanf(value, "%u/%u", &eax, &ebx) == 2)
			;
		else if (!strcmp(option, "--block-bench") && atoi(value) > 0)
			bench = (unsigned)atoi(value);
		else
			die("%s %s\n%s", option, value, usage);
	}
	config.cpuid_0x15_eax = eax;
	config.cpuid_0x15_ebx = ebx;
	if (!raw && places != 2)
		die("nothing to decode\n%s", usage);
	if (!raw) {
		snprintf(path[0], sizeof path[0], "%s/cpu%s.pt", place[0], place[1]);
		snprintf(path[1], sizeof path[1], "%s/code.dict", place[0]);
		snprintf(path[2], sizeof path[2], "%s/cpu%s.map", place[0], place[1]);
		code_load_streams(&code, path[1], path[2]);
		raw = path[0];
	}
	pt = read_file(raw);
	if (bench) {
		block_bench(&config, &pt, &code, bench);
		return 0;
	}
	if (events)
		return print_events(&config, &pt, &code);
	return segments(&config, &pt, &code, quiet) ? 1 : 0;
}
